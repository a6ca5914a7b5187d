"""PrometheusSource against a real Prometheus that scrapes real HTTP servers."""

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from kvserving_tuner.observation import Observation, ProblemReason
from kvserving_tuner.readings import Known
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.sources.prometheus import PrometheusSource
from kvserving_tuner.testing import WINDOWS, SourceConformance
from tunerkit.servers import MetricsServer

pytestmark = pytest.mark.prometheus
BINARY = os.environ.get("KVSERVING_PROMETHEUS") or shutil.which("prometheus")
SLOTS = 40
"""Servers that Prometheus knows from its start: each test takes two that nobody used before."""
SCRAPE_SECONDS = 0.25


class Prometheus:
    """A running Prometheus, and the servers it scrapes."""

    def __init__(self, url: str, servers: Sequence[MetricsServer]) -> None:
        self.url = url
        self._unused = list(servers)

    def take(self) -> list[MetricsServer]:
        """Two servers of one's own."""
        if len(self._unused) < 2:
            pytest.fail(f"more tests than servers: raise SLOTS, which is {SLOTS}")
        taken, self._unused = self._unused[:2], self._unused[2:]
        return taken


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if BINARY is None:
        pytest.fail("no Prometheus binary: set KVSERVING_PROMETHEUS or put it on PATH")
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        servers = [stack.enter_context(MetricsServer()) for _ in range(SLOTS)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        process = start(BINARY, folder, address, servers)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        url = f"http://{address}"
        wait_ready(url, process)
        yield Prometheus(url, servers)


def start(
    binary: str, folder: Path, address: str, servers: Sequence[MetricsServer]
) -> subprocess.Popen[bytes]:
    targets = [
        # Half of the engines are pods, half are known by their address alone.
        {"targets": [s.address], "labels": {"pod": f"engine-{i}"} if i % 2 else {}}
        for i, s in enumerate(servers)
    ]
    interval = f"{int(SCRAPE_SECONDS * 1000)}ms"
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": "engines", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    log = (folder / "log").open("wb")
    with log:
        return subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/-/ready", timeout=1).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready (exit status {process.poll()})")


class PrometheusWorld:
    """Two servers, observed through Prometheus in real time."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.servers = prometheus.take()
        self.prometheus = prometheus
        first = SLOTS - len(prometheus._unused) - 2
        self.targets = [
            EngineTarget(f"engine-{first + i}" if i else "by-address", s.url)
            for i, s in enumerate(self.servers)
        ]
        self.source = PrometheusSource(prometheus.url, windows=WINDOWS)

    def serve(self, index: int, text: str | None) -> None:
        """Export `text`."""
        self.servers[index].text = text

    async def tick(self, targets: Sequence[EngineTarget] | None = None) -> Observation:
        """Wait for scrapes of what is now exported, then look."""
        at = await self.settled()
        return await self.source.observe(self.targets if targets is None else targets, at)

    async def settled(self) -> float:
        """Wait for scrapes that begin from now on and do not time out; their time."""
        changed = time.time()
        deadline = time.monotonic() + 60
        while (at := await asyncio.to_thread(self._scraped, changed)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("Prometheus does not scrape")
            await asyncio.sleep(0.02)
        return at

    def _scraped(self, since: float) -> float | None:
        """A time when the last scrape of every server was a new one and went as it should.

        Asks Prometheus itself: on a busy machine a scrape may time out although it was answered.
        """
        newest = []
        for server in self.servers:
            query = f'up{{instance="{server.address}"}}[1m]'
            answer = httpx.get(f"{self.prometheus.url}/api/v1/query", params={"query": query})
            series = answer.raise_for_status().json()["data"]["result"]
            at, up = series[0]["values"][-1] if series else (0.0, "0")
            if at <= since or up != str(int(server.text is not None)):
                return None
            newest.append(at)
        # A query's window leaves out what is later than this, failures among it.
        return max(newest)


@pytest.fixture
async def world(prometheus: Prometheus) -> AsyncIterator[PrometheusWorld]:
    world = PrometheusWorld(prometheus)
    yield world
    world.source.close()


class TestPrometheusSource(SourceConformance):
    """The suite."""


async def test_a_new_source_has_its_windows_at_once(
    prometheus: Prometheus, busy: list[str]
) -> None:
    world = PrometheusWorld(prometheus)
    for text in busy:
        world.serve(0, text)
        world.serve(1, text)
        at = await world.settled()
    # A later look would find engines that stand still: nothing new is served to show progress.
    seen = await world.source.observe(world.targets, at)
    world.source.close()
    assert seen.blocking() == ()
    assert isinstance(seen.fleet.preemptions_per_second, Known)
    assert seen.fleet.preemptions_per_second.value > 0


async def test_a_target_that_prometheus_does_not_know(prometheus: Prometheus) -> None:
    source = PrometheusSource(prometheus.url, windows=WINDOWS)
    seen = await source.observe([EngineTarget("stranger", "http://10.9.9.9:8000")], time.time())
    source.close()
    assert [p.reason for p in seen.problems] == [ProblemReason.METRICS_MISSING]
    assert "does not scrape it" in seen.problems[0].message


async def test_matchers_narrow_the_search(prometheus: Prometheus, busy: list[str]) -> None:
    world = PrometheusWorld(prometheus)
    world.serve(0, busy[0])
    world.serve(1, busy[0])
    world.source.close()
    at = await world.settled()
    for job, found in (("engines", True), ('of"another\\', False)):
        source = PrometheusSource(prometheus.url, matchers={"job": job}, windows=WINDOWS)
        seen = await source.observe(world.targets, at)
        source.close()
        assert [isinstance(e.running, Known) for e in seen.engines] == [found, found], job
