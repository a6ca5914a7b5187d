"""Brings engines to `spec.kvCache` while they serve, and remembers those that could not follow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from kvserving_operator.live import (
    KVSettings,
    Refusal,
    current_refusals,
    differences,
    next_to_change,
)
from kvserving_operator.observe import PodView
from kvserving_operator.targets import target_of
from kvserving_tuner.errors import BadAnswer, Busy, ChangeFailed, Rejected, RuntimeAPIError
from kvserving_tuner.runtime_client import RuntimeClient, RuntimeState

logger = logging.getLogger(__name__)

CHANGE_SECONDS = 60.0
"""A GPU engine captures its graphs anew: 3 to 8 s were measured, more with more sizes."""
BUSY_PAUSE_SECONDS = 0.5
ENDED = "its engine ended while it took the change"

Remember = Callable[[tuple[Refusal, ...]], Awaitable[None]]


@dataclass(frozen=True)
class Change:
    """One engine, before and after."""

    pod: str
    before: RuntimeState
    after: RuntimeState


@dataclass(frozen=True)
class Switched:
    """What one turn came to."""

    settings: KVSettings | None = None
    """What the engines are to run with; None where nothing is known of that."""
    changes: tuple[Change, ...] = ()
    pending: tuple[str, ...] = ()
    """Pods that differ and are still to be changed."""
    refusals: tuple[Refusal, ...] = ()
    """All that count, of which `new` came in this turn."""
    new: tuple[Refusal, ...] = ()

    def joined(self, other: Self, aside: bool) -> Self:
        """Give it with what became of other pods; the changes alone of those that stand aside."""
        changes = (*self.changes, *other.changes)
        whole = self if aside or other.settings is None else other
        return replace(whole, changes=changes)

    def complaint(self, refusal: Refusal) -> str:
        """What a user is told of a refusal."""
        return f"spec.kvCache: {self.settings}: pod {refusal.pod}: {refusal.message}"


@dataclass(frozen=True)
class Request:
    """Settings for engines; `key` names the attempt."""

    settings: KVSettings
    key: str
    known: Sequence[Refusal] = field(default_factory=tuple)
    urgent: bool = False
    """Whether all engines are changed at once: quality fell, so none is worth its load."""


class Switcher:
    """Sends settings to engines."""

    def __init__(self, runtime: RuntimeClient, may_act: Callable[[], None]) -> None:
        self._runtime = runtime
        self._may_act = may_act

    async def bring(
        self,
        request: Request,
        pods: Sequence[PodView],
        runtime: Mapping[str, RuntimeState],
        token: str | None,
        now: float,
        remember: Remember,
    ) -> Switched:
        """Change the engines whose turn it is; never raises for one that is down.

        Each attempt is noted before the engine is asked: an engine that ends over it is not asked
        again, so that no pod crashes over and over.
        """
        settings = request.settings
        refusals = current_refusals(request.known, pods, request.key)
        kept, changes = list(refusals), list[Change]()
        by_name = {pod.name: pod for pod in pods}
        names = next_to_change(pods, runtime, settings, refusals, at_once=request.urgent)
        for together in [names] if request.urgent else [(name,) for name in names]:
            notes = [self._note(by_name[name], request.key) for name in together]
            await remember((*kept, *notes))
            answers = await asyncio.gather(
                *(
                    self._change(
                        by_name[name],
                        token,
                        differences(settings, runtime[name]),
                        f"{request.key}-{now:.0f}",
                    )
                    for name in together
                ),
                return_exceptions=True,
            )
            for note, answer in zip(notes, answers, strict=True):
                if isinstance(answer, RuntimeState):
                    changes.append(Change(note.pod, runtime[note.pod], answer))
                else:
                    kept.append(_refused(note, answer))
            if not all(isinstance(answer, RuntimeState) for answer in answers):
                break
        await remember(tuple(kept))
        now_in_force = {**runtime, **{change.pod: change.after for change in changes}}
        counting = tuple(each for each in kept if not (each.ended and each not in refusals))
        refused = {each.pod for each in counting}
        pending = tuple(
            pod.name
            for pod in pods
            if pod.name not in refused
            and pod.name in now_in_force
            and differences(settings, now_in_force[pod.name])
        )
        new = tuple(each for each in counting if each not in refusals)
        return Switched(settings, tuple(changes), pending, counting, new)

    def _note(self, pod: PodView, key: str) -> Refusal:
        return Refusal(pod=pod.name, container=pod.container_id, key=key, message=ENDED, ended=True)

    async def _change(
        self, pod: PodView, token: str | None, changes: Mapping[str, object], change_id: str
    ) -> RuntimeState:
        """Change one engine and read it back."""
        self._may_act()
        target = target_of(pod, token)
        try:
            return await self._runtime.patch(target, changes, change_id, CHANGE_SECONDS)
        except Busy:
            # A cap is set within a step; that another change of the cache runs shows at the next
            # turn.
            await asyncio.sleep(BUSY_PAUSE_SECONDS)
            return await self._runtime.patch(target, changes, change_id, CHANGE_SECONDS)


def _refused(note: Refusal, error: BaseException) -> Refusal:
    """What is noted of an engine that was not changed; anything but the API's errors is raised."""
    if isinstance(error, Rejected | ChangeFailed | BadAnswer):
        return note.model_copy(update={"message": error.message, "ended": False})
    if not isinstance(error, RuntimeAPIError):
        raise error
    # What became of it shows at the next turn, when the engine is read again.
    logger.warning("engine %s was not changed: %s", note.pod, error)
    return note
