"""Dashboard of one KVServing and its engines."""

from kvserving_tuner.aliases import Quantity
from observability.panels import ONE, RATE, Chart, Number, Query, Rows, Table
from observability.promql import ENGINE, SERVING, by, each, quantile

UID = "kvserving-service"
TITLE = "KVServing / Service"
ABOUT = "One KVServing: its engines, its targets, and what the tuner does."
_POD = "{{pod}}"
_GPU_MEMORY = 'DCGM_FI_DEV_FB_USED{%s="$namespace",%s=~"$name-.*"}'


def rows() -> Rows:
    """Give its panels, by row."""
    return {
        "Now": (
            Number("Ready engines", Query(_own("kvserving_operator_ready_engines"))),
            Number("Wanted engines", Query(_own("kvserving_operator_wanted_engines"))),
            Number(
                "KV cache format",
                Query(f"kvserving_info{{{ONE}}}", "{{kv_cache_dtype}}"),
                about="As engines report it; Mixed where they differ.",
                named=True,
            ),
            Number(
                "Tuning",
                Query(f"kvserving_info{{{ONE}}}", "{{mode}}"),
                about="spec.tuning.mode",
                named=True,
            ),
            Number(
                "Age of the last complete observation",
                Query("time() - " + _own("kvserving_operator_last_observation_timestamp_seconds")),
                "s",
            ),
            Number(
                "Decision",
                Query(f"kvserving_decision{{{ONE}}}", "{{action}}: {{reason}}"),
                about="The tuner's latest. None while engines are started or replaced.",
                named=True,
            ),
        ),
        "KV cache": (
            Chart(
                "KV cache use",
                (Query(by(ENGINE, "max", each(Quantity.KV_USAGE, ONE)), _POD),),
                "percentunit",
                most=1,
            ),
            Chart(
                "Requests running, and the cap",
                (
                    Query(by(ENGINE, "sum", each(Quantity.RUNNING, ONE)), _POD),
                    Query(by(ENGINE, "max", each(Quantity.MAX_ACTIVE_SEQS, ONE)), f"cap {_POD}"),
                ),
                about="Engines without the plugin have no live cap.",
            ),
            Chart(
                "Requests waiting for room",
                (Query(by(ENGINE, "sum", each(Quantity.WAITING, ONE)), _POD),),
            ),
            Chart("Preemptions per second", (Query(_rate(Quantity.PREEMPTIONS), _POD),)),
            Chart(
                "Share of prompt tokens found in the prefix cache",
                (
                    Query(
                        f"{_rate(Quantity.PREFIX_HITS)}\n/ on ({ENGINE}) "
                        f"{_rate(Quantity.PREFIX_QUERIES)}",
                        _POD,
                    ),
                ),
                "percentunit",
                most=1,
            ),
            Chart(
                "Blocks evicted per second, and values saturated",
                (
                    Query(_plugin_rate("evicted_blocks"), f"evicted {_POD}"),
                    Query(_plugin_rate("saturated_values"), f"saturated {_POD}"),
                ),
                about="Of engines with the plugin. Values are saturated by a format too narrow "
                "for them.",
            ),
        ),
        "Against its targets": (
            Chart(
                "Time to first token",
                _latency(Quantity.TTFT, "ttft"),
                "s",
                about="A target where spec.slo has one.",
                width=12,
            ),
            Chart(
                "Time per output token",
                _latency(Quantity.TPOT, "tpot"),
                "s",
                about="A target where spec.slo has one.",
                width=12,
            ),
            Chart(
                "Tokens per second",
                (
                    Query(_rate(Quantity.GENERATION_TOKENS), f"generated {_POD}"),
                    Query(_rate(Quantity.PROMPT_TOKENS), f"prompts {_POD}"),
                ),
            ),
            Chart("Requests finished per second", (Query(_rate(Quantity.FINISHED), _POD),)),
            Chart(
                "Share of answers 5xx",
                (
                    Query(
                        f"{_rate(Quantity.HTTP_ERRORS)}\n/ on ({ENGINE}) "
                        f"{_rate(Quantity.HTTP_REQUESTS)}",
                        _POD,
                    ),
                ),
                "percentunit",
                "Of the OpenAI API. Empty until an engine's first request.",
                1,
            ),
        ),
        "Tuner": (
            Chart(
                "Decisions that said something new",
                (
                    Query(
                        by(
                            "action, reason",
                            "sum",
                            f"increase(kvserving_operator_decisions_total{{{ONE}}}[{RATE}])",
                        ),
                        "{{action}}: {{reason}}",
                    ),
                ),
            ),
            Table(
                "Conditions",
                Query(f"kvserving_condition{{{ONE}}}"),
                ("type", "status", "reason"),
                width=8,
            ),
            Chart(
                "GPU memory in use",
                (
                    Query(
                        f"{_GPU_MEMORY % ('exported_namespace', 'exported_pod')}\n"
                        f"or {_GPU_MEMORY % ('namespace', 'pod')}",
                        "{{pod}}{{exported_pod}} GPU {{gpu}}",
                    ),
                ),
                "decmbytes",
                "Empty without NVIDIA's DCGM exporter.",
            ),
        ),
    }


def _own(metric: str) -> str:
    return by(SERVING, "max", f"{metric}{{{ONE}}}")


def _rate(quantity: Quantity) -> str:
    return by(ENGINE, "sum", each(quantity, ONE, f"rate({{}}[{RATE}])"))


def _plugin_rate(counter: str) -> str:
    return by(ENGINE, "sum", f"rate(kvserving:{counter}_total{{{ONE}}}[{RATE}])")


def _latency(quantity: Quantity, latency: str) -> tuple[Query, ...]:
    return (
        *(
            Query(quantile(share, quantity, ONE, RATE), f"p{share * 100:g}")
            for share in (0.5, 0.9, 0.95, 0.99)
        ),
        Query(_own(f"kvserving_slo_{latency}_seconds"), "target"),
    )
