"""The whole operator process, kopf and HTTP client included, against an emulated API server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import kmock
import kopf
from kubernetes.aio import client

from kvserving_operator.cluster import Cluster, KubernetesCluster
from kvserving_operator.handlers import Operator, register
from kvserving_operator.kinds import Kind
from kvserving_operator.settings import Settings
from operatorkit.rights import Right, owning
from operatorkit.specs import NAME, NAMESPACE, serving_body

SERVING = ("kvserving.dev/v1alpha1/kvservings", NAMESPACE, NAME)
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class ApplyingEmulator(kmock.KubernetesEmulator):
    """Adds what the emulator lacks: apply creates what is missing, and objects have identities.

    Notes the rights that a real API server would have asked for.
    """

    counter = itertools.count(1)
    asked: ClassVar[set[Right]] = set()
    """By all emulators of the process."""

    async def _handle(self, request: Any) -> Any:
        applied = request.headers.get("Content-Type") == "application/apply-patch+yaml"
        key = (request.resource, request.namespace, request.name)
        missing = key not in self._objects or self._objects[key].deleted
        self._note(request, creates=applied and missing and not request.subresource)
        if request.method == "PUT" and request.name:
            object.__setattr__(request, "action", kmock.action.UPDATE)
        if request.method == "PATCH" and applied and not request.subresource:
            if missing:
                self._objects[key] = self._stamped(request.data)
                event = {"type": "ADDED", "object": self._objects[key].raw}
                await self._buses[request.resource].put(event)
        elif request.method == "POST" and isinstance(request.data, dict):
            request.data.update(self._stamped(request.data))
        return await super()._handle(request)

    def _note(self, request: Any, *, creates: bool) -> None:
        found = request.resource
        if found is None or not isinstance(found.plural, str):
            return
        verb = VERBS[request.method.value.upper()]
        if verb == "get" and request.name is None:
            verb = "watch" if "watch" in request.params else "list"
        resource = "/".join(part for part in (found.plural, request.subresource) if part)
        self.asked.add(Right(found.group, resource, verb))
        if creates:
            self.asked.add(Right(found.group, resource, "create"))
        if isinstance(request.data, dict) and verb in ("create", "patch"):
            self.asked.update(owning({"metadata": {}} | request.data))

    def _stamped(self, data: dict[str, Any]) -> dict[str, Any]:
        number = next(self.counter)
        stamp = {"uid": f"uid-{number}", "resourceVersion": str(number), "generation": 1}
        stamp["creationTimestamp"] = "2026-11-29T20:00:00Z"
        return {**data, "metadata": {**stamp, **data["metadata"]}}


def fill(api: Any) -> None:
    """Have an API server know our kinds and hold one KVServing."""
    for kind in Kind:
        group = kind.api_version
        api.resources[f"{group}/{kind.value.plural}"] = {
            "namespaced": True, "kind": kind.name, "singular": kind.name.lower(),
            "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"],
            "shortnames": [], "categories": [], "subresources": ["status"],
        }  # fmt: skip
    for plural, name in (("v1/namespaces", "Namespace"), ("v1/events", "Event")):
        api.resources[plural] = {
            "namespaced": name == "Event", "kind": name, "singular": name.lower(),
            "verbs": ["get", "list", "watch", "create", "patch"],
            "shortnames": [], "categories": [], "subresources": [],
        }  # fmt: skip
    body = serving_body(tuning={"mode": "Off"})
    body["metadata"] |= {"resourceVersion": "1", "creationTimestamp": "2026-11-29T20:00:00Z"}
    api.objects[SERVING] = body


def operator_for(api: Any, **changes: Any) -> Operator:
    """Operator that talks to this API server, with other settings than the defaults."""
    defaults = {
        "tick_seconds": 0.2,
        "metrics_listen_port": 0,
        "lease_seconds": 30,
        "identity": "one",
    }
    settings = Settings.model_validate(defaults | changes)

    async def connect(resources: AsyncExitStack) -> Cluster:
        configuration = client.Configuration(host=str(api.url).rstrip("/"))
        cluster = KubernetesCluster(client.ApiClient(configuration), 5.0)
        return await resources.enter_async_context(cluster)

    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=str(api.url).rstrip("/"))

    return Operator(settings, connect, login)


def kopf_identity(operator: Operator) -> Any:
    """Kopf wants its own type of a name."""
    return operator.settings.identity


@asynccontextmanager
async def running(operator: Operator, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Let an operator run; its task."""
    registry = kopf.OperatorRegistry()
    register(registry, operator)
    namespaces = operator.settings.namespaces
    task = asyncio.create_task(
        kopf.operator(
            registry=registry,
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            stop_flag=operator.stop,
            identity=kopf_identity(operator),
            **options,
        )
    )
    try:
        yield task
    finally:
        operator.stop.set()
        await asyncio.wait_for(task, 60)


async def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> None:
    """Wait for a condition; AssertionError where it does not come."""
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def exists(api: Any, key: tuple[str, str, str]) -> bool:
    """Whether an API server holds an object."""
    try:
        return not api.objects[key].deleted
    except KeyError:
        return False


def checks(api: Any) -> list[tuple[Any, Any, Any]]:
    """Check pods by key."""
    return [key for key in api.objects if "preflight" in key[2] and not api.objects[key].deleted]


def condition(api: Any, type: str) -> dict[str, Any]:
    """One condition of the KVServing, or nothing."""
    found = api.objects[SERVING].raw.get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == type), {})


def finish_checks(api: Any) -> None:
    """Let every check pod pass."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    for key in checks(api):
        status = {
            "phase": "Succeeded",
            "containerStatuses": [{"name": "preflight", "state": ended}],
        }
        api.objects[key].patch({"status": status})
