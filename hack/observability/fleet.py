"""Dashboard of all KVServings."""

from kvserving_tuner.aliases import Quantity
from observability.panels import KNOWN, ONE, RATE, Chart, Number, Query, Rows, Table
from observability.promql import SERVING, by, each, quantile

UID = "kvserving-fleet"
TITLE = "KVServing / Fleet"
ABOUT = "Every KVServing: whether it serves, how full its cache is, how fast it answers."
_LEGEND = "{{namespace}}/{{name}}"


def _of_serving(metric: str, more: str = "") -> str:
    return by(SERVING, "max", f"{metric}{{{ONE}{more}}}")


def _count(condition: str, status: str) -> str:
    """How many KVServings have a condition; 0 for none, where any is known."""
    found = _of_serving("kvserving_condition", f',type="{condition}",status="{status}"')
    return f"count({found}) or count({_of_serving(KNOWN)}) * 0"


def rows() -> Rows:
    """Give its panels, by row."""
    return {
        "Now": (
            Number("KVServings", Query(f"count({_of_serving(KNOWN)})")),
            Number(
                "Ready engines", Query(f"sum({_of_serving('kvserving_operator_ready_engines')})")
            ),
            Number(
                "Wanted engines", Query(f"sum({_of_serving('kvserving_operator_wanted_engines')})")
            ),
            Number("Degraded", Query(_count("Degraded", "True"))),
            Number("Without metrics", Query(_count("MetricsAvailable", "False"))),
            Number("Rolled back", Query(_count("RolledBack", "True"))),
        ),
        "What runs": (
            Table(
                "Formats in force",
                Query(f"kvserving_info{{{ONE}}}"),
                ("namespace", "name", "model", "kv_cache_dtype", "eviction", "mode"),
                "As the engines report them; Mixed where they differ.",
            ),
            Table(
                "What needs a look",
                Query(
                    f'kvserving_condition{{{ONE},type=~"Degraded|RolledBack",status="True"}}\n'
                    f'or kvserving_condition{{{ONE},type=~"Ready|MetricsAvailable|QualityGate",'
                    'status="False"}'
                ),
                ("namespace", "name", "type", "status", "reason"),
                "Conditions that are not as they should be; empty while all is well.",
            ),
        ),
        "Load": (
            Chart(
                "KV cache use",
                (Query(by(SERVING, "max", each(Quantity.KV_USAGE, ONE)), _LEGEND),),
                "percentunit",
                "Of the fullest engine.",
                1,
            ),
            Chart(
                "Requests waiting for room",
                (Query(by(SERVING, "sum", each(Quantity.WAITING, ONE)), _LEGEND),),
            ),
            Chart(
                "Requests running",
                (Query(by(SERVING, "sum", each(Quantity.RUNNING, ONE)), _LEGEND),),
            ),
        ),
        "Service": (
            Chart(
                "Time to first token, p95",
                (Query(quantile(0.95, Quantity.TTFT, ONE, RATE), _LEGEND),),
                "s",
            ),
            Chart(
                "Time per output token, p95",
                (Query(quantile(0.95, Quantity.TPOT, ONE, RATE), _LEGEND),),
                "s",
            ),
            Chart(
                "Tokens generated per second",
                (Query(_rate(Quantity.GENERATION_TOKENS), _LEGEND),),
            ),
            Chart("Preemptions per second", (Query(_rate(Quantity.PREEMPTIONS), _LEGEND),)),
            Chart("Requests finished per second", (Query(_rate(Quantity.FINISHED), _LEGEND),)),
            Chart(
                "Answers 5xx per second",
                (Query(_rate(Quantity.HTTP_ERRORS), _LEGEND),),
                about="Of the OpenAI API. Empty until an engine's first request.",
            ),
        ),
        "Operator": (
            Chart(
                "Looks per second, by result",
                (
                    Query(
                        by("result", "sum", f"rate(kvserving_operator_ticks_total[{RATE}])"),
                        "{{result}}",
                    ),
                ),
            ),
            Chart(
                "Duration of a look, p95",
                (
                    Query(
                        "histogram_quantile(0.95, "
                        + by("le", "sum", f"rate(kvserving_operator_tick_seconds_bucket[{RATE}])")
                        + ")",
                        "p95",
                    ),
                ),
                "s",
            ),
            Chart(
                "Age of the last look",
                (
                    Query(
                        "time() - " + _of_serving("kvserving_operator_last_tick_timestamp_seconds"),
                        _LEGEND,
                    ),
                ),
                "s",
            ),
        ),
    }


def _rate(quantity: Quantity) -> str:
    return by(SERVING, "sum", each(quantity, ONE, f"rate({{}}[{RATE}])"))
