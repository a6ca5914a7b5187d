"""DirectSource against real HTTP servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack

import httpx
import pytest

from kvserving_tuner.observation import Observation, ProblemReason
from kvserving_tuner.readings import Known
from kvserving_tuner.scrape import MAXIMUM_BYTES
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.sources.direct import DirectSource
from kvserving_tuner.testing import WINDOWS, SourceConformance
from tunerkit.servers import MetricsServer


class DirectWorld:
    """Two servers, scraped in virtual time."""

    def __init__(self, servers: Sequence[MetricsServer], client: httpx.AsyncClient) -> None:
        self.servers = servers
        self.targets = [EngineTarget(f"engine-{i}", s.url) for i, s in enumerate(servers)]
        self.source = DirectSource(client, WINDOWS, timeout_seconds=1.0)
        self.now = 1000.0

    def serve(self, index: int, text: str | None) -> None:
        """Export `text`."""
        self.servers[index].text = text

    async def tick(self, targets: Sequence[EngineTarget] | None = None) -> Observation:
        """Half a second later, look."""
        self.now += 0.5
        return await self.source.observe(self.targets if targets is None else targets, self.now)


@pytest.fixture
def servers() -> Iterator[list[MetricsServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(MetricsServer()) for _ in range(2)]


@pytest.fixture
async def world(servers: list[MetricsServer]) -> AsyncIterator[DirectWorld]:
    async with httpx.AsyncClient() as client:
        yield DirectWorld(servers, client)


class TestDirectSource(SourceConformance):
    """The suite."""


async def test_a_slow_engine_costs_no_more_than_the_time_out(
    world: DirectWorld, busy: list[str]
) -> None:
    world.serve(0, busy[0])
    world.serve(1, busy[0])
    world.servers[0].delay_seconds = 5
    seen = await asyncio.wait_for(world.tick(), 4)
    assert [p.target for p in seen.blocking()] == ["engine-0"]
    assert "did not answer within 1 s" in seen.blocking()[0].message
    assert isinstance(seen.engines[1].running, Known)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>login</html>", "not Prometheus text"),
        ('vllm:num_requests_running{engine="0', "not Prometheus text"),
        ("x 1\n" * (MAXIMUM_BYTES // 4 + 1), "longer than"),
        ("", "exports no vLLM metrics"),
    ],
)
async def test_an_answer_that_is_no_metrics_is_a_problem(
    world: DirectWorld, text: str, message: str
) -> None:
    world.serve(0, text)
    seen = await world.tick(world.targets[:1])
    assert [p.reason for p in seen.problems] == [ProblemReason.METRICS_MISSING]
    assert message in seen.problems[0].message


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "nonsense"])
async def test_an_address_without_an_engine_is_a_problem(url: str) -> None:
    async with httpx.AsyncClient() as client:
        seen = await DirectSource(client).observe([EngineTarget("gone", url)], 0.0)
    assert [(p.reason, p.target) for p in seen.problems] == [
        (ProblemReason.METRICS_MISSING, "gone")
    ]
    assert not seen.engines[0].answered
