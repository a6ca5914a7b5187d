"""The loop on bare engines by URL, without Kubernetes: same decisions, another pair of hands."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvserving_tuner.actuators.base import Actuator, Applied
from kvserving_tuner.decision import Action, Decision
from kvserving_tuner.errors import RuntimeAPIError
from kvserving_tuner.loop import decide
from kvserving_tuner.observation import Observation
from kvserving_tuner.runtime_client import RuntimeClient, RuntimeState
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.sources.base import EngineTarget, Source
from kvserving_tuner.state import TunerState

INTERVAL_SECONDS = 5.0
"""Four scrapes in a storm's window."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop; `applied` is None unless a change was carried out."""

    observation: Observation
    decision: Decision
    failures: tuple[RuntimeAPIError, ...]
    applied: Applied | None


class Loop:
    """Observes, decides and acts on a fixed set of engines."""

    def __init__(
        self,
        targets: Sequence[EngineTarget],
        source: Source,
        client: RuntimeClient,
        actuator: Actuator,
        settings: TuningSettings,
        state: TunerState | None = None,
    ) -> None:
        self._targets = tuple(targets)
        self._source = source
        self._client = client
        self._actuator = actuator
        self._settings = settings
        self.state = state or TunerState()

    async def turn(self, now: float) -> Turn:
        """Take one turn at `now`, seconds since the epoch."""
        observation, answers = await asyncio.gather(
            self._source.observe(self._targets, now),
            asyncio.gather(*(self._read(target) for target in self._targets)),
        )
        states = [answer for answer in answers if isinstance(answer, RuntimeState)]
        failures = tuple(answer for answer in answers if isinstance(answer, RuntimeAPIError))
        before = self.state
        decision, self.state = decide(self._settings, observation, states, before, now)
        applied = None
        if decision.action is Action.CHANGE and decision.change is not None:
            applied = await self._actuator.apply(self._targets, decision.change, decision.id)
            if not applied.states:
                # Nothing moved, so nothing is to be remembered; the next turn may try again.
                self.state = before
        return Turn(observation, decision, failures, applied)

    async def run(
        self,
        on_turn: Callable[[Turn], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        interval_seconds: float = INTERVAL_SECONDS,
        turns: int | None = None,
    ) -> None:
        """Take turns for ever, or `turns` times, one every `interval_seconds`."""
        taken = 0
        while turns is None or taken < turns:
            began = clock()
            on_turn(await self.turn(began))
            taken += 1
            if turns is None or taken < turns:
                await sleep(max(0.0, interval_seconds - (clock() - began)))

    async def _read(self, target: EngineTarget) -> RuntimeState | RuntimeAPIError:
        try:
            return await self._client.get(target)
        except RuntimeAPIError as error:
            return error
