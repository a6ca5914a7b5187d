"""Calls to a cluster, and the one module that makes them: by kubectl itself.

Whoever can run a plugin has kubectl. So credentials, proxies, contexts and logins by another
program are kubectl's, word for word, and the plugin starts without a client of its own
(docs/decisions/0032-a-plugin-that-calls-kubectl.md).
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from kvserving_kubectl.errors import NoConnection
from kvserving_kubectl.failures import READ_CONFIG, Call, failure
from kvserving_kubectl.resources import Resource

Object = dict[str, Any]


class Api(Protocol):
    """What commands ask of a cluster; all methods raise errors of `errors.py`."""

    def default_namespace(self) -> str:
        """Namespace of the kubeconfig's context."""

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object; NotFound where there is none."""

    def list(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Objects of a namespace; of all where it is empty."""

    def text(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        query: Mapping[str, str] | None = None,
    ) -> str:
        """What a subresource answers: a log, or what is behind a proxy."""

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Merge-patch one object; with `dry_run` the server checks it and stores nothing."""

    def apply_dry_run(self, manifest: Mapping[str, Any], namespace: str) -> Object:
        """What `kubectl apply` would store; nothing is."""

    def server(self) -> str:
        """Version of the API server."""


@dataclass(frozen=True)
class Connection:
    """Which cluster, and as whom; empty for what the kubeconfig says."""

    kubeconfig: str = ""
    context: str = ""
    request_timeout: str = "30s"
    user: str = ""
    """Whom to impersonate."""

    def flags(self) -> list[str]:
        """Flags of kubectl."""
        given = {
            "--kubeconfig": self.kubeconfig,
            "--context": self.context,
            "--as": self.user,
        }
        found = [f"{flag}={value}" for flag, value in given.items() if value]
        return [*found, f"--request-timeout={self.request_timeout}"]


class KubectlApi:
    """The real thing."""

    def __init__(self, connection: Connection, kubectl: str = "kubectl") -> None:
        self._connection = connection
        self._kubectl = kubectl

    def default_namespace(self) -> str:
        """Namespace of the kubeconfig's context; `default` where it names none."""
        call = Call(READ_CONFIG, None, "", "")
        found = self._run(["config", "view", "--minify", "-o", "jsonpath={..namespace}"], call)
        return found.strip() or "default"

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object; NotFound where there is none."""
        path = resource.path(namespace, name)
        return self._json(["get", "--raw", path], Call("get", resource, namespace, name))

    def list(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Objects of a namespace; of all where it is empty."""
        path = resource.path(namespace) + (f"?{urlencode(query)}" if query else "")
        answer = self._json(["get", "--raw", path], Call("list", resource, namespace, ""))
        kind = str(answer.get("kind", "")).removesuffix("List")
        head = {"apiVersion": answer.get("apiVersion"), "kind": kind}
        return [{**head, **item} for item in answer.get("items") or ()]

    def text(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        query: Mapping[str, str] | None = None,
    ) -> str:
        """What a subresource answers: a log, or what is behind a proxy."""
        path = resource.path(namespace, name, subresource)
        path += f"?{urlencode(query)}" if query else ""
        call = Call("get", resource, namespace, name.partition(":")[0], subresource.split("/")[0])
        return self._run(["get", "--raw", path], call)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Merge-patch one object; with `dry_run` the server checks it and stores nothing."""
        command = ["patch", resource.full_name, name, "-n", namespace, "--type=merge", "-o", "json"]
        command += ["-p", json.dumps(patch)]
        command += [f"--subresource={subresource}"] if subresource else []
        command += ["--dry-run=server"] if dry_run else []
        return self._json(command, Call("patch", resource, namespace, name, subresource))

    def apply_dry_run(self, manifest: Mapping[str, Any], namespace: str) -> Object:
        """What `kubectl apply` would store; nothing is."""
        command = ["apply", "-n", namespace, "-f", "-", "--dry-run=server", "-o", "json"]
        call = Call("create", None, namespace, str(manifest["metadata"]["name"]))
        return self._json(command, call, stdin=json.dumps(manifest))

    def server(self) -> str:
        """Version of the API server."""
        answer = self._json(["get", "--raw", "/version"], Call("get", None, "", ""))
        return str(answer.get("gitVersion", "unknown"))

    def _json(self, command: Sequence[str], call: Call, stdin: str | None = None) -> Object:
        text = self._run(command, call, stdin)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NoConnection(f"expected a JSON object from kubectl, got {text[:200]!r}")
        return found

    def _run(self, command: Sequence[str], call: Call, stdin: str | None = None) -> str:
        program = shutil.which(self._kubectl)
        if program is None:
            raise NoConnection(f"{self._kubectl} is not on PATH; the plugin calls it")
        done = subprocess.run(
            [program, *self._connection.flags(), *command],
            input=stdin, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise failure(call, done.stderr, self._connection.context)
        return done.stdout
