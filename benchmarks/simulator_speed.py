"""How many engine steps the simulator takes in a second of one core.

Loads are drawn from the models that come with it, or read from traces, for Llama 3.1 8B on one H100
as estimated. A step costs little by itself: what costs is a request's arrival, admission and end.
So each row also says how many requests run at a time and what one costs. The other engine, which
takes one step and one block at a time, is timed on a part of the first load for comparison.

    PYTHONPATH=hack python benchmarks/simulator_speed.py [--trace conversation_trace.jsonl.gz ...]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envelope

from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.estimates import estimated
from kvserving_tuner.simulator.loads import load_models
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.traces import read_trace
from kvserving_tuner.simulator.workload import Workload
from tunerkit.stepwise import StepwiseEngine

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
TIMES = estimated("H100", LLAMA_8B, 16.06e9)
BYTES_PER_TOKEN = 131_072
WHOLE_CACHE = 442_000
"""Tokens in 16 bits beside the weights."""
STEPWISE_SECONDS = 30.0


@dataclass(frozen=True)
class Case:
    """A load at a multiple of its rate, on a share of the cache."""

    load: str
    speed: float
    share: float = 1.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048

    def settings(self) -> EngineSettings:
        """The engine's settings."""
        return EngineSettings(
            cache_bytes=WHOLE_CACHE * self.share * BYTES_PER_TOKEN,
            bytes_per_token={"bfloat16": BYTES_PER_TOKEN},
            dtype="bfloat16",
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


CASES = (
    Case("azure-conversation", 1.0),
    Case("azure-conversation", 2.0, share=0.1),
    Case("azure-conversation", 3.0),
    Case("azure-conversation", 5.0),
    Case("azure-code", 1.0, max_num_batched_tokens=8192),
    Case("mooncake-conversation", 0.3),
    Case("mooncake-synthetic", 0.3),
)


def row(case: Case, workload: Workload, repeats: int) -> dict[str, Any]:
    """Speed of one case: the median of some runs."""
    spent, engine = [], Engine(case.settings(), TIMES)
    for _ in range(repeats):
        engine = Engine(case.settings(), TIMES)
        engine.submit(workload.requests)
        spent.append(_cpu_seconds(engine.advance))
    counters, median = engine.counters, statistics.median(spent)
    return {
        "load": case.load,
        "speed": case.speed,
        "cache_tokens": round(WHOLE_CACHE * case.share),
        "max_num_seqs": case.max_num_seqs,
        "max_num_batched_tokens": case.max_num_batched_tokens,
        "requests": len(workload.requests),
        "simulated_seconds": round(engine.seconds, 1),
        "steps": counters.steps,
        "tokens_per_step": round(counters.generation_tokens / counters.steps, 2),
        "preemptions": counters.preemptions,
        "cpu_seconds": round(median, 4),
        "slowest_cpu_seconds": round(max(spent), 4),
        "steps_per_second": round(counters.steps / median),
        "microseconds_per_request": round(1e6 * median / len(workload.requests), 2),
    }


def stepwise(case: Case, workload: Workload) -> dict[str, Any]:
    """Speed of one step and one block at a time on a part of the same load."""
    part = workload.cut(STEPWISE_SECONDS)
    engine = StepwiseEngine(case.settings(), TIMES)
    engine.submit(list(part.requests))
    spent = _cpu_seconds(engine.advance)
    return {"steps": engine.steps, "steps_per_second": round(engine.steps / spent)}


def main() -> None:
    """Time every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800, help="of arrivals to draw")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    results = envelope.ROOT / "benchmarks/results/simulator_speed.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    rows = []
    for case, workload in _workloads(options):
        rows.append(row(case, workload, options.repeats))
        print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    first, workload = next(_workloads(options))
    envelope.write(options.out, rows, repeats=options.repeats, stepwise=stepwise(first, workload))


def _workloads(options: argparse.Namespace) -> Iterator[tuple[Case, Workload]]:
    for case in CASES:
        model = load_models()[case.load]
        yield case, model.draw(options.seconds, seed=1, rate=model.rate * case.speed)
    for path in options.trace:
        yield Case(path.name, 1.0), read_trace(path)


def _cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
