"""A simulated engine's metrics, under the names, labels and buckets of vLLM 0.32 and the plugin."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from kvserving_tuner.aliases import CONFIG_INFO, KV_CACHE_INFO, PROCESS_START
from kvserving_tuner.scrape import Sample
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.steptimes import seconds

TTFT_EDGES: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TPOT_EDGES: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LENGTH_EDGES: Final = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
LABELS: Final = {"engine": "0", "model_name": "simulated"}


class Distribution:
    """A histogram as an engine exports it."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._total += value

    def samples(self, name: str) -> Iterable[Sample]:
        """Its series."""
        count = 0
        for edge, more in zip((*self._edges, float("inf")), self._counts, strict=True):
            count += more
            bound = "+Inf" if edge == float("inf") else str(edge)
            yield Sample(f"{name}_bucket", {**LABELS, "le": bound}, float(count))
        yield Sample(f"{name}_sum", LABELS, self._total)
        yield Sample(f"{name}_count", LABELS, float(count))


class Metrics:
    """What an engine's /metrics would show; `started` is its start in seconds since the epoch."""

    def __init__(self, engine: Engine, started: float) -> None:
        self._engine = engine
        self._started = started
        self._begun = self._completed = 0
        self._ttft, self._tpot = Distribution(TTFT_EDGES), Distribution(TPOT_EDGES)
        self._prompts, self._answers = Distribution(LENGTH_EDGES), Distribution(LENGTH_EDGES)

    def samples(self) -> list[Sample]:
        """Every series, as of the engine's clock."""
        self._catch_up()
        return [*self._values(), *self._histograms(), *self._information()]

    def _catch_up(self) -> None:
        """Count what has happened since the last look."""
        engine = self._engine
        for sequence in engine.begun[self._begun :]:
            self._ttft.add(seconds((sequence.first_token or 0) - sequence.arrival))
        for sequence in engine.completed[self._completed :]:
            span = seconds((sequence.finished or 0) - (sequence.first_token or 0))
            # One token takes no time between tokens, and vLLM counts it so.
            self._tpot.add(span / max(1, sequence.answer - 1))
            self._prompts.add(sequence.prompt)
            self._answers.add(sequence.answer)
        self._begun, self._completed = len(engine.begun), len(engine.completed)

    def _values(self) -> Iterable[Sample]:
        engine, counters = self._engine, self._engine.counters
        values = {
            "vllm:num_requests_running": engine.running,
            "vllm:num_requests_waiting": engine.waiting,
            "vllm:kv_cache_usage_perc": engine.usage,
            "vllm:num_preemptions_total": counters.reported_preemptions,
            "vllm:generation_tokens_total": counters.generation_tokens,
            "vllm:prompt_tokens_total": counters.prompt_tokens,
            "vllm:prefix_cache_queries_total": counters.prefix_queries,
            "vllm:prefix_cache_hits_total": counters.prefix_hits,
            "vllm:iteration_tokens_total_count": counters.steps,
            "kvserving:max_active_seqs": engine.max_active_seqs,
        }
        for name, value in values.items():
            yield Sample(name, LABELS, float(value))
        for reason, value in (("capacity", engine.waiting), ("deferred", 0)):
            name = "vllm:num_requests_waiting_by_reason"
            yield Sample(name, {**LABELS, "reason": reason}, float(value))
        for reason in FINISHED_REASONS:
            value = counters.finished if reason == "length" else 0
            labels = {**LABELS, "finished_reason": reason}
            yield Sample("vllm:request_success_total", labels, float(value))
        for reason, value in (
            ("max_num_queued_reqs", counters.rejected_by_requests),
            ("max_num_queued_tokens", counters.rejected_by_tokens),
        ):
            labels = {**LABELS, "reason": reason}
            yield Sample("vllm:admission_rejections_total", labels, float(value))
        refused = counters.rejected - counters.too_long
        for status, value in (
            ("2xx", counters.finished), ("4xx", counters.too_long), ("5xx", refused),
        ):  # fmt: skip
            labels = {"handler": "/v1/completions", "method": "POST", "status": status}
            yield Sample("http_requests_total", labels, float(value))

    def _histograms(self) -> Iterable[Sample]:
        yield from self._ttft.samples("vllm:time_to_first_token_seconds")
        yield from self._tpot.samples("vllm:request_time_per_output_token_seconds")
        yield from self._prompts.samples("vllm:request_prompt_tokens")
        yield from self._answers.samples("vllm:request_generation_tokens")

    def _information(self) -> Iterable[Sample]:
        engine = self._engine
        settings, block = engine.settings, str(engine.settings.block_size)
        # vLLM sets these labels when it starts; a live switch does not change them.
        at_start = {
            "block_size": block,
            "cache_dtype": settings.dtype,
            "kv_cache_size_tokens": str(settings.capacity_tokens(settings.dtype)),
            "enable_prefix_caching": str(settings.prefix_caching),
        }
        yield Sample(CONFIG_INFO, {**LABELS, **at_start}, 1.0)
        policy = "None" if engine.eviction is None else "StreamingLLM"
        now = {"dtype": engine.dtype, "eviction": policy, "block_size": block}
        yield Sample(KV_CACHE_INFO, {**LABELS, **now}, 1.0)
        yield Sample(PROCESS_START, {}, self._started)
