"""The operator's chart, installed as a user would, through Helm's own SDK."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python as helm

CHART = Path(__file__).parents[2] / "charts" / "kvserving"
NAMESPACE = "kvserving-system"
RELEASE = "kvserving"


def install(kubeconfig: str, values: Mapping[str, Any], timeout_seconds: int = 180) -> None:
    """Install the chart, or upgrade the release that is there, and wait until it runs."""
    with helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as config:
        known = {release["name"] for release in config.list()}
        act = config.upgrade if RELEASE in known else config.install
        act(str(CHART), RELEASE, dict(values), wait="watcher", timeout=timeout_seconds)


def uninstall(kubeconfig: str) -> None:
    """Uninstall the release; the chart keeps its CRDs."""
    with helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as config:
        config.uninstall(RELEASE)
