"""Reads each engine's own /metrics: no monitoring stack needed, and never older than the call."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import httpx

from kvserving_tuner.observation import Observation
from kvserving_tuner.scrape import MAXIMUM_BYTES, Unreadable, parse
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.sources.base import Attempt, EngineTarget, Histories

TIMEOUT_SECONDS = 3.0
"""An engine that needs longer to answer is not in a state to be tuned."""
CONCURRENCY = 32
OnRead = Callable[[Mapping[str, Attempt]], None]
"""Is shown what was read of each target, before anything is made of it."""


class DirectSource:
    """Scrapes all targets at once; one that fails costs at most the time-out and only itself."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        windows: Windows | None = None,
        thresholds: Thresholds | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        on_read: OnRead | None = None,
    ) -> None:
        self._on_read = on_read
        self._client = client
        self._timeout = timeout_seconds
        self._histories = Histories(windows, thresholds)

    async def observe(self, targets: Sequence[EngineTarget], now: float) -> Observation:
        """Scrape `targets`; their samples count as taken at `now`, when the scrape began."""
        slots = asyncio.Semaphore(CONCURRENCY)

        async def attempt(target: EngineTarget) -> Attempt:
            async with slots:
                return await self._scrape(target, now)

        read = await asyncio.gather(*(attempt(target) for target in targets))
        names = [target.name for target in targets]
        found = dict(zip(names, read, strict=True))
        if self._on_read is not None:
            self._on_read(found)
        return self._histories.update(targets, found, now)

    async def _scrape(self, target: EngineTarget, now: float) -> Attempt:
        url = target.url.rstrip("/") + "/metrics"
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream("GET", url, timeout=self._timeout) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    return Attempt(failure=f"/metrics answered HTTP {response.status_code}")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAXIMUM_BYTES:
                        return Attempt(failure=f"/metrics is longer than {MAXIMUM_BYTES} bytes")
        except (TimeoutError, httpx.TimeoutException):
            return Attempt(failure=f"/metrics did not answer within {self._timeout:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Attempt(failure=f"/metrics: {str(error) or type(error).__name__}")
        scrape = parse(body.decode("utf-8", errors="replace"), now)
        if isinstance(scrape, Unreadable):
            return Attempt(failure=f"/metrics is {scrape.reason}")
        return Attempt((scrape,))
