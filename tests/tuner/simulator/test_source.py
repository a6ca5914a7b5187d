"""The simulated source is a source like any other."""

from collections.abc import Sequence

import pytest

from kvserving_tuner.observation import Observation
from kvserving_tuner.scrape import Unreadable, parse
from kvserving_tuner.simulator.world import SimulatedSource
from kvserving_tuner.sources.base import Attempt, EngineTarget
from kvserving_tuner.testing import WINDOWS, SourceConformance


class SimulatedWorld:
    """Two engines whose metrics are given as text."""

    def __init__(self) -> None:
        self.texts: list[str | None] = [None, None]
        self.targets = [EngineTarget(f"engine-{i}", f"sim://{i}") for i in range(2)]
        readers = {
            target.name: lambda now, i=index: self.read(i, now)
            for index, target in enumerate(self.targets)
        }
        self.source = SimulatedSource(readers, WINDOWS)
        self.now = 1000.0

    def read(self, index: int, now: float) -> Attempt:
        """What an engine shows."""
        text = self.texts[index]
        if text is None:
            return Attempt(failure="down")
        scrape = parse(text, now)
        return (
            Attempt(failure=scrape.reason) if isinstance(scrape, Unreadable) else Attempt((scrape,))
        )

    def serve(self, index: int, text: str | None) -> None:
        """Show `text` from now on."""
        self.texts[index] = text

    async def tick(self, targets: Sequence[EngineTarget] | None = None) -> Observation:
        """Half a second later, look."""
        self.now += 0.5
        return await self.source.observe(self.targets if targets is None else targets, self.now)


@pytest.fixture
def world() -> SimulatedWorld:
    return SimulatedWorld()


class TestSimulatedSource(SourceConformance):
    """The suite."""


async def test_an_engine_that_is_not_simulated_is_a_problem(world: SimulatedWorld) -> None:
    seen = await world.tick([EngineTarget("other", "sim://other")])
    assert [problem.target for problem in seen.problems] == ["other"]
    assert not seen.engines[0].answered
