"""Runs a command with the environment that tests against the local cluster need.

KUBECONFIG points at the local cluster, or at KUBECONFIG_EXTERNAL where that is set. The engine and
Prometheus that tests start themselves come from the images loaded into the local cluster.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LOCALCLUSTER = Path(__file__).parent / "localcluster"


def main() -> None:
    """Replace this process by the command."""
    external = os.environ.get("KUBECONFIG_EXTERNAL")
    if external:
        kubeconfig = external
    else:
        command = [sys.executable, str(LOCALCLUSTER), "status", "--json"]
        status = subprocess.run(command, capture_output=True, text=True, check=True)
        kubeconfig = json.loads(status.stdout)["kubeconfig"]
        programs = Path(__file__).parent / "bin"
        os.environ.setdefault("KVSERVING_ENGINE_PYTHON", str(programs / "engine-python"))
        os.environ.setdefault("KVSERVING_PROMETHEUS", str(programs / "prometheus"))
        os.environ.setdefault("KVSERVING_PROMTOOL", str(programs / "promtool"))
    os.environ["KUBECONFIG"] = kubeconfig
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  the caller's own command


if __name__ == "__main__":
    main()
