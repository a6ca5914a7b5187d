"""Which metric carries a quantity, in every vLLM from 0.6 to 0.33.

vLLM renames metrics: deprecated in one minor version, hidden in the next, removed in the one after.
Readers that knew one name only have scaled fleets on nothing, so each quantity lists its names
newest first; the first one present wins, and a required quantity under none of them is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Quantity(StrEnum):
    """What the tuner reads from an engine."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"
    PREEMPTIONS = "preemptions"
    GENERATION_TOKENS = "generation_tokens"
    PROMPT_TOKENS = "prompt_tokens"
    FINISHED = "finished"
    FAILED = "failed"
    HTTP_REQUESTS = "http_requests"
    HTTP_ERRORS = "http_errors"
    ITERATIONS = "iterations"
    PREFIX_QUERIES = "prefix_queries"
    PREFIX_HITS = "prefix_hits"
    TTFT = "ttft"
    TPOT = "tpot"
    PROMPT_LENGTHS = "prompt_lengths"
    ANSWER_LENGTHS = "answer_lengths"
    MAX_ACTIVE_SEQS = "max_active_seqs"


class Kind(StrEnum):
    """How a metric behaves over time."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Alias:
    """One exposed name (of a histogram: without its suffix), and labels its series must carry."""

    name: str
    where: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, str] = field(default_factory=dict)
    """Labels by how their values must begin."""
    summed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of the series that are summed, by how their values may begin. The others only tell
    that the metric is there: a series begins with its first event, and is 0 before."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Names of one quantity, newest first.

    `required` quantities are those without which no change is ever decided. `absent` says in
    words where an engine is known not to export the quantity at all.
    """

    kind: Kind
    aliases: tuple[Alias, ...]
    required: bool = False
    absent: str | None = None
    of_server: bool = False
    """Whether the HTTP server counts it, for all ranks behind it together."""


def _names(*names: str) -> tuple[Alias, ...]:
    return tuple(Alias(name) for name in names)


def _http(*statuses: str) -> Alias:
    """Requests to the OpenAI API that were answered with a status that begins so."""
    return Alias(
        "http_requests_total", {"method": "POST"}, {"handler": "/v1/"}, {"status": statuses}
    )


_FROM_FIRST_REQUEST = "the HTTP server exports it from its first request on"

SPECS: Mapping[Quantity, Spec] = {
    Quantity.RUNNING: Spec(Kind.GAUGE, _names("vllm:num_requests_running"), required=True),
    # From 0.20 the plain gauge also counts requests that wait for something other than capacity.
    Quantity.WAITING: Spec(
        Kind.GAUGE,
        (
            Alias("vllm:num_requests_waiting_by_reason", {"reason": "capacity"}),
            Alias("vllm:num_requests_waiting"),
        ),
        required=True,
    ),
    Quantity.KV_USAGE: Spec(
        Kind.GAUGE,
        _names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        required=True,
    ),
    Quantity.PREEMPTIONS: Spec(
        Kind.COUNTER,
        _names("vllm:num_preemptions_total"),
        required=True,
        absent="the V1 engine exports it from vLLM 0.8.0",
    ),
    Quantity.GENERATION_TOKENS: Spec(
        Kind.COUNTER, _names("vllm:generation_tokens_total"), required=True
    ),
    Quantity.PROMPT_TOKENS: Spec(Kind.COUNTER, _names("vllm:prompt_tokens_total")),
    # Old engines create this series with the first finished request, so it cannot be required.
    Quantity.FINISHED: Spec(
        Kind.COUNTER,
        _names("vllm:request_success_total"),
        absent="the V1 engine exports it from vLLM 0.7.2",
    ),
    # Of the same counter, so that engines that never fail a request say so. In vLLM 0.32 requests
    # end so by errors of the engine; one that is not streamed is answered with a 500 as well.
    Quantity.FAILED: Spec(
        Kind.COUNTER,
        (Alias("vllm:request_success_total", {"finished_reason": "error"}),),
        absent="older engines have no such reason, the V1 engine no counter before vLLM 0.7.2",
    ),
    # Of prometheus-fastapi-instrumentator. What clients did wrong (4xx) is no answer and no error;
    # other pages than those of the OpenAI API, the plugin's among them, are no requests.
    Quantity.HTTP_REQUESTS: Spec(
        Kind.COUNTER, (_http("2", "5"),), absent=_FROM_FIRST_REQUEST, of_server=True
    ),
    Quantity.HTTP_ERRORS: Spec(
        Kind.COUNTER, (_http("5"),), absent=_FROM_FIRST_REQUEST, of_server=True
    ),
    Quantity.ITERATIONS: Spec(
        Kind.COUNTER,
        _names("vllm:iteration_tokens_total_count"),
        absent="vLLM exports it from 0.6.4, its V1 engine from 0.7.3",
    ),
    Quantity.PREFIX_QUERIES: Spec(
        Kind.COUNTER,
        _names("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        absent="the V1 engine exports it from vLLM 0.7.3, the V0 engine never",
    ),
    Quantity.PREFIX_HITS: Spec(
        Kind.COUNTER,
        _names("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        absent="the V1 engine exports it from vLLM 0.7.3, the V0 engine never",
    ),
    Quantity.TTFT: Spec(
        Kind.HISTOGRAM,
        _names("vllm:time_to_first_token_seconds"),
    ),
    Quantity.TPOT: Spec(
        Kind.HISTOGRAM,
        _names(
            "vllm:request_time_per_output_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
        ),
    ),
    Quantity.PROMPT_LENGTHS: Spec(Kind.HISTOGRAM, _names("vllm:request_prompt_tokens")),
    Quantity.ANSWER_LENGTHS: Spec(Kind.HISTOGRAM, _names("vllm:request_generation_tokens")),
    Quantity.MAX_ACTIVE_SEQS: Spec(
        Kind.GAUGE,
        _names("kvserving:max_active_seqs"),
        absent="only engines with the KVServing plugin export it",
    ),
}

CONFIG_INFO = "vllm:cache_config_info"
"""Labels of this series describe the cache; they change only with a restart."""
KV_CACHE_INFO = "kvserving:kv_cache_info"
"""Labels of this series describe the cache as the plugin last set it, live."""
PROCESS_START = "process_start_time_seconds"


def _exposed(kind: Kind, name: str) -> tuple[str, ...]:
    if kind is Kind.HISTOGRAM:
        return tuple(name + suffix for suffix in ("_bucket", "_sum", "_count"))
    return (name,)


def _created(kind: Kind, name: str) -> str | None:
    if kind is Kind.GAUGE:
        return None
    return name.removesuffix("_count").removesuffix("_total") + "_created"


def sample_names() -> frozenset[str]:
    """Every sample name worth keeping of an engine's metrics."""
    names = {CONFIG_INFO, KV_CACHE_INFO, PROCESS_START}
    for spec in SPECS.values():
        for alias in spec.aliases:
            names.update(_exposed(spec.kind, alias.name))
            created = _created(spec.kind, alias.name)
            if created is not None:
                names.add(created)
    return frozenset(names)


SAMPLE_NAMES = sample_names()
