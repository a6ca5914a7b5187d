"""What came of a workload: latencies of each request, counters, and the engine over time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvserving_tuner.simulator.counters import Counters
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import TICKS_PER_SECOND, StepTimes
from kvserving_tuner.simulator.workload import Workload

Array = np.ndarray[Any, np.dtype[np.float64]]
LOOKS: Final = 400
"""Times at which the engine is looked at while requests arrive."""


@dataclass(frozen=True)
class Timeline:
    """The engine at equal times; `usage` is the share of blocks that running sequences hold."""

    seconds: Array
    running: Array
    waiting: Array
    usage: Array


@dataclass(frozen=True)
class Outcome:
    """One run; arrays have a value per request in order of arrival, NaN for a refused one.

    Times are in seconds. `tpot` is that between a request's tokens, on average; NaN if it has one.
    """

    seconds: float
    arrival: Array
    ttft: Array
    tpot: Array
    finish: Array
    answer: Array
    counters: Counters
    timeline: Timeline

    def goodput(self, ttft_seconds: float | None, tpot_seconds: float | None) -> float:
        """Requests per second that were answered within both limits."""
        good = np.isfinite(self.finish)
        if ttft_seconds is not None:
            good &= self.ttft <= ttft_seconds
        if tpot_seconds is not None:
            good &= ~(self.tpot > tpot_seconds)
        return float(good.sum()) / self.seconds

    def summary(self) -> dict[str, float]:
        """Figures for a table; latencies in milliseconds."""
        counters, figures = self.counters, {}
        for name, values in (("ttft", self.ttft), ("tpot", self.tpot)):
            for percent in (50, 95, 99):
                figures[f"{name}_p{percent}_ms"] = _percentile(values, percent)
        queries = counters.prefix_queries
        return {
            "requests": len(self.arrival),
            "finished": counters.finished,
            "rejected": counters.rejected,
            "seconds": round(self.seconds, 3),
            "output_tokens_per_second": round(counters.generation_tokens / self.seconds, 2),
            **figures,
            "preemptions": counters.preemptions,
            "prefix_hit_ratio": round(counters.prefix_hits / queries, 4) if queries else 0.0,
            "kv_usage_mean": round(float(self.timeline.usage.mean()), 4),
            "kv_usage_max": round(float(self.timeline.usage.max()), 4),
            "waiting_max": float(self.timeline.waiting.max()),
            "steps": counters.steps,
        }


def simulate(workload: Workload, settings: EngineSettings, times: StepTimes) -> Outcome:
    """Run a workload until every request is answered or refused."""
    engine = Engine(settings, times)
    engine.submit(workload.requests)
    last = workload.seconds
    seen = [_look(engine, last * part / LOOKS) for part in range(1, LOOKS + 1) if last]
    engine.advance()
    seen.append(_look(engine, engine.seconds))
    return outcome(engine, seen)


def outcome(engine: Engine, seen: Iterable[tuple[float, ...]]) -> Outcome:
    """What an engine has done so far, with what was seen of it at times."""
    rows = [(s.arrival, s.first_token, s.finished, s.answer) for s in engine.sequences]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    arrival, first, finish = (table[:, column] / TICKS_PER_SECOND for column in range(3))
    answer = table[:, 3]
    between = np.where(answer > 1, answer - 1, np.nan)
    looks = np.array(list(seen), dtype=np.float64).reshape(-1, 4)
    return Outcome(
        engine.seconds, arrival, first - arrival, (finish - first) / between, finish, answer,
        engine.counters, Timeline(*(looks[:, column] for column in range(4))),
    )  # fmt: skip


def _look(engine: Engine, at: float) -> tuple[float, ...]:
    engine.advance(at)
    return engine.seconds, engine.running, engine.waiting, engine.usage


def _percentile(values: Array, percent: float) -> float:
    finite = values[np.isfinite(values)]
    return round(1000 * float(np.percentile(finite, percent)), 3) if len(finite) else float("nan")
