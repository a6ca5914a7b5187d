"""Alerts of the chart. `<<name>>` stands for a threshold that the chart's values set."""

from dataclasses import dataclass
from typing import Final

from kvserving_tuner.aliases import Quantity
from kvserving_tuner.decision import Reason
from kvserving_tuner.settings import Thresholds
from observability.promql import ENGINE, SERVING, by, each
from observability.recordings import OURS

INFO: Final = "info"
WARNING: Final = "warning"
CRITICAL: Final = "critical"

WITHOUT_DATA = (Reason.RUNTIME_UNREADABLE, Reason.CONTRADICTION, Reason.TPOT_UNKNOWN)
"""Reasons to hold for want of a number, beside those of the condition MetricsAvailable."""

_WHO = "{{ $labels.namespace }}/{{ $labels.name }}"
_PERCENT = "{{ $value | humanizePercentage }}"
_SECONDS = "{{ $value | humanizeDuration }}"


@dataclass(frozen=True)
class Alert:
    """One alert: its expression has no result while all is well."""

    name: str
    expr: str
    lasts: str
    """How long it must hold before the alert fires."""
    severity: str
    summary: str
    description: str


def engine_alerts() -> tuple[Alert, ...]:
    """About engines under load, from their own metrics."""
    return (
        Alert(
            "KVServingKVCacheFilling",
            "kvs:kv_usage:max > <<kvUsageInfoPercent>> / 100",
            "15m",
            INFO,
            f"The KV cache of {_WHO} is {_PERCENT} full.",
            "More load, or longer requests, will soon have to wait for room.",
        ),
        Alert(
            "KVServingKVCacheFull",
            "kvs:kv_usage:max > <<kvUsageWarningPercent>> / 100",
            "5m",
            WARNING,
            f"The KV cache of {_WHO} is {_PERCENT} full.",
            "Requests wait for room in the cache, or put each other out of it.",
        ),
        _late("TTFT", "ttft", "The first token"),
        _late("TPOT", "tpot", "Each further token"),
        Alert(
            "KVServingThroughputLow",
            "kvs:generation_tokens_per_engine:rate5m\n"
            f"< on ({SERVING}) <<throughputPercent>> / 100"
            " * kvs:generation_tokens_per_engine:peak1d\n"
            f"and on ({SERVING}) kvs:requests_waiting:sum > 0",
            "10m",
            WARNING,
            f"Engines of {_WHO} generate less than they have shown they can.",
            "Requests wait, and yet an engine generates {{ $value | humanize }} tokens a second, "
            "below <<throughputPercent>> % of the most in a day.",
        ),
        Alert(
            "KVServingPreemptionStorm",
            _storm(Thresholds()),
            "2m",
            WARNING,
            f"Sequences in {{{{ $labels.pod }}}} of {_WHO} evict each other.",
            '{{ $value | printf "%.2f" }} preemptions a second for each running request: they are '
            "computed again and again.",
        ),
        Alert(
            "KVServingEnginesNotScraped",
            f"{by(SERVING, 'max', 'kvserving_operator_ready_engines')} > 0\n"
            f"unless on ({SERVING}) kvs:requests_running:sum",
            "10m",
            WARNING,
            f"Prometheus has no metrics of the engines of {_WHO}.",
            "{{ $value }} engines answer, but alerts about engines cannot fire: is the PodMonitor "
            "installed, and does Prometheus select it?",
        ),
    )


def serving_alerts() -> tuple[Alert, ...]:
    """About KVServings, from what the operator says of them."""
    return (
        Alert(
            "KVServingUnavailable",
            _condition("Ready", "False", 'reason!="ScaledToZero"'),
            "15m",
            CRITICAL,
            f"No engine of {_WHO} answers completions.",
            f"The condition Ready is False: {_reason('Ready')}.",
        ),
        Alert(
            "KVServingDegraded",
            _condition("Degraded", "True"),
            "10m",
            WARNING,
            f"{_WHO} needs a person.",
            f"Part of the service or of its spec is not in force: {_reason('Degraded')}.",
        ),
        Alert(
            "KVServingTunerHolds",
            f"{_condition('MetricsAvailable', 'False')}\nor {by(SERVING, 'max', _held())}",
            "10m",
            WARNING,
            f"The tuner of {_WHO} holds, as numbers are missing.",
            "Nothing is promoted or rolled back meanwhile. MetricsAvailable says "
            f"{_reason('MetricsAvailable')}.",
        ),
        Alert(
            "KVServingQualityDropped",
            _quality(),
            "5m",
            WARNING,
            f"Probes measure a drop of {_PERCENT} in the output quality of {_WHO}.",
            "{{ $labels.criterion }} is beyond what the policy accepts; the judge is not yet "
            "certain enough to roll back.",
        ),
        Alert(
            "KVServingRolledBack",
            f"{by(f'{SERVING}, stage', 'max', 'increase(kvserving_rollbacks_total[1h])')} > 0",
            "0m",
            WARNING,
            f"A change of {_WHO} was rolled back.",
            "It broke a bound of quality or of a guard ({{ $labels.stage }}); the KVTrial has the "
            "numbers.",
        ),
    )


