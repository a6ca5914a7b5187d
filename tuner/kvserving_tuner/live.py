"""The loop on bare engines by URL, without Kubernetes: same decisions, another pair of hands."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kvserving_tuner.actuators.base import Actuator, Applied
from kvserving_tuner.committing import refused
from kvserving_tuner.decision import Action, Change, Decision, Knob
from kvserving_tuner.errors import ChangeFailed, Rejected, RuntimeAPIError
from kvserving_tuner.loop import decide
from kvserving_tuner.observation import Observation
from kvserving_tuner.rules import Ability
from kvserving_tuner.runtime_client import RuntimeClient, RuntimeState
from kvserving_tuner.screening import Gate, Screened
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.sources.base import EngineTarget, Source
from kvserving_tuner.state import TunerState

INTERVAL_SECONDS = 5.0
"""Four scrapes in a storm's window."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop; `applied` is None unless a change was carried out.

    `screened` is what came of the screening of a format, at the turn at which it was known.
    """

    observation: Observation
    decision: Decision
    failures: tuple[RuntimeAPIError, ...]
    applied: Applied | None
    runtime: tuple[RuntimeState, ...] = ()
    screened: Screened | None = None


class Loop:
    """Observes, decides and acts on a fixed set of engines.

    A change that the decision wants tried is screened by `gate` in the background; once it has
    passed, the loop makes it as soon as it is due again.
    """

    def __init__(
        self,
        targets: Sequence[EngineTarget],
        source: Source,
        client: RuntimeClient,
        actuator: Actuator,
        settings: TuningSettings,
        state: TunerState | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._targets = tuple(targets)
        self._source = source
        self._client = client
        self._actuator = actuator
        self._settings = settings
        self._gate = gate
        self._screening: tuple[Change, asyncio.Task[Screened]] | None = None
        self._passed = ""
        self.state = state or TunerState()

    async def turn(self, now: float) -> Turn:
        """Take one turn at `now`, seconds since the epoch."""
        observation, answers = await asyncio.gather(
            self._source.observe(self._targets, now),
            asyncio.gather(*(self._read(target) for target in self._targets)),
        )
        states = tuple(answer for answer in answers if isinstance(answer, RuntimeState))
        failures = tuple(answer for answer in answers if isinstance(answer, RuntimeAPIError))
        screened = self._screened(now)
        before = self.state
        decision, self.state = decide(self._able(states), observation, states, before, now)
        applied = None
        if decision.action is Action.TRIAL and decision.change is not None:
            self._screen(decision.change)
        if decision.action is Action.CHANGE and decision.change is not None:
            applied = await self._actuator.apply(self._targets, decision.change, decision.id)
            if not applied.states:
                self.state = self._not_made(before, decision.change, applied, now)
        return Turn(observation, decision, failures, applied, states, screened)

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
        try:
            while turns is None or taken < turns:
                began = clock()
                on_turn(await self.turn(began))
                taken += 1
                if turns is None or taken < turns:
                    await sleep(max(0.0, interval_seconds - (clock() - began)))
        finally:
            await self.close()

    async def close(self) -> None:
        """End a screening that is under way."""
        if self._screening is not None:
            task = self._screening[1]
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._screening = None

    def _screen(self, change: Change) -> None:
        if self._gate is not None and self._screening is None:
            task = asyncio.create_task(self._gate.screen(self._targets, change))
            self._screening = (change, task)

    def _screened(self, now: float) -> Screened | None:
        """What came of the screening, once it has ended, and the memory of it."""
        if self._screening is None or not self._screening[1].done():
            return None
        change, task = self._screening
        self._screening = None
        found = task.result()
        if found.passed:
            self._passed = str(change.to_value)
        if found.rejected:
            self.state = refused(
                self._settings, self.state, change.knob, change.to_value, found.message, now
            )
        # Also where the engine could not be asked: it may be asked again.
        self.state = self.state.model_copy(update={"asked": None})
        return found

    def _able(self, states: Sequence[RuntimeState]) -> TuningSettings:
        """The settings, with the format that has passed open to be set until it is in effect."""
        if any(each.effective.kv_cache_dtype == self._passed for each in states):
            self._passed = ""
        if not self._passed:
            return self._settings
        abilities = {**self._settings.abilities, Knob.KV_CACHE_DTYPE: Ability.CHANGE}
        return self._settings.model_copy(
            update={"abilities": abilities, "allowed_dtypes": (self._passed,)}
        )

    def _not_made(
        self, before: TunerState, change: Change, applied: Applied, now: float
    ) -> TunerState:
        """Memory where nothing moved: what engines refuse is not tried again, else it may be."""
        errors = list(applied.failures.values())
        # The way back is tried until it is made: nothing else happens meanwhile.
        goes_back = before.watch is not None
        if (
            change.knob is Knob.MAX_ACTIVE_SEQS
            or goes_back
            or not all(isinstance(error, Rejected | ChangeFailed) for error in errors)
        ):
            return before
        why = f"the engine refused it: {errors[0]}" if errors else "the engine refused it"
        return refused(self._settings, before, change.knob, change.to_value, why, now)

    async def _read(self, target: EngineTarget) -> RuntimeState | RuntimeAPIError:
        try:
            return await self._client.get(target)
        except RuntimeAPIError as error:
            return error
