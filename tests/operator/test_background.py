"""Work in the background: what is begun, finished, and dropped."""

import asyncio
from collections.abc import AsyncIterator

from kvserving_operator.trials.background import Background


class Work(Background[int]):
    """Numbers, each of them once a test lets it go on, with a rest after each."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Semaphore(0)
        self.rested = asyncio.Semaphore(0)
        self.begun = 0

    async def numbers(self) -> AsyncIterator[int]:
        """What is worked on."""
        for number in range(10):
            self.begun += 1
            await self.goes_on.acquire()
            yield number
            await self.rest(self._rest())

    async def _rest(self) -> None:
        await self.rested.acquire()

    async def until(self, permits: int) -> None:
        """Let so many numbers come."""
        for _ in range(permits):
            self.goes_on.release()
            await pause()


def busy(work: Work) -> bool:
    """Whether something is under way now."""
    return work.under_way


async def pause() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_under_way_is_finished_and_no_more() -> None:
    work = Work()
    assert not busy(work)
    work.begin(work.numbers())
    await pause()
    assert busy(work)
    work.finish()
    assert busy(work)
    await work.until(1)
    assert not busy(work)
    assert work.collect() == (0,)
    assert work.begun == 1


async def test_a_rest_is_no_work_and_ends_at_once() -> None:
    work = Work()
    work.begin(work.numbers())
    await work.until(1)
    assert not busy(work)
    work.finish()
    await pause()
    assert work.begun == 1
    # What was done is kept, and work may begin anew.
    assert work.collect() == (0,)
    work.begin(work.numbers())
    await pause()
    assert busy(work)
    work.rested.release()
    await work.until(2)
    assert work.collect() == (0, 1)
    work.stop()


async def test_a_work_that_was_told_to_finish_while_idle_is_not_held_back_later() -> None:
    work = Work()
    work.finish()
    work.begin(work.numbers())
    work.rested.release()
    await work.until(2)
    assert work.collect() == (0, 1)
    work.stop()
    assert not busy(work)