def operator_alerts() -> tuple[Alert, ...]:
    """About the operator itself."""
    last = by(SERVING, "max", "kvserving_operator_last_tick_timestamp_seconds")
    return (
        Alert(
            "KVServingOperatorDeaf",
            f"time() - {last} > <<deafSeconds>>",
            "1m",
            CRITICAL,
            f"The operator has not looked at {_WHO} for {_SECONDS}.",
            "Engines serve on, but nothing is tuned, judged or rolled back, and no edit is "
            "carried out.",
        ),
        Alert(
            "KVServingOperatorDown",
            "absent(kvserving_operator_lease_held == 1)",
            "5m",
            CRITICAL,
            "No KVServing operator is at work.",
            "Or Prometheus does not scrape it. Engines serve on, but new ones do not turn ready, "
            "and nothing is tuned, judged or rolled back.",
        ),
    )


GROUPS: Final = {
    "kvserving-engines": engine_alerts,
    "kvserving-servings": serving_alerts,
    "kvserving-operator": operator_alerts,
}


def alerts() -> tuple[Alert, ...]:
    """Give all alerts."""
    return tuple(alert for group in GROUPS.values() for alert in group())


def _late(short: str, latency: str, what: str) -> Alert:
    return Alert(
        f"KVServing{short}High",
        f"kvs:{latency}_seconds:percentile > on ({SERVING}) kvs:slo_{latency}_seconds:max",
        "5m",
        WARNING,
        f"{what} of {_WHO} takes {_SECONDS} at the target's percentile.",
        f"The target is that of spec.slo, or <<{latency}Milliseconds>> ms where it names none.",
    )


def _storm(limits: Thresholds) -> str:
    """What the tuner calls a storm, over a time that outlasts its own answer to one."""
    counted = by(ENGINE, "sum", each(Quantity.PREEMPTIONS, OURS, "rate({}[2m])"))
    running = by(ENGINE, "sum", each(Quantity.RUNNING, OURS, "avg_over_time({}[2m])"))
    usage = by(ENGINE, "max", each(Quantity.KV_USAGE, OURS, "max_over_time({}[2m])"))
    each_request = limits.storm_preemptions_per_running_second
    return (
        f"{counted}\n"
        f"/ on ({ENGINE}) clamp_min({running}, 1) > {each_request:g}\n"
        f"and on ({ENGINE}) {counted} * 120 >= {limits.storm_minimum_sustained:g}\n"
        f"and on ({ENGINE}) {usage} >= {limits.storm_kv_usage:g}"
    )


def _condition(type: str, status: str, *more: str) -> str:
    matchers = ",".join((f'type="{type}"', f'status="{status}"', *more))
    # Not by reason: where that changes, the alert's waiting would begin anew.
    return by(SERVING, "max", f"kvserving_condition{{{matchers}}}")


def _reason(type: str) -> str:
    """Template that looks a condition's reason up."""
    found = f"kvserving_condition{{namespace='%s',name='%s',type='{type}'}}"
    looked_up = f'printf "{found}" $labels.namespace $labels.name | query'
    return f'{{{{ with {looked_up} }}}}{{{{ . | first | label "reason" }}}}{{{{ end }}}}'


def _held() -> str:
    reasons = "|".join(reason.value for reason in WITHOUT_DATA)
    return f'kvserving_decision{{action="Hold",reason=~"{reasons}"}}'


def _quality() -> str:
    labels = f"{SERVING}, criterion, stage"
    drop, bound, samples = (
        by(labels, "max", f"kvserving_quality_{what}")
        for what in ("drop_ratio", "max_drop_ratio", "samples")
    )
    return f"{drop}\n> on ({labels}) {bound}\nand on ({labels}) {samples} >= <<qualitySamples>>"
