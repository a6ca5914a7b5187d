"""The Kubernetes calls the operator needs, and the one module that makes them.

Objects travel as plain mappings: the operator reads a handful of fields of each, and its own kinds
have no client classes.
"""

import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
from kubernetes.aio import client, config

from kvserving_operator.errors import ApiRejected, ApiUnavailable, Conflict
from kvserving_operator.kinds import Kind, Object, kind_of

FIELD_MANAGER = "kvserving-operator"
APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"


class Cluster(Protocol):
    """What the operator asks of Kubernetes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None where there is none."""

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> Sequence[Object]:
        """Objects with these labels."""

    async def apply(self, manifest: Object, subresource: str | None = None) -> Object:
        """Server-side apply as `kvserving-operator`, taking over fields that others hold."""

    async def create(self, manifest: Object) -> Object:
        """Create; Conflict where it exists."""

    async def replace(self, manifest: Object) -> Object:
        """Replace the version named by its resourceVersion; Conflict if it is not the newest."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete (only the one with this uid, if given); no error where it is gone."""

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Object) -> None:
        """Strategic merge of a part of the status."""

    async def patch_labels(
        self, kind: Kind, namespace: str, name: str, labels: Mapping[str, str]
    ) -> None:
        """Set labels of an object that exists; no error where it is gone."""


class KubernetesCluster:
    """The real thing, over the asyncio client of the `kubernetes` package."""

    def __init__(self, api: client.ApiClient, request_timeout_seconds: float) -> None:
        self._api = api
        self._timeout = request_timeout_seconds

    @classmethod
    async def connect(cls, request_timeout_seconds: float) -> Self:
        """Use the pod's service account, or `KUBECONFIG` outside a cluster."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(client.ApiClient(configuration), request_timeout_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._api.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None where there is none."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except ApiRejected as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> Sequence[Object]:
        """Objects with these labels, in the API's order."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        answer = await self._call("GET", kind.path(namespace), query=[("labelSelector", selector)])
        return tuple(answer.get("items") or ())

    async def apply(self, manifest: Object, subresource: str | None = None) -> Object:
        """Server-side apply as `kvserving-operator`, taking over fields that others hold."""
        meta = manifest["metadata"]
        return await self._call(
            "PATCH",
            kind_of(manifest).path(meta["namespace"], meta["name"], subresource),
            query=[("fieldManager", FIELD_MANAGER), ("force", "true")],
            body=manifest,
            content_type=APPLY,
        )

    async def create(self, manifest: Object) -> Object:
        """Create; Conflict where it exists."""
        path = kind_of(manifest).path(manifest["metadata"]["namespace"])
        return await self._call(
            "POST", path, query=[("fieldManager", FIELD_MANAGER)], body=manifest
        )

    async def replace(self, manifest: Object) -> Object:
        """Replace the version named by its resourceVersion; Conflict if it is not the newest."""
        meta = manifest["metadata"]
        path = kind_of(manifest).path(meta["namespace"], meta["name"])
        return await self._call("PUT", path, query=[("fieldManager", FIELD_MANAGER)], body=manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete (only the one with this uid, if given); no error where it is gone."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except Conflict:
            return
        except ApiRejected as error:
            if error.status != 404:
                raise

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Object) -> None:
        """Strategic merge of a part of the status."""
        await self._call(
            "PATCH",
            kind.path(namespace, name, "status"),
            query=[("fieldManager", FIELD_MANAGER)],
            body={"status": status},
            content_type=STRATEGIC,
        )

    async def patch_labels(
        self, kind: Kind, namespace: str, name: str, labels: Mapping[str, str]
    ) -> None:
        """Set labels of an object that exists; no error where it is gone."""
        try:
            await self._call(
                "PATCH",
                kind.path(namespace, name),
                query=[("fieldManager", FIELD_MANAGER)],
                body={"metadata": {"labels": dict(labels)}},
                content_type=STRATEGIC,
            )
        except ApiRejected as error:
            if error.status != 404:
                raise

    async def _call(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            request = await self._api.param_serialize(
                method,
                path,
                query_params=list(query),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(*request, _request_timeout=self._timeout)
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"{method} {path}: {type(error).__name__}: {error}") from error
        return _answer(method, path, response.status, data)


async def apply_status(
    cluster: Cluster,
    kind: Kind,
    namespace: str,
    name: str,
    status: Object,
    resource_version: str | None = None,
) -> None:
    """Store the whole status of one of our own kinds, by server-side apply.

    With a resource version only over that one: Conflict where the object was written since.
    """
    metadata = {"namespace": namespace, "name": name}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    manifest = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": metadata,
        "status": status,
    }
    await cluster.apply(manifest, subresource="status")


def _answer(method: str, path: str, status: int, data: bytes) -> dict[str, Any]:
    """Body of a good answer; the error that a bad one stands for."""
    try:
        document = json.loads(data) if data else {}
    except ValueError:
        document = {}
    if 200 <= status < 300:
        return dict(document)
    reason = str(document.get("message") or data[:200].decode(errors="replace"))
    message = f"{method} {path}: {status}: {reason}"
    if status == 409:
        raise Conflict(message, delay_seconds=1.0)
    if status == 429 or status >= 500:
        raise ApiUnavailable(message)
    raise ApiRejected(status, message)
