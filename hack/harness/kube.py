"""A cluster as its user meets it: through kubectl."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from harness.errors import CommandError, WaitTimeoutError

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
KUBECTL = Path(sys.executable).with_name("kubectl")
# With its group: another one on the same cluster may have a kind of the same name.
KVSERVING = "kvservings.kvserving.dev"


class Kube:
    """kubectl against one cluster, with JSON in and out; to be closed."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        """Use `kubeconfig`, or the file that the environment variable KUBECONFIG names."""
        self.kubeconfig = kubeconfig or os.environ["KUBECONFIG"]
        # kubectl remembers for minutes which kinds a server has; tests add and remove some.
        self._cache = tempfile.TemporaryDirectory(prefix="kubectl-cache-")

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove what kubectl remembered."""
        self._cache.cleanup()

    def run(self, *args: str, stdin: str | None = None, timeout_seconds: float = 120) -> str:
        """Give the standard output of `kubectl ARGS`; raise CommandError where it fails."""
        command = [str(KUBECTL), "--kubeconfig", self.kubeconfig]
        command += ["--cache-dir", self._cache.name, *args]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(["kubectl", *args], done.returncode, done.stderr)
        return done.stdout

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        """Give one object, or None where it does not exist."""
        text = self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def objects(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Give the objects of a kind in a namespace."""
        text = self.run("get", kind, "-n", namespace, "-l", selector, "-o", "json")
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def apply(self, manifest: Path | str | Mapping[str, Any], namespace: str) -> str:
        """`kubectl apply` a file, a YAML text or an object."""
        if isinstance(manifest, Path):
            return self.run("apply", "-n", namespace, "-f", str(manifest))
        text = manifest if isinstance(manifest, str) else yaml.safe_dump(dict(manifest))
        return self.run("apply", "-n", namespace, "-f", "-", stdin=text)

    def patch(self, kind: str, name: str, namespace: str, patch: Mapping[str, Any]) -> None:
        """Merge-patch one object."""
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(patch))

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace; one that exists is fine, one that is going is waited for."""
        phase = self.run(
            "get", "namespace", name, "--ignore-not-found", "-o", "jsonpath={.status.phase}"
        )
        if phase == "Terminating":
            self.run("wait", "--for=delete", f"namespace/{name}", "--timeout=110s")
        metadata = {"name": name, "labels": dict(labels or {})}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self.run("apply", "-f", "-", stdin=json.dumps(manifest))

    def service_url(self, name: str, namespace: str) -> str:
        """Give the URL of a Service's first port by its cluster address."""
        service = self.get("service", name, namespace)
        if service is None:
            raise WaitTimeoutError(f"service {namespace}/{name} does not exist")
        spec = service["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def events(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """Give the Events about one object, oldest first."""
        text = self.run(
            "get", "events", "-n", namespace, "-o", "json",
            "--field-selector", f"involvedObject.name={name}",
        )  # fmt: skip
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return sorted(items, key=lambda event: str(event["metadata"]["creationTimestamp"]))


def condition(obj: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """Give one condition of an object's status, or an empty dict where it is not set."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return next((dict(item) for item in conditions if item["type"] == kind), {})


def wait_for(
    look: Callable[[], T | None], what: str, timeout_seconds: float, every_seconds: float = 1.0
) -> T:
    """Call `look` until it gives something true, and return that; raise WaitTimeoutError."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"{what}: not within {timeout_seconds:.0f} s; last seen: {seen!r}"
            )
        time.sleep(every_seconds)
