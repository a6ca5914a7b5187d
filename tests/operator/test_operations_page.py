"""The page for operators names every metric that there is, and the command that the chart gives."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvserving_kernels.plugin.metrics import RuntimeMetrics
from kvserving_operator.api.reasons import ConditionType
from kvserving_operator.metrics import OperatorMetrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()


def _exported(registry: CollectorRegistry) -> list[str]:
    """Names as /metrics shows them."""
    families = registry.collect()
    return [f.name + ("_total" if f.type == "counter" else "") for f in families]


def _engine_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    RuntimeMetrics(registry)
    return registry


@pytest.mark.parametrize(
    "registry", [OperatorMetrics().registry, _engine_registry()], ids=["operator", "engine"]
)
def test_every_metric_has_a_row(registry: CollectorRegistry) -> None:
    names = _exported(registry)
    assert len(names) >= 4
    assert [] == [name for name in names if f"| `{name}` |" not in PAGE]


def test_every_condition_of_a_serving_has_a_row() -> None:
    types = set(ConditionType) - {ConditionType.ACCEPTED}
    assert [] == [type.value for type in types if f"| `{type.value}` |" not in PAGE]


def test_the_chart_and_the_page_release_a_stuck_serving_alike() -> None:
    patch = """-p '[{"op": "remove", "path": "/metadata/finalizers"}]'"""
    assert patch in PAGE
    assert patch in (ROOT / "charts/kvserving/templates/NOTES.txt").read_text()
