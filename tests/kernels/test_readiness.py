"""Readiness: tokens prove it, an idle engine is asked for one, a hung one loses it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvserving_kernels.plugin.readiness import (
    FRESH_SECONDS,
    PROGRESS_SECONDS,
    RETRY_SECONDS,
    Proof,
    Readiness,
)


class FakeProbe:
    """An engine whose own completions finish when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.dead: str | None = None
        self.user_token_at: float | None = None
        self.step_at: float | None = None
        self.completions = 0
        self.error: Exception | None = None
        self.may_finish = asyncio.Event()
        self.may_finish.set()

    def dead_reason(self) -> str | None:
        """Why the engine is dead."""
        return self.dead

    def last_user_token_at(self) -> float | None:
        """When users last got a token."""
        return self.user_token_at

    def last_step_at(self) -> float | None:
        """When the scheduler last stepped."""
        return self.step_at

    async def complete(self) -> None:
        """Produce a token."""
        self.completions += 1
        await self.may_finish.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
async def probe() -> AsyncIterator[FakeProbe]:
    fake = FakeProbe()
    yield fake
    fake.may_finish.set()
    await asyncio.sleep(0)


@pytest.fixture
def readiness(probe: FakeProbe) -> Readiness:
    return Readiness(probe, lambda: probe.now, wait_seconds=0.01)


async def test_an_idle_engine_is_asked_for_one_token_and_not_again_while_that_is_fresh(
    probe: FakeProbe, readiness: Readiness
) -> None:
    first = await readiness.check()
    assert (first.ready, first.proof) == (True, Proof.COMPLETION)
    probe.now += FRESH_SECONDS
    again = await readiness.check()
    assert (again.ready, again.age_seconds, probe.completions) == (True, FRESH_SECONDS, 1)
    probe.now += 1
    assert (await readiness.check()).ready
    assert probe.completions == 2


async def test_users_tokens_spare_the_engine_a_completion(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.user_token_at = probe.now - 3
    verdict = await readiness.check()
    assert (verdict.ready, verdict.proof, verdict.age_seconds) == (True, Proof.TRAFFIC, 3)
    assert probe.completions == 0


async def test_concurrent_checks_share_one_completion(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.may_finish.clear()
    checks = [asyncio.create_task(readiness.check()) for _ in range(5)]
    await asyncio.sleep(0)
    probe.may_finish.set()
    assert all(verdict.ready for verdict in await asyncio.gather(*checks))
    assert probe.completions == 1


async def test_a_hung_engine_is_not_ready_and_gets_no_second_request(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.user_token_at = probe.now
    probe.step_at = probe.now
    probe.may_finish.clear()
    probe.now += FRESH_SECONDS + 1
    for waited in (0, 7):
        probe.now += waited
        verdict = await readiness.check()
        assert not verdict.ready
        assert verdict.reason == f"a one-token completion has been waiting for {waited} s"
    assert probe.completions == 1
    probe.may_finish.set()
    assert (await readiness.check()).ready


async def test_a_saturated_engine_that_steps_stays_ready_while_our_request_queues(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.user_token_at = probe.now
    probe.may_finish.clear()
    probe.now += FRESH_SECONDS + 1
    probe.step_at = probe.now - 1
    verdict = await readiness.check()
    assert (verdict.ready, verdict.proof) == (True, Proof.PROGRESS)
    probe.now += PROGRESS_SECONDS
    probe.step_at = probe.now
    assert not (await readiness.check()).ready


async def test_steps_alone_never_make_an_engine_ready(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.step_at = probe.now
    probe.may_finish.clear()
    assert not (await readiness.check()).ready


async def test_a_dead_engine_is_not_ready_however_fresh_its_tokens(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.user_token_at = probe.now
    probe.dead = "the engine core is dead"
    verdict = await readiness.check()
    assert (verdict.ready, verdict.reason) == (False, "the engine core is dead")


async def test_an_engine_that_dies_under_our_request_is_reported_dead(
    probe: FakeProbe, readiness: Readiness
) -> None:
    probe.may_finish.clear()
    check = asyncio.create_task(readiness.check())
    await asyncio.sleep(0)
    probe.dead = "the engine core is dead"
    assert (await check).reason == "the engine core is dead"


async def test_a_failing_completion_is_reported_and_not_retried_at_once(probe: FakeProbe) -> None:
    results: list[bool] = []
    readiness = Readiness(probe, lambda: probe.now, results.append, wait_seconds=0.01)
    probe.error = RuntimeError("no free slot")
    for _ in range(3):
        verdict = await readiness.check()
        assert verdict.reason == "a one-token completion failed: RuntimeError: no free slot"
    assert probe.completions == 1
    probe.now += RETRY_SECONDS + 0.1
    probe.error = None
    assert (await readiness.check()).ready
    assert results == [False, True]
