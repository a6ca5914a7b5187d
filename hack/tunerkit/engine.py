"""A small deterministic model of vLLM's scheduler, for tests of the tuner's loop.

Only what the loop reacts to: admission with the whole prompt reserved, block-wise growth, recompute
preemption of the newest sequence, a live cap, and metrics as the engine exports them, including
that preemptions are counted only once the victim runs again. Not a performance model.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvserving_tuner.scrape import Sample

TIME_EDGES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 20, 40, 80, float("inf"))
LENGTH_EDGES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, float("inf"))


@dataclass
class Request:
    """One request; `target` tokens must be in the cache before it generates again."""

    prompt: int
    answer: int
    arrived: float
    target: int = 0
    cached: int = 0
    generated: int = 0
    first_token_at: float | None = None
    preempted: int = 0

    def __post_init__(self) -> None:
        """A new request has its prompt to compute."""
        self.target = self.prompt


@dataclass
class Distribution:
    """A histogram as the engine exports it."""

    edges: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Start empty."""
        self.counts = [0] * len(self.edges)

    def add(self, value: float) -> None:
        """Count one value."""
        for index, edge in enumerate(self.edges):
            if value <= edge:
                self.counts[index] += 1
                break
        self.total += value


class EngineModel:
    """One engine; `arrivals(now)` gives the requests that arrive until `now`."""

    def __init__(
        self,
        capacity_tokens: int,
        cap: int,
        arrivals: Callable[[float, int], list[Request]],
        *,
        block: int = 16,
        budget: int = 512,
        step_seconds: float = 0.08,
        seconds_per_token: float = 0.0004,
        started: float = 0.0,
    ) -> None:
        self.blocks = capacity_tokens // block
        self.block = block
        self.cap = cap
        self.now = started
        self.started = started
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preemptions = self.generated = self.prompted = self.finished = self.steps = 0
        self.true_preemptions = 0
        self.ttft, self.tpot = Distribution(TIME_EDGES), Distribution(TIME_EDGES)
        self.prompts, self.answers = Distribution(LENGTH_EDGES), Distribution(LENGTH_EDGES)
        self.usage = 0.0
        self._arrivals = arrivals
        self._budget = budget
        self._step_seconds = step_seconds
        self._seconds_per_token = seconds_per_token

    def advance(self, until: float) -> None:
        """Run steps up to `until`."""
        while self.now < until:
            outstanding = len(self.running) + len(self.waiting)
            self.waiting.extend(self._arrivals(self.now, outstanding))
            if not self.running and not self.waiting:
                self.usage = 0.0
                self.now += self._step_seconds
                continue
            self._step()

    def _held(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _free(self) -> int:
        return self.blocks - sum(self._held(request.cached) for request in self.running)

    def _step(self) -> None:
        budget, worked, preempted = self._budget, 0, False
        free = self._free()
        index = 0
        while index < len(self.running):
            request = self.running[index]
            grow = 1 if request.cached >= request.target else request.target - request.cached
            grow = min(grow, budget)
            need = self._held(request.cached + grow) - self._held(request.cached)
            while need > free and self.running[-1] is not request:
                free += self._preempt()
                preempted = True
            if need > free:
                free += self._preempt()
                preempted = True
                break
            free -= need
            budget -= grow
            worked += grow
            request.cached += grow
            index += 1
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.cap:
            request = self.waiting[0]
            if self._held(request.target) > free:
                break
            self.waiting.popleft()
            grow = min(request.target, budget)
            free -= self._held(request.target)
            budget -= grow
            worked += grow
            request.cached = grow
            self.running.append(request)
        self.steps += 1
        self.now += self._step_seconds + worked * self._seconds_per_token
        self._emit()
        self.usage = 1 - self._free() / self.blocks

    def _preempt(self) -> int:
        victim = self.running.pop()
        released = self._held(victim.cached)
        victim.target = victim.prompt + victim.generated
        victim.cached = 0
        victim.preempted += 1
        self.true_preemptions += 1
        self.waiting.appendleft(victim)
        return released

    def _emit(self) -> None:
        for request in list(self.running):
            if request.cached < request.target:
                continue
            request.generated += 1
            request.target = request.prompt + request.generated
            self.generated += 1
            self.preemptions += request.preempted
            request.preempted = 0
            if request.first_token_at is None:
                request.first_token_at = self.now
                self.prompted += request.prompt
                self.ttft.add(self.now - request.arrived)
            if request.generated >= request.answer:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self.finished += 1
        self.prompts.add(request.prompt)
        self.answers.add(request.answer)
        if request.first_token_at is not None and request.answer > 1:
            self.tpot.add((self.now - request.first_token_at) / (request.answer - 1))

    def samples(self) -> list[Sample]:
        """The engine's metrics now."""
        labels = {"engine": "0", "model_name": "model"}
        values = {
            "vllm:num_requests_running": len(self.running),
            "vllm:num_requests_waiting": len(self.waiting),
            "vllm:kv_cache_usage_perc": self.usage,
            "vllm:num_preemptions_total": self.preemptions,
            "vllm:generation_tokens_total": self.generated,
            "vllm:prompt_tokens_total": self.prompted,
            "vllm:iteration_tokens_total_count": self.steps,
            "kvserving:max_active_seqs": self.cap,
        }
        found = [Sample(name, labels, float(value)) for name, value in values.items()]
        found.append(
            Sample(
                "vllm:request_success_total",
                {**labels, "finished_reason": "length"},
                float(self.finished),
            )
        )
        for name, histogram in (
            ("vllm:time_to_first_token_seconds", self.ttft),
            ("vllm:request_time_per_output_token_seconds", self.tpot),
            ("vllm:request_prompt_tokens", self.prompts),
            ("vllm:request_generation_tokens", self.answers),
        ):
            cumulative = 0
            for edge, count in zip(histogram.edges, histogram.counts, strict=True):
                cumulative += count
                le = "+Inf" if edge == float("inf") else str(edge)
                found.append(Sample(f"{name}_bucket", {**labels, "le": le}, float(cumulative)))
            found.append(Sample(f"{name}_sum", labels, histogram.total))
            found.append(Sample(f"{name}_count", labels, float(cumulative)))
        config = {
            **labels,
            "block_size": str(self.block),
            "kv_cache_size_tokens": str(self.blocks * self.block),
        }
        found.append(Sample("vllm:cache_config_info", config, 1.0))
        found.append(Sample("process_start_time_seconds", {}, self.started))
        return found


def poisson(
    seed: int,
    rate: Callable[[float], float],
    prompt: tuple[int, int],
    answer: tuple[int, int],
) -> Callable[[float, int], list[Request]]:
    """Independent arrivals at `rate(now)` per second, lengths uniform between the bounds."""
    source = random.Random(seed)
    next_at: list[float] = []

    def arrive(now: float, outstanding: int) -> list[Request]:
        if not next_at:
            next_at.append(now)
        arrived: list[Request] = []
        while next_at[0] <= now:
            at = next_at[0]
            per_second = rate(at)
            if per_second <= 0:
                next_at[0] = at + 1.0
                continue
            arrived.append(Request(source.randint(*prompt), source.randint(*answer), at))
            next_at[0] = at + source.expovariate(per_second)
        return arrived

    return arrive


def closed(
    seed: int,
    clients: Callable[[float], int],
    prompt: tuple[int, int],
    answer: tuple[int, int],
) -> Callable[[float, int], list[Request]]:
    """Clients that each send their next request once the last one is answered."""
    source = random.Random(seed)

    def arrive(now: float, outstanding: int) -> list[Request]:
        return [
            Request(source.randint(*prompt), source.randint(*answer), now)
            for _ in range(max(0, clients(now) - outstanding))
        ]

    return arrive
