"""With KUBECONFIG_EXTERNAL set, another cluster is used: nothing is built, started or loaded."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from localcluster.errors import LocalClusterError, MissingPackagesError
from localcluster.images import IMAGES
from localcluster.shell import run

VARIABLE = "KUBECONFIG_EXTERNAL"


def kubeconfig_from_environment(environment: Mapping[str, str]) -> Path | None:
    """The other cluster's kubeconfig, None when the local cluster is meant."""
    named = environment.get(VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.is_file():
        raise LocalClusterError(f"{VARIABLE}: expected the path of a kubeconfig, got {named!r}")
    return path


def run_command(command: str, kubeconfig: Path, *, as_json: bool) -> int:
    """Do what makes sense for a cluster that is not ours."""
    if command == "down":
        raise LocalClusterError(
            f"{VARIABLE} is set: this tool does not take down a cluster it did not start"
        )
    if command == "gateway":
        raise LocalClusterError(f"{VARIABLE} is set: install a gateway there by its own means")
    if command == "load":
        print("An external cluster loads its own images. Its nodes must be able to get:")
        print("\n".join(image.reference for image in IMAGES))
        return 0
    if shutil.which("kubectl") is None:
        raise MissingPackagesError("kubectl is needed to look at an external cluster")
    nodes = json.loads(
        run(
            ["kubectl", "--kubeconfig", str(kubeconfig), "get", "nodes", "-o", "json"],
            timeout_seconds=30,
        )
    )
    ready = {
        item["metadata"]["name"]: _ready(item["status"]["conditions"]) for item in nodes["items"]
    }
    healthy = bool(ready) and all(ready.values())
    if as_json:
        print(
            json.dumps(
                {"healthy": healthy, "kubeconfig": str(kubeconfig), "nodes": ready}, indent=2
            )
        )
    else:
        for name, is_ready in ready.items():
            print(f"node {name:21}{'ready' if is_ready else 'not ready'}")
        print(f"export KUBECONFIG={kubeconfig}")
    return 0 if healthy else 1


def _ready(conditions: list[dict[str, str]]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
