"""The few API calls the tool needs, over the standard library's HTTPS client."""

import base64
import http.client
import json
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import ApiError, LocalClusterError

FIELD_MANAGER = "kvserving-localcluster"
# Plural of each kind the manifests use, and whether it lives in a namespace.
KINDS: Mapping[str, tuple[str, bool]] = {
    "ServiceAccount": ("serviceaccounts", True),
    "ConfigMap": ("configmaps", True),
    "Service": ("services", True),
    "Deployment": ("deployments", True),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "StorageClass": ("storageclasses", False),
    "PersistentVolume": ("persistentvolumes", False),
}


@dataclass(frozen=True)
class ObjectName:
    """What names an object in the API."""

    api_version: str
    kind: str
    name: str
    namespace: str | None

    @property
    def path(self) -> str:
        """Path of the object below the server's address."""
        if self.kind not in KINDS:
            raise LocalClusterError(f"kind {self.kind}: expected one of {', '.join(KINDS)}")
        plural, namespaced = KINDS[self.kind]
        base = (
            f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        )
        middle = f"/namespaces/{self.namespace or 'default'}" if namespaced else ""
        return f"{base}{middle}/{plural}/{self.name}"


def split_documents(text: str) -> Iterator[str]:
    """The documents of a YAML stream."""
    for document in re.split(r"^---\s*$", text, flags=re.MULTILINE):
        if document.strip():
            yield document


def object_name(document: str) -> ObjectName:
    """Name of the object in one YAML document in block style, as in every file of manifests/."""

    def find(pattern: str) -> str | None:
        match = re.search(pattern, document, flags=re.MULTILINE)
        return match.group(1) if match else None

    metadata = find(r"^metadata:\n((?:  .*\n)+)") or ""

    def inside(key: str) -> str | None:
        match = re.search(rf"^  {key}: (\S+)$", metadata, flags=re.MULTILINE)
        return match.group(1) if match else None

    api_version, kind, name = find(r"^apiVersion: (\S+)$"), find(r"^kind: (\S+)$"), inside("name")
    if not (api_version and kind and name):
        raise LocalClusterError(
            f"manifest without apiVersion, kind or metadata.name:\n{document[:200]}"
        )
    return ObjectName(api_version, kind, name, inside("namespace"))


class KubeApi:
    """A client for one kubeconfig with certificates or a token inline."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._server = str(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        pair = [base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")]
        # The ssl module reads a client's key from a file only.
        handle, name = tempfile.mkstemp()
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(b"".join(pair))
            context.load_cert_chain(name)
        finally:
            os.unlink(name)
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)

    def get(self, path: str, *, timeout_seconds: float = 5.0) -> Any:
        """Answer to GET, decoded from JSON."""
        return json.loads(self._call("GET", path, None, None, timeout_seconds))

    def ready(self) -> bool:
        """Whether the server calls itself ready."""
        try:
            return self._call("GET", "/readyz", None, None, 2.0) == b"ok"
        except ApiError:
            return False

    def apply(self, document: str) -> None:
        """Server-side apply of one YAML document."""
        path = f"{object_name(document).path}?fieldManager={FIELD_MANAGER}&force=true"
        self._call("PATCH", path, document.encode(), "application/apply-patch+yaml", 20.0)

    def merge(self, path: str, patch: Mapping[str, Any]) -> None:
        """JSON merge patch of one object."""
        self._call("PATCH", path, json.dumps(patch).encode(), "application/merge-patch+json", 20.0)

    def _call(
        self, method: str, path: str, body: bytes | None, content: str | None, timeout: float
    ) -> bytes:
        headers = {"Accept": "application/json", **({"Content-Type": content} if content else {})}
        request = urllib.request.Request(
            self._server + path, data=body, method=method, headers=headers
        )
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, f"{method} {path}: {error.code} {_reason(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{method} {self._server}{path}: {error}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]
