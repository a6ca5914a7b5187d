"""The live part of the demo: load, observe, let the tuner act, and measure before and after."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live

from demo.view import Sight, render
from harness.counters import Phase, read
from harness.errors import WaitTimeoutError
from harness.kube import KVSERVING, Kube
from harness.load import ChatLoad
from harness.serving import engine_pods
from kvserving_tuner.settings import Slo
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.sources.direct import DirectSource

OBSERVE_SECONDS = 5.0
SETTLE_SECONDS = 20.0
"""The first answers after a change belong to the backlog of the time before it."""


@dataclass(frozen=True)
class Result:
    """What was measured."""

    before: Phase
    after: Phase
    cap_before: int
    cap_after: int
    lost: int
    first_error: str | None


class Show:
    """Runs the load and the live view, and takes the measurements."""

    def __init__(
        self,
        kube: Kube,
        console: Console,
        name: str,
        namespace: str,
        model: str,
        clients: int,
        slo: Slo,
        api_key: str = "",
    ) -> None:
        """Prepare for one KVServing; `clients` conversations run at once."""
        self._kube = kube
        self._console = console
        self._name = name
        self._namespace = namespace
        # One turn each: the lengths, and so what fits, stay the same from phase to phase.
        self._load = ChatLoad(
            kube.service_url(name, namespace),
            model,
            clients,
            max_tokens=192,
            turns=1,
            stagger_seconds=0.25,
            api_key=api_key or "none",
        )
        pods = engine_pods(kube, name, namespace)
        self._targets = [
            EngineTarget(pod["metadata"]["name"], f"http://{pod['status']['podIP']}:8000")
            for pod in pods
        ]
        self._sight = Sight(slo)

    async def run(self, phase_seconds: float) -> Result:
        """Load, look, let the tuner act, look again."""
        load = asyncio.create_task(self._load.run(duration_seconds=3600))
        watch = asyncio.create_task(self._watch())
        try:
            await self._set_mode("Recommend")
            await self._until(lambda: self._cap() > 0, "the engine shows its cap", 60)
            await asyncio.sleep(SETTLE_SECONDS)
            cap_before = self._cap()
            self._say(f"measuring for {phase_seconds:.0f} s: the tuner may only recommend")
            before = await self._measure(phase_seconds)
            await self._set_mode("Auto")
            await self._until(lambda: 0 < self._cap() < cap_before, "the tuner lowers the cap", 240)
            await self._until(self._settled, "the cap has settled", 240)
            self._say(f"measuring for {phase_seconds:.0f} s under the lower cap")
            after = await self._measure(phase_seconds)
            cap_after = self._cap()
        finally:
            self._load.stop()
            self._say("letting the last answers finish")
            await load
            watch.cancel()
        failures = self._load.failures
        error = failures[0].error if failures else None
        return Result(before, after, cap_before, cap_after, len(failures), error)

    async def _watch(self) -> None:
        async with httpx.AsyncClient() as client:
            source = DirectSource(client)
            told: tuple[str, ...] = ()
            with Live(console=self._console, refresh_per_second=2) as live:
                while True:
                    observation = await source.observe(self._targets, time.time())
                    serving = await asyncio.to_thread(
                        self._kube.get, KVSERVING, self._name, self._namespace
                    )
                    status: Mapping[str, Any] = (serving or {}).get("status", {})
                    self._sight = self._sight.seen(observation, status)
                    live.update(render(self._sight))
                    if not self._console.is_terminal:
                        news, told = self._sight.log[len(told) :], self._sight.log
                        for line in (*news, self._sight.line()):
                            self._console.print(line, soft_wrap=True, markup=False, highlight=False)
                    await asyncio.sleep(OBSERVE_SECONDS)

    async def _measure(self, seconds: float) -> Phase:
        urls = [target.url for target in self._targets]
        start = await asyncio.to_thread(read, urls)
        await asyncio.sleep(seconds)
        return Phase(start, await asyncio.to_thread(read, urls))

    async def _set_mode(self, mode: str) -> None:
        patch = {"spec": {"tuning": {"mode": mode}}}
        await asyncio.to_thread(self._kube.patch, KVSERVING, self._name, self._namespace, patch)
        self._say(f"spec.tuning.mode: {mode}")

    async def _until(self, true: Callable[[], bool], what: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not true():
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"{what}: not within {timeout_seconds:.0f} s")
            await asyncio.sleep(1)

    def _say(self, words: str) -> None:
        self._sight = self._sight.told(words)

    def _cap(self) -> int:
        return self._sight.cap

    def _settled(self) -> bool:
        return time.time() - self._sight.cap_since > SETTLE_SECONDS
