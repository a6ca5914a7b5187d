"""Work that takes longer than a look: what is done of it waits for the next one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Results that come one after another while the operator goes on looking."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._done: list[Result] = []
        self._task: asyncio.Task[None] | None = None
        self._is_last = False
        self._resting = False
        self._asked_at: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether something is being worked on; a rest between two pieces of work is nothing."""
        return self._task is not None and not self._task.done() and not self._resting

    @property
    def unanswered_seconds(self) -> float:
        """For how long the engine that is being asked has not answered; 0 while none is."""
        return 0.0 if self._asked_at is None else max(0.0, self._clock() - self._asked_at)

    def collect(self) -> tuple[Result, ...]:
        """Results since the last look."""
        done, self._done = tuple(self._done), []
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()
        return done

    def begin(self, results: AsyncIterator[Result]) -> None:
        """Begin with this work, unless other work is under way."""
        if self._task is None:
            self._is_last = False
            self._task = asyncio.create_task(self._run(results))

    def finish(self) -> None:
        """Do what is under way and begin nothing more; a rest ends now."""
        self._is_last = True
        if self._task is not None and self._resting:
            self._task.cancel()
            self._task = None

    def stop(self) -> None:
        """Drop what is under way: an engine ends the request of a caller who has hung up."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._done, self._asked_at = None, [], None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Note that an engine is asked now."""
        self._asked_at = self._clock()
        try:
            yield
        finally:
            self._asked_at = None

    async def rest(self, pause: Awaitable[None]) -> None:
        """Wait between two pieces of work."""
        self._resting = True
        try:
            await pause
        finally:
            self._resting = False

    async def _run(self, results: AsyncIterator[Result]) -> None:
        async for result in results:
            self._done.append(result)
            if self._is_last:
                break
