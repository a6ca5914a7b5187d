"""The chart, rendered by Helm's own engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts" / "kvserving"
NAMESPACE = "kvserving-system"

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def chart() -> Iterator[helm.Chart]:
    chart = helm.Chart.load(str(CHART))
    yield chart
    chart.close()


@pytest.fixture(scope="session")
def render(chart: helm.Chart) -> Render:
    """Render the chart with values, after Helm's own check of them, into manifests."""

    def manifests(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        chart.validate_schema(chart.merge_values(values or {}))
        texts = chart.render(values or {}, name="kvserving", namespace=NAMESPACE)
        return [
            manifest
            for path, text in sorted(texts.items())
            if path.endswith(".yaml")
            for manifest in yaml.safe_load_all(text)
            if manifest
        ]

    return manifests
