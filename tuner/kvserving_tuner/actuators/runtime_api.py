"""Applies live changes through each engine's runtime API and reads them back."""

import asyncio
from collections.abc import Mapping, Sequence

from kvserving_tuner.actuators.base import Applied
from kvserving_tuner.decision import Change, Knob
from kvserving_tuner.errors import BadAnswer, Busy, RuntimeAPIError
from kvserving_tuner.runtime_client import RuntimeClient, RuntimeState
from kvserving_tuner.sources.base import EngineTarget

BUSY_RETRIES = 3
BUSY_PAUSE_SECONDS = 0.5
"""Another change holds the engine for about one step."""
SWITCH_SECONDS = 120.0
"""Most time for a change of the KV cache's format: 1.4 to 1.9 s on an H200 with 8 layers, and more
with each layer, on a slow CPU and while kernels are compiled."""


class RuntimeActuator:
    """PATCHes all engines at once."""

    def __init__(
        self, client: RuntimeClient, busy_pause_seconds: float = BUSY_PAUSE_SECONDS
    ) -> None:
        self._client = client
        self._pause = busy_pause_seconds

    async def apply(
        self, targets: Sequence[EngineTarget], change: Change, change_id: str
    ) -> Applied:
        """Apply `change`; an engine counts as changed only if it reports the new value itself."""
        answers = await asyncio.gather(
            *(self._apply_one(target, change, change_id) for target in targets)
        )
        states: dict[str, RuntimeState] = {}
        failures: dict[str, RuntimeAPIError] = {}
        for target, answer in zip(targets, answers, strict=True):
            if isinstance(answer, RuntimeAPIError):
                failures[target.name] = answer
            else:
                states[target.name] = answer
        return Applied(states, failures)

    async def _apply_one(
        self, target: EngineTarget, change: Change, change_id: str
    ) -> RuntimeState | RuntimeAPIError:
        field, value = change.knob.runtime_field, change.to_value
        timeout = SWITCH_SECONDS if change.knob is Knob.KV_CACHE_DTYPE else None
        try:
            state = await self._patch(target, {field: value}, change_id, timeout)
        except RuntimeAPIError as error:
            return error
        got = getattr(state.effective, field)
        if got != value:
            return BadAnswer(target.name, f"{field}: expected {value} in effect, got {got}")
        return state

    async def _patch(
        self,
        target: EngineTarget,
        changes: Mapping[str, object],
        change_id: str,
        timeout_seconds: float | None,
    ) -> RuntimeState:
        for _ in range(BUSY_RETRIES):
            try:
                return await self._client.patch(target, changes, change_id, timeout_seconds)
            except Busy:
                await asyncio.sleep(self._pause)
        return await self._client.patch(target, changes, change_id, timeout_seconds)
