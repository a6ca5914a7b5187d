"""The simulator beside a real engine, on six workloads that its constants have not seen.

Constants of step times are fitted to single requests of different lengths and to groups of requests
that decode together. Then six workloads, made to be bound by different things, are sent to the
engine and simulated with the same times of arrival, lengths and shared beginnings:

    python benchmarks/simulator_validation.py --engine URL --model NAME --max-num-seqs N
        --max-num-batched-tokens N --bytes-per-token N

The engine must serve nobody else. Its block size, its capacity and whether it keeps prefixes are
read from its metrics; what it was started with besides has to be said. Aimed for are throughput
within 15 %, preemptions within 25 %, and the median time to first token within 25 %.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import envelope
import httpx
import numpy as np
from open_load import Answer, Target, metrics, send

from kvserving_tuner.simulator.outcome import Outcome, simulate
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import MeasuredStep, StepTimes, fitted
from kvserving_tuner.simulator.workload import Request, Shared, Workload

RESULTS = envelope.ROOT / "benchmarks/results/simulator_validation.json"
WITHIN = {"throughput": 0.15, "preemptions": 0.25, "ttft_p50": 0.25}
PREEMPTIONS = "vllm:num_preemptions_total"
FEW = 5
"""Preemptions that one more or less is no error of."""
REPEATS = 5
DECODED = 48
"""Tokens of an answer from which the time per token is taken."""


@dataclass(frozen=True)
class Limits:
    """What decides which load binds what."""

    settings: EngineSettings
    times: StepTimes

    @property
    def capacity(self) -> int:
        """Tokens of the cache."""
        return self.settings.capacity_tokens(self.settings.dtype)

    def rate(self, prompt: int, answer: int) -> float:
        """Requests per second that the engine can just serve, as simulated."""
        many = [Request(0.0, prompt, answer) for _ in range(4 * self.settings.max_num_seqs)]
        spent = simulate(Workload.of("all at once", many), self.settings, self.times).seconds
        return len(many) / spent


def workloads(limits: Limits, seconds: float, seed: int) -> Iterator[Workload]:
    """Six workloads, each bound by something else."""
    seqs, longest = limits.settings.max_num_seqs, limits.settings.longest
    short, answer = max(8, longest // 16), max(8, longest // 16)
    # As many sequences as may run outgrow the cache by half when their answers are long.
    large = min(longest // 3, max(16, round(1.5 * limits.capacity / seqs / 2)))
    source = np.random.default_rng(seed)

    def load(
        name: str, prompt: int, answer: int, load: float, variation: float = 1.0, shared: int = 0
    ) -> Workload:
        rate = load * limits.rate(prompt, answer)
        shape = 1 / variation**2
        gaps = source.gamma(shape, 1 / (shape * rate), max(8, round(rate * seconds)))
        rows = []
        for at in np.cumsum(gaps):
            group = int(source.integers(4))
            tokens = (_around(source, prompt), _around(source, answer))
            prefix = (Shared(f"{name} {group}", min(shared, tokens[0])),) if shared else ()
            rows.append(Request(float(at), *tokens, prefix))
        return Workload.of(name, rows)

    yield load("idle", short, answer, 0.05)
    yield load("compute-bound", short, answer, 0.9)
    yield load("KV-bound", large, large, 0.9)
    yield load("bursty", short, answer, 0.5, variation=3.0)
    yield load("shared prefixes", longest // 3, answer, 0.8, shared=longest // 4)
    yield load("overload", short, 2 * answer, 1.5)


def _around(source: np.random.Generator, tokens: int) -> int:
    return int(source.integers(max(1, tokens // 2), tokens + tokens // 2 + 1))


def calibrate(target: Target, settings: EngineSettings) -> StepTimes:
    """Constants from requests by themselves, and from groups that decode together."""
    longest, most = settings.longest, settings.max_num_batched_tokens
    prompts = sorted({max(1, min(longest - 1, most) * part // 8) for part in (1, 2, 4, 6, 8)})
    first: list[tuple[int, float]] = []
    for tokens in prompts:
        for repeat in range(REPEATS):
            answer = _together(target, [Request(0, tokens, 1)], f"prompt {tokens} {repeat}")[0]
            first.append((tokens, answer.ttft))
    bytes_per_token = settings.bytes_per_token[settings.dtype]
    steps = []
    counts = (1, *(settings.max_num_seqs * part // 4 for part in (1, 2, 4)))
    for context in (longest // 16, longest // 2):
        for count in sorted({max(1, count) for count in counts}):
            if count * (context + DECODED) > settings.capacity_tokens(settings.dtype):
                continue
            group = [Request(0, max(1, context), DECODED)] * count
            answers = _together(target, group, f"group {context} {count}")
            read = count * (context + DECODED / 2) * bytes_per_token
            seconds = statistics.median(answer.tpot for answer in answers)
            steps.append(MeasuredStep(seconds, decoding=count, cache_bytes=read))
    # What a first token takes besides its step is found where a prompt has hardly any tokens.
    base = fitted(steps).base_seconds
    shortest = min(seconds for tokens, seconds in first if tokens == prompts[0])
    intake = max(0.0, shortest - base)
    steps += [
        MeasuredStep(max(base, seconds - intake), tokens, tokens * (tokens + 1) / 2)
        for tokens, seconds in first
    ]
    return fitted(steps, intake)


def _together(target: Target, requests: Sequence[Request], name: str) -> list[Answer]:
    return asyncio.run(send(target, requests, name))


def compare(
    workload: Workload, answers: Sequence[Answer], preemptions: float, limits: Limits
) -> dict[str, Any]:
    """One workload as the engine served it, and as simulated with the times it was sent at."""
    sent = [
        replace(request, arrival=max(0.0, answer.sent))
        for request, answer in zip(workload.requests, answers, strict=True)
    ]
    outcome = simulate(Workload.of(workload.name, sent), limits.settings, limits.times)
    last = max(answer.finished for answer in answers)
    engine = {
        "throughput": sum(answer.tokens for answer in answers) / last,
        "preemptions": preemptions,
        "ttft_p50": statistics.median(answer.ttft for answer in answers),
        "tpot_p50": statistics.median(answer.tpot for answer in answers),
    }
    simulated = _figures(outcome)
    errors = {name: _error(engine[name], simulated[name], name) for name in WITHIN}
    return {
        "workload": workload.name,
        "requests": len(answers),
        "seconds": round(last, 2),
        "engine": {name: round(value, 4) for name, value in engine.items()},
        "simulated": {name: round(value, 4) for name, value in simulated.items()},
        "errors": {name: round(value, 4) for name, value in errors.items()},
        "within": all(abs(errors[name]) <= most for name, most in WITHIN.items()),
    }


def _figures(outcome: Outcome) -> dict[str, float]:
    return {
        "throughput": outcome.counters.generation_tokens / outcome.seconds,
        "preemptions": float(outcome.counters.preemptions),
        "ttft_p50": float(np.nanmedian(outcome.ttft)),
        "tpot_p50": float(np.nanmedian(outcome.tpot)),
    }


def _error(engine: float, simulated: float, name: str) -> float:
    if name == "preemptions" and abs(engine - simulated) <= FEW:
        return 0.0
    return (simulated - engine) / max(engine, 1e-9)


def main() -> None:
    """Calibrate, then send and simulate each workload."""
    options = _options()
    target = Target(options.engine.rstrip("/"), options.model, options.vocabulary)
    settings = _settings(target, options)
    _together(target, [Request(0, 8, 8)] * 4, "warm-up")
    if options.step_times:
        times = StepTimes.from_json(json.loads(options.step_times))
    else:
        times = calibrate(target, settings)
    print(json.dumps(times.to_json()), flush=True)  # noqa: T201
    limits = Limits(settings, times)
    rows = []
    for workload in workloads(limits, options.seconds, options.seed):
        if options.only not in workload.name:
            continue
        before = metrics(target)[PREEMPTIONS]
        answers = _together(target, workload.requests, f"{workload.name} {options.seed}")
        rows.append(compare(workload, answers, metrics(target)[PREEMPTIONS] - before, limits))
        print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    envelope.write(
        options.out, rows, step_times=times.to_json(), aimed_within=WITHIN,
        capacity_tokens=limits.capacity, block_size=settings.block_size,
    )  # fmt: skip


def _settings(target: Target, options: argparse.Namespace) -> EngineSettings:
    found = metrics(target)
    models = httpx.get(f"{target.url}/v1/models", timeout=30).raise_for_status().json()["data"]
    return EngineSettings(
        cache_bytes=found["kv_cache_size_tokens"] * options.bytes_per_token,
        bytes_per_token={"auto": options.bytes_per_token},
        dtype="auto",
        block_size=int(found["block_size"]),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=int(models[0]["max_model_len"]),
        prefix_caching=bool(found["prefix_caching"]),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, metavar="URL")
    parser.add_argument("--model", required=True, help="its name at the engine")
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-num-batched-tokens", type=int, required=True)
    parser.add_argument("--bytes-per-token", type=float, required=True)
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens to draw prompts from")
    parser.add_argument("--seconds", type=float, default=90, help="of arrivals per workload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the names of the workloads to run")
    parser.add_argument("--step-times", metavar="JSON", help="constants of an earlier run")
    parser.add_argument("--out", type=type(RESULTS), default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
