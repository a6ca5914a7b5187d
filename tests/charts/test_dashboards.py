"""Every panel and recording, evaluated with the metrics of every vLLM release that is supported.

Where a release does not export what a panel asks for, and the tuner's table says so, the panel is
empty; everywhere else it has a number.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvserving_kernels.plugin.metrics import RuntimeMetrics
from kvserving_operator.metrics import OperatorMetrics, Present
from kvserving_tuner.aliases import SAMPLE_NAMES, SPECS, Kind, Quantity
from kvserving_tuner.scrape import Scrape, parse
from kvserving_tuner.snapshot import take
from observability.dashboards import boards
from observability.panels import ONE, RATE
from observability.promql import selector
from observability.recordings import OURS, recordings
from promkit.promtool import run_tests
from promkit.series import of_expositions
from tunerkit.expositions import as_version, generations, recorded

pytestmark = pytest.mark.prometheus

SERVING = ("team", "chat")
ENGINE = {"job": "engines", "instance": "10.0.0.1:8000", "namespace": "team", "name": "chat",
          "pod": "chat-1"}  # fmt: skip
SCRAPES = 6
CALLS = 'http_requests_total{{handler="/v1/completions",method="POST",status="{}xx"}} {}\n'
GPU = {"series": 'DCGM_FI_DEV_FB_USED{exported_namespace="team",exported_pod="chat-1",gpu="0"}',
       "values": "1024x6"}  # fmt: skip


def plugin_text(number: int) -> str:
    """What the plugin adds to an engine's metrics."""
    registry = CollectorRegistry()
    metrics = RuntimeMetrics(registry)
    metrics.show(
        {
            "effective": {
                "kv_cache_dtype": "int8",
                "eviction": {"policy": "None"},
                "max_active_seqs": 16,
            },
            "capacity": {"block_size": 64},
            "counters": {"evicted_blocks": number, "saturated_values": number, "switches": number},
        }
    )
    metrics.count_probe_tokens("prefill", "int8", 100 * number)
    # The time at which a counter began differs from run to run.
    lines = generate_latest(registry).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "_created" not in line)


def engine_texts(version: str, generation: str) -> list[str]:
    """One engine's metrics at each scrape: at the first nothing has happened yet."""
    texts = [
        relevant(as_version(recorded(number), version, generation)) for number in range(SCRAPES)
    ]
    texts[0] = re.sub(r" \S+$", " 0.0", texts[0], flags=re.MULTILINE)
    return [
        text + CALLS.format(2, 10 * number) + CALLS.format(5, number) + plugin_text(number)
        for number, text in enumerate(texts)
    ]


def relevant(text: str) -> str:
    """What the tuner's table knows of an engine's metrics."""
    lines = (line for line in text.splitlines() if line.partition("{")[0] in SAMPLE_NAMES)
    return "\n".join(lines) + "\n"


def operator_texts() -> list[str]:
    """The operator's metrics at each scrape, with a trial under way."""
    metrics, texts = OperatorMetrics(), []
    labels = {
        metrics.condition: ("QualityGate", "False", "Failed"),
        metrics.info: ("tiny", "Auto", "int8", "None"),
        metrics.decision: ("Hold", "Healthy", "Healthy"),
        metrics.trial: ("chat-1", "Running", "0"),
        metrics.quality_drop: ("ServedNeedle512", "Trial"),
        metrics.quality_bound: ("ServedNeedle512", "Trial"),
        metrics.quality_samples: ("ServedNeedle512", "Trial"),
        metrics.guard_rise: ("TTFT",),
        metrics.guard_bound: ("TTFT",),
    }
    for member in vars(metrics).values():
        if isinstance(member, Present):
            member.show(*SERVING, {labels.get(member, ()): 1})
    for number in range(SCRAPES):
        for gauge in (
            metrics.last_tick,
            metrics.last_observation,
            metrics.wanted_engines,
            metrics.ready_engines,
            metrics.slo_percentile,
        ):
            gauge.labels(*SERVING).set(95)
        metrics.ticks.labels("ok").inc()
        metrics.tick_seconds.observe(0.1 * number)
        metrics.decisions.labels(*SERVING, "Hold", "Healthy").inc()
        metrics.rollbacks.labels(*SERVING, "Promoted").inc()
        for verdict in ("Promoted", "RolledBack", "Void"):
            metrics.trials.labels(*SERVING, verdict).inc()
        texts.append(generate_latest(metrics.registry).decode())
    return texts


def releases() -> dict[str, list[str]]:
    """Releases that differ in what they export, with the metrics of an engine."""
    found: dict[tuple[str, ...], str] = {}
    for version, generation in generations():
        texts = tuple(engine_texts(version, generation))
        found.setdefault(texts, f"vLLM {version} {generation}")
    return {name: list(texts) for texts, name in found.items()}


def missing(text: str) -> set[Quantity]:
    """What a release is known not to export."""
    scrape = parse(text, 1.0)
    assert isinstance(scrape, Scrape)
    gaps = take(scrape).gaps
    assert all(SPECS[quantity].absent for quantity in gaps)
    return set(gaps)


def used(expression: str) -> set[Quantity]:
    """Quantities of engines that an expression needs."""
    return {
        quantity
        for quantity, spec in SPECS.items()
        for matchers in (ONE, OURS)
        if all(
            selector(alias, matchers, "_bucket" if spec.kind is Kind.HISTOGRAM else "")
            in expression
            for alias in spec.aliases
        )
    }


def expression_test(expression: str, empty: bool) -> dict[str, Any]:
    """Ask for a result that has at least one number, or for none."""
    for variable, value in ((RATE, "10m"), ("$namespace", "team"), ("$name", "chat")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return {
        "expr": f"count(({expression}) >= -Inf) > bool 0",
        "eval_time": f"{SCRAPES - 1}m",
        "exp_samples": [] if empty else [{"labels": "{}", "value": 1}],
    }


def test_releases_differ() -> None:
    assert len(releases()) > 5


def asked(board: str) -> list[tuple[str, str]]:
    """Expressions of a dashboard or of the recordings, each with the text that its needs are in."""
    if board == "recordings":
        return [(each.record, each.expr) for each in recordings()]
    found = [
        query.expr for row in boards()[board].values() for panel in row for query in panel.queries
    ]
    return [(expr, expr) for expr in found]


@pytest.mark.parametrize("board", [*boards(), "recordings"])
def test_every_expression_has_numbers_with_every_release(
    board: str, render: Any, tmp_path: Path
) -> None:
    manifests = render({"prometheusRule": {"enabled": True}})
    (rule,) = [each for each in manifests if each["kind"] == "PrometheusRule"]
    operator = of_expositions(operator_texts(), {"job": "operator", "instance": "10.0.0.2:9090"})
    tests = []
    for name, texts in releases().items():
        gaps = missing(texts[-1])
        tests.append(
            {
                "name": f"{board}, {name}",
                "interval": "1m",
                "input_series": [*of_expositions(texts, ENGINE), *operator, GPU],
                "promql_expr_test": [
                    expression_test(expr, bool(used(needs) & gaps)) for expr, needs in asked(board)
                ],
            }
        )
    assert any(used(needs) for _, needs in asked(board)) == (board != "quality")
    run_tests(tmp_path, rule["spec"], tests)
