"""What a steady load does to an engine, by arithmetic: step time, sequences at once, first tokens.

Each request has its prompt computed once and takes part in as many steps as its answer has tokens.
So a step of T seconds has, at a rate of r requests per second, r * T prompts' worth of tokens and
r * T * answer sequences (Little's law), and takes T = fixed + T * load: T = fixed / (1 - load). A
load of 1 or more never comes to rest. Figures are means; queues behind a full engine are not in
them, as a rate at which one forms is beyond `largest_rate` (tuning reference, C.2).

Against the simulator the step time of a chat load is within 15 %. Where prompts take most of the
time, answers are under way mostly while others' prompts are computed, and their tokens take up to
half as long again as the mean step.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.steptimes import StepTimes

SPREAD: Final = 1.645
"""Standard deviations above the mean that 95 % of the time hold all sequences: arrivals at random
make their number as good as Poisson."""
PRECISION: Final = 1e-4
"""Relative, of a rate that is searched for."""


@dataclass(frozen=True)
class Load:
    """Requests of a steady load: mean tokens of a prompt that are computed, and of an answer."""

    prompt: float
    answer: float
    held: float | None = None
    """Tokens of a prompt that its sequence holds, cached ones among them; default: `prompt`."""

    def __post_init__(self) -> None:
        """Raise SimulationError for lengths that no request has."""
        for name, value in (("prompt", self.prompt), ("answer", self.answer)):
            if not 1 <= value < math.inf:
                raise SimulationError(name, "at least 1 token", f"{value:g}")

    @property
    def context(self) -> float:
        """Tokens that a running sequence holds, on average."""
        return (self.prompt if self.held is None else self.held) + self.answer / 2


@dataclass(frozen=True)
class Engine:
    """What an engine takes for a step and has room for."""

    times: StepTimes
    bytes_per_token: float
    cache_tokens: float
    max_num_seqs: int
    max_num_batched_tokens: int

    def seconds_per_request(self, load: Load) -> float:
        """Time that a request adds to steps, all of its tokens together."""
        times = self.times
        prompt = load.prompt * times.prefill_token_seconds
        pairs = load.prompt * load.context * times.prefill_pair_seconds / 2
        read = load.context * self.bytes_per_token * times.cache_byte_seconds
        return prompt + pairs + load.answer * (times.sequence_seconds + read)


@dataclass(frozen=True)
class Steady:
    """An engine under a load, on average."""

    load: float
    """Share of the time that steps spend on requests; what is left is the fixed part."""
    step_seconds: float
    """Of one step, and so between two tokens of an answer."""
    running: float
    """Sequences at once."""
    ttft_seconds: float

    @property
    def most_running(self) -> float:
        """Sequences at once in 95 % of the time."""
        return self.running + SPREAD * math.sqrt(self.running)


def steady(engine: Engine, load: Load, rate: float) -> Steady | None:
    """The engine at a rate in requests per second; None where it does not come to rest."""
    share = rate * engine.seconds_per_request(load)
    if share >= 1:
        return None
    step = engine.times.base_seconds / (1 - share)
    running = rate * load.answer * step
    left = engine.max_num_batched_tokens - running
    if rate * step * load.prompt >= left:
        return None
    chunks = math.ceil(load.prompt / left)
    # A request arrives in the middle of a step, and its prompt makes its own steps longer.
    own = load.prompt * engine.times.prefill_token_seconds
    waits = engine.times.intake_seconds + step / 2 + chunks * step + own
    return Steady(share, step, running, waits)


def largest_rate(
    engine: Engine,
    load: Load,
    ttft_seconds: float | None = None,
    tpot_seconds: float | None = None,
) -> float:
    """Requests per second up to which no queue forms and both targets are kept on average.

    0 where not even one request at a time keeps them.
    """

    def kept(rate: float) -> bool:
        found = steady(engine, load, rate)
        if found is None:
            return False
        most = min(engine.max_num_seqs, engine.cache_tokens / load.context)
        return (
            found.most_running <= max(most, 1.0)
            and (tpot_seconds is None or found.step_seconds <= tpot_seconds)
            and (ttft_seconds is None or found.ttft_seconds <= ttft_seconds)
        )

    low, high = 0.0, 1 / engine.seconds_per_request(load)
    if engine.cache_tokens < load.context or not kept(high * PRECISION):
        return 0.0
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low
