"""The tuner's loop on the simulator's engines, as `kvserving tune` runs it on real ones."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvserving_tuner.decision import Action, Decision
from kvserving_tuner.live import Loop, Turn
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.workload import Request
from kvserving_tuner.simulator.world import World
from kvserving_tuner.state import TunerState

TIMES = StepTimes(0.08, 0.0001, 0.0002, 2e-9)
"""A GPU in slow motion: steps grow little with the sequences in them."""
FORMATS = {"bfloat16": 16.0, "fp8_e4m3": 8.0, "k8v4": 6.0, "int4_hadamard": 4.5}
"""Bytes of a token in each format, of a model that is small on purpose."""


def requests(
    rate: float,
    seconds: float,
    prompt: tuple[int, int] = (100, 300),
    answer: tuple[int, int] = (100, 300),
    seed: int = 1,
    start: float = 0.0,
) -> list[Request]:
    """Requests that arrive at random at a rate; lengths are uniform."""
    source = random.Random(seed)
    found, at = [], start
    while (at := at + source.expovariate(rate)) < start + seconds:
        found.append(Request(at, source.randint(*prompt), source.randint(*answer)))
    return found


def engine(load: Sequence[Request], cache_tokens: int = 4000, **more: Any) -> Engine:
    """An engine whose cache holds so many tokens in 16 bits."""
    settings: dict[str, Any] = {
        "cache_bytes": cache_tokens * FORMATS["bfloat16"], "bytes_per_token": FORMATS,
        "dtype": "bfloat16", "max_num_seqs": 64, "max_model_len": 700, "prefix_caching": False,
    }  # fmt: skip
    found = Engine(EngineSettings(**{**settings, **more}), TIMES)
    found.submit(load)
    return found


@dataclass
class Run:
    """What the loop did on simulated engines; `at` is the time since the start in seconds."""

    engine: Engine
    loop: Loop
    world: World
    turns: list[Turn] = field(default_factory=list)
    at: float = 0.0

    @property
    def state(self) -> TunerState:
        """The tuner's memory."""
        return self.loop.state

    @property
    def decisions(self) -> list[Decision]:
        """All decisions so far."""
        return [turn.decision for turn in self.turns]

    def changes(self, since: float = 0.0) -> list[Decision]:
        """Decisions to change something, from `since` on."""
        begin = self.world.started + since
        return [d for d in self.decisions if d.action is Action.CHANGE and d.at >= begin]

    def go(
        self, seconds: float, before_turn: Callable[[float], None] | None = None, step: float = 5.0
    ) -> "Run":
        """Let time pass."""

        async def turns() -> None:
            end = self.at + seconds
            while self.at < end:
                self.at += step
                if before_turn is not None:
                    before_turn(self.at)
                self.turns.append(await self.loop.turn(self.world.started + self.at))

        asyncio.run(turns())
        return self


def run(simulated: Engine, settings: TuningSettings, state: TunerState | None = None) -> Run:
    """The loop on one engine."""
    world = World({"a": simulated}, windows=settings.windows, thresholds=settings.thresholds)
    loop = Loop(world.targets, world.source, world.runtime, world.actuator, settings, state)
    return Run(simulated, loop, world)
