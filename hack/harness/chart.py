"""The operator's chart, installed as a user would, through Helm's own SDK."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python as helm

from harness.kube import Kube

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "kvserving"
SOURCES = ("operator", "tuner", "kernels/kvserving_kernels/formats", "images/operator")
NAMESPACE = "kvserving-system"
RELEASE = "kvserving"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Label of a namespace in which Kubernetes refuses pods that may do more than they need."""


def local_values() -> dict[str, Any]:
    """Give the values that suit a local cluster.

    The operator's image keeps its tag from build to build, so what it is built from is written
    onto the pod: a new build then replaces the pod. Engines keep every processor of the node busy,
    so the operator's own share must do for a prompt look at them.
    """
    return {
        "podAnnotations": {"kvserving.dev/source": source_hash()},
        "resources": {"requests": {"cpu": "200m"}},
        "gateway": {"enabled": True},
    }


def source_hash() -> str:
    """Give the hash of everything that the operator's image is built from."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def install(
    kubeconfig: str, values: Mapping[str, Any], timeout_seconds: int = 180, chart: Path = CHART
) -> None:
    """Install the chart, or upgrade the release that is there, and wait until it runs."""
    with helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as config:
        known = {release["name"] for release in config.list()}
        act = config.upgrade if RELEASE in known else config.install
        act(str(chart), RELEASE, dict(values), wait="watcher", timeout=timeout_seconds)


def uninstall(kubeconfig: str, timeout_seconds: int = 120) -> None:
    """Uninstall the release, if there is one, and wait for that; the chart keeps its CRDs."""
    with helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as config:
        if RELEASE in {release["name"] for release in config.list()}:
            config.uninstall(RELEASE, wait="watcher", timeout=timeout_seconds)


def kill_operator(kube: Kube) -> None:
    """Take the operator away at once, as a failing node would; its Deployment starts another."""
    kube.run(
        "delete", "pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=kvserving-operator",
        "--grace-period=0", "--force",
    )  # fmt: skip
