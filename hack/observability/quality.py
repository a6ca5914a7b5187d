"""Dashboard of trials, and of the output quality that probes measure."""

from observability.panels import ONE, RATE, Chart, Number, Query, Rows, Table
from observability.promql import ENGINE, SERVING, by

UID = "kvserving-quality"
TITLE = "KVServing / Trials and quality"
ABOUT = "Changes under test: what they cost in quality and in service, and how they ended."
_CRITERION = "{{namespace}}/{{name}} {{criterion}}"
_GUARD = "{{namespace}}/{{name}} {{guard}}"


def rows() -> Rows:
    """Give its panels, by row."""
    return {
        "Trials": (
            Table(
                "Under way",
                Query(f"kvserving_trial{{{ONE}}}"),
                ("namespace", "name", "trial", "state", "step"),
                "Empty while no change is tried.",
            ),
            Table(
                "Gate",
                Query(f'kvserving_condition{{{ONE},type=~"QualityGate|RolledBack"}}'),
                ("namespace", "name", "type", "status", "reason"),
            ),
            Number("Promoted in a day", Query(_ended("Promoted")), width=6),
            Number("Rolled back in a day", Query(_ended("RolledBack")), width=6),
            Number(
                "Without a verdict in a day", Query(_ended("Inconclusive|Void|Failed")), width=6
            ),
            Number(
                "Rolled back after the promotion in a day",
                Query(f'sum(increase(kvserving_rollbacks_total{{{ONE},stage="Promoted"}}[1d]))'),
                width=6,
            ),
        ),
        "Quality": (
            Chart(
                "Drop that probes measure",
                (Query(_by_criterion("drop_ratio"), _CRITERION),),
                "percentunit",
                "Of the trial under way, or else of what was promoted. Empty while there is "
                "neither. Negative is better than 16 bits.",
                least=None,
                width=12,
            ),
            Chart(
                "Drop over what is accepted",
                (
                    Query(
                        f"{_by_criterion('drop_ratio')}\n/ on ({SERVING}, criterion, stage) "
                        f"{_by_criterion('max_drop_ratio')}",
                        _CRITERION,
                    ),
                ),
                least=None,
                about="Above 1 a criterion is broken, as far as its samples tell.",
                width=12,
            ),
            Chart(
                "Samples",
                (Query(_by_criterion("samples"), _CRITERION),),
                width=12,
            ),
            Chart(
                "Tokens of probes per second",
                (
                    Query(
                        by(ENGINE, "sum", f"rate(kvserving:probe_tokens_total{{{ONE}}}[{RATE}])"),
                        "{{pod}}",
                    ),
                ),
                about="What measuring costs engines with the plugin.",
                width=12,
            ),
        ),
        "Service under trial": (
            Chart(
                "Cost of the change over what its guard accepts",
                (
                    Query(
                        f"{_by_guard('rise_ratio')}\n/ on ({SERVING}, guard) "
                        f"{_by_guard('max_rise_ratio')}",
                        _GUARD,
                    ),
                ),
                least=None,
                about="Above 1 a guard is broken, as far as its blocks tell.",
                width=12,
            ),
            Chart(
                "Live changes of format and eviction",
                (
                    Query(
                        by(ENGINE, "sum", f"increase(kvserving:switches_total{{{ONE}}}[{RATE}])"),
                        "{{pod}}",
                    ),
                ),
                width=12,
            ),
        ),
    }


def _ended(verdicts: str) -> str:
    return f'sum(increase(kvserving_trials_total{{{ONE},verdict=~"{verdicts}"}}[1d]))'


def _by_criterion(what: str) -> str:
    return by(f"{SERVING}, criterion, stage", "max", f"kvserving_quality_{what}{{{ONE}}}")


def _by_guard(what: str) -> str:
    return by(f"{SERVING}, guard", "max", f"kvserving_guard_{what}{{{ONE}}}")
