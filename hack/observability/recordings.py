"""What alerts compare: engines' numbers by KVServing, and the targets that these have."""

from dataclasses import dataclass

from kvserving_tuner.aliases import Quantity
from observability.promql import ENGINE, SERVING, by, each, quantile

OURS = 'name!=""'
"""Engines that a KVServing owns: the PodMonitor names it."""
PERCENTILES = (50, 75, 90, 95, 99)
"""Quantiles that are recorded. A target's percentile is held against the largest that is not
above it: where that one is late, so is the target's own."""
REMEMBERED = "1h"
"""How long targets outlive an operator that has gone: engines are watched on meanwhile."""


@dataclass(frozen=True)
class Recording:
    """One series that is computed ahead."""

    record: str
    expr: str


def recordings() -> tuple[Recording, ...]:
    """Give all of them in the order in which they build on each other."""
    generated = each(Quantity.GENERATION_TOKENS, OURS, "rate({}[5m])")
    return (
        Recording("kvs:slo_percentile:max", _remembered("kvserving_slo_percentile")),
        Recording("kvs:slo_ttft_seconds:max", _target("ttft")),
        Recording("kvs:slo_tpot_seconds:max", _target("tpot")),
        Recording("kvs:kv_usage:max", by(SERVING, "max", each(Quantity.KV_USAGE, OURS))),
        Recording("kvs:requests_running:sum", by(SERVING, "sum", each(Quantity.RUNNING, OURS))),
        Recording("kvs:requests_waiting:sum", by(SERVING, "sum", each(Quantity.WAITING, OURS))),
        Recording(
            "kvs:generation_tokens_per_engine:rate5m",
            by(SERVING, "avg", by(ENGINE, "sum", generated)),
        ),
        Recording(
            "kvs:generation_tokens_per_engine:peak1d",
            "max_over_time(kvs:generation_tokens_per_engine:rate5m[1d])",
        ),
        _at_percentile("ttft", Quantity.TTFT),
        _at_percentile("tpot", Quantity.TPOT),
    )


def _remembered(metric: str) -> str:
    """Give the operator's present value, or the last one of an operator that has gone."""
    return (
        f"{by(SERVING, 'max', metric)}\n"
        f"or on ({SERVING}) {by(SERVING, 'max', f'last_over_time({metric}[{REMEMBERED}])')}"
    )


def _target(latency: str) -> str:
    """Give the target of each KVServing; the default where its spec has none."""
    metric, known = f"kvserving_slo_{latency}_seconds", "kvserving_slo_percentile"
    default = f"* 0 + <<{latency}Milliseconds>> / 1000"
    return "\n".join(
        (
            by(SERVING, "max", metric),
            f"or on ({SERVING}) {by(SERVING, 'max', known)} {default}",
            f"or on ({SERVING}) {by(SERVING, 'max', f'last_over_time({metric}[{REMEMBERED}])')}",
            f"or on ({SERVING}) kvs:slo_percentile:max {default}",
        )
    )


def _at_percentile(latency: str, quantity: Quantity) -> Recording:
    """Give a latency of each KVServing at the percentile of its target."""
    ends = (*PERCENTILES[1:], 101)
    parts = (
        f"{quantile(low / 100, quantity, OURS, '5m')}\n"
        f"and on ({SERVING}) (kvs:slo_percentile:max >= {low} < {high})"
        for low, high in zip(PERCENTILES, ends, strict=True)
    )
    return Recording(f"kvs:{latency}_seconds:percentile", "\nor\n".join(parts))
