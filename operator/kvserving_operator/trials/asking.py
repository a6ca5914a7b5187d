"""Asks engines tasks in the background and grades what they answer.

An engine computes at most one task at a time, and while users have requests there, tasks take at
most a fifth of the time: as much as probes of likelihood may (`docs/probe.md`). What a task takes
of one engine is thus a fifth of one of the sequences that it runs at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from kvserving_operator.trials.background import Background
from kvserving_tuner.errors import ChangeFailed, Rejected, RuntimeAPIError, ServerFailed
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.fitting import Fitted, fitted
from kvserving_tuner.probes.scoring import is_garbage
from kvserving_tuner.probes.tasks import reference_task
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.trials.tasks import Cell

SHARE = 0.2
"""Most of the time that tasks take of an engine which has users' requests."""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Ask:
    """One task, and the engines that are to answer it."""

    trial: str
    number: int
    cell: Cell
    place: int
    """The task's number in its cell."""
    model: str
    least_tokens: int
    """Tokens that the prompt has to be longer than."""
    candidate: EngineTarget | None = None
    """None where the answer in 16 bits is wanted alone."""
    baseline: EngineTarget | None = None
    """None where that answer is known, or there is none."""
    recorded: float | None = None
    """Its grade where it is known."""
    apart: bool = False
    """Whether the two have models of their own, and so tokens of their own."""
    busy: bool = True
    """Whether users have requests on one of these engines."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Those that are asked."""
        return tuple(each.name for each in (self.candidate, self.baseline) if each is not None)


@dataclass(frozen=True)
class Answer:
    """Grades of what was answered, between 0 and 1."""

    ask: Ask
    grade: float | None = None
    baseline: float | None = None
    is_garbage: bool = False
    """Whether the engine with the change gave no answer at all (nothing, no text, or a loop), and
    not the one in 16 bits too."""
    error: str = ""
    too_short: bool = False
    failed: tuple[str, ...] = ()
    """Engines that failed to answer: those count the request among their users'."""
    at: float = 0.0
    """When it was known, in seconds since the epoch."""


class Asking(Background[Answer]):
    """A few tasks one after another."""

    def __init__(
        self,
        client: ProbeClient,
        sleep: Sleep = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(clock)
        self._client = client
        self._sleep = sleep
        self._monotonic = monotonic

    def ask(self, asks: Sequence[Ask]) -> None:
        """Begin with these tasks, unless others are under way."""
        self.begin(self._answers(asks))

    async def _answers(self, asks: Sequence[Ask]) -> AsyncIterator[Answer]:
        for ask in asks:
            began = self._monotonic()
            with self._asking():
                answer = await self._answer(ask)
            yield replace(answer, at=self._clock())
            if answer.error:
                break
            if ask.busy:
                await self.rest(self._sleep((1 / SHARE - 1) * (self._monotonic() - began)))

    async def _answer(self, ask: Ask) -> Answer:
        try:
            return await self._graded(ask)
        except RuntimeAPIError as error:
            return Answer(ask, error=_told(error))

    async def _graded(self, ask: Ask) -> Answer:
        one = ask.candidate or ask.baseline
        if one is None:
            raise ValueError(f"task {ask.number}: expected an engine to ask, got none")
        found = await self._found(ask, one)
        theirs = found
        if ask.apart and ask.candidate is not None and ask.baseline is not None:
            theirs = await self._found(ask, ask.baseline)
        if len(found.token_ids) <= ask.least_tokens:
            message = (
                f"{found.task.prompt.name} has {len(found.token_ids)} tokens, expected more than "
                f"{ask.least_tokens}: two blocks, and what eviction keeps"
            )
            return Answer(ask, error=message, too_short=True)
        grade, baseline = await asyncio.gather(
            self._tried(ask, found, ask.candidate), self._tried(ask, theirs, ask.baseline)
        )
        if isinstance(grade, RuntimeAPIError) or isinstance(baseline, RuntimeAPIError):
            return _failed(ask, grade, baseline)
        return Answer(
            ask,
            None if grade is None else grade.grade,
            ask.recorded if baseline is None else baseline.grade,
            is_garbage=grade is not None
            and grade.is_garbage
            and (baseline is None or not baseline.is_garbage),
        )

    async def _found(self, ask: Ask, target: EngineTarget) -> Fitted:
        cell = ask.cell
        if not cell.prompts:
            return await fitted(self._client, target, ask.model, cell.probe, ask.place, cell.tokens)
        task = reference_task(cell.prompts[ask.place])
        return Fitted(task, await self._client.question(target, ask.model, task.prompt))

    async def _tried(
        self, ask: Ask, found: Fitted, target: EngineTarget | None
    ) -> "_Given | RuntimeAPIError | None":
        """A grade, or why there is none: what one engine fails says nothing of the other one."""
        try:
            return await self._grade(ask, found, target)
        except RuntimeAPIError as error:
            return error

    async def _grade(self, ask: Ask, found: Fitted, target: EngineTarget | None) -> "_Given | None":
        if target is None:
            return None
        task = found.task
        salt = f"kvserving-trial-{ask.trial}"
        answer = await self._client.answer(
            target, ask.model, found.token_ids, task.answer_tokens, salt
        )
        return _Given(task.grade(task.start + answer), is_garbage(answer))


@dataclass(frozen=True)
class _Given:
    """What one engine's answer comes to."""

    grade: float
    is_garbage: bool


def _failed(ask: Ask, *answers: object) -> Answer:
    errors = [each for each in answers if isinstance(each, RuntimeAPIError)]
    return Answer(
        ask,
        error=_told(errors[0]),
        failed=tuple(e.target for e in errors if isinstance(e, ServerFailed | ChangeFailed)),
    )


def _told(error: RuntimeAPIError) -> str:
    return error.told if isinstance(error, Rejected) else str(error)
