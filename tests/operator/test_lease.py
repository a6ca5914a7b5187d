"""Two operators never both act, whatever their clocks and networks do."""

import asyncio

import pytest

from kvserving_operator.errors import LeaseLost
from kvserving_operator.kinds import Kind
from kvserving_operator.lease import LeaseGuard, LeaseSettings
from operatorkit.cluster import Clock, MemoryCluster

DURATION = 15.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> MemoryCluster:
    return MemoryCluster(clock)


def guard(cluster: MemoryCluster, clock: Clock, identity: str) -> LeaseGuard:
    """Give a guard whose pauses move the clock."""

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    settings = LeaseSettings("system", "operator", identity, DURATION)
    return LeaseGuard(cluster, settings, monotonic=clock, sleep=sleep)


def holder(cluster: MemoryCluster) -> str:
    return str(cluster.of(Kind.Lease)["operator"]["spec"]["holderIdentity"])


async def test_the_first_takes_it(cluster: MemoryCluster, clock: Clock) -> None:
    first = guard(cluster, clock, "first")
    with pytest.raises(LeaseLost):
        first.ensure_held()
    await first.acquire()
    first.ensure_held()
    assert "first" == holder(cluster)


async def test_the_second_waits_until_the_first_stops_renewing(
    cluster: MemoryCluster, clock: Clock
) -> None:
    first, second = guard(cluster, clock, "first"), guard(cluster, clock, "second")
    await first.acquire()
    taken_at = clock.now
    await second.acquire()
    assert clock.now - taken_at >= DURATION
    assert "second" == holder(cluster)
    assert second.held
    assert not first.held
    with pytest.raises(LeaseLost):
        first.ensure_held()


async def test_a_released_one_is_taken_at_once(cluster: MemoryCluster, clock: Clock) -> None:
    first, second = guard(cluster, clock, "first"), guard(cluster, clock, "second")
    await first.acquire()
    await first.release()
    assert not first.held
    before = clock.now
    await second.acquire()
    assert before == clock.now


async def test_a_restarted_process_takes_its_own_at_once(
    cluster: MemoryCluster, clock: Clock
) -> None:
    await guard(cluster, clock, "pod-1").acquire()
    before = clock.now
    await guard(cluster, clock, "pod-1").acquire()
    assert before == clock.now


async def test_never_do_two_hold_it(cluster: MemoryCluster, clock: Clock) -> None:
    first, second = guard(cluster, clock, "first"), guard(cluster, clock, "second")
    await first.acquire()
    taking = asyncio.create_task(second.acquire())
    while not taking.done():
        assert not (first.held and second.held)
        await asyncio.sleep(0)
    await taking
    assert not first.held


async def test_a_holder_that_cannot_renew_stops_before_it_expires(
    cluster: MemoryCluster, clock: Clock
) -> None:
    first = guard(cluster, clock, "first")
    await first.acquire()
    taken_at = clock.now
    cluster.broken = True
    await first.keep()
    assert clock.now - taken_at <= DURATION
    assert not first.held


async def test_a_short_outage_loses_nothing(cluster: MemoryCluster, clock: Clock) -> None:
    first = guard(cluster, clock, "first")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    cluster.broken = True
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cluster.broken = False
    for _ in range(20):
        await asyncio.sleep(0)
    assert first.held
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_one_that_was_taken_over_is_lost(cluster: MemoryCluster, clock: Clock) -> None:
    first = guard(cluster, clock, "first")
    await first.acquire()
    stolen = cluster.of(Kind.Lease)["operator"]
    stolen["spec"]["holderIdentity"] = "other"
    stolen["metadata"]["resourceVersion"] = "stolen"
    await first.keep()
    assert not first.held
    assert "other" == holder(cluster)


async def test_releasing_what_is_lost_leaves_it_alone(cluster: MemoryCluster, clock: Clock) -> None:
    first, second = guard(cluster, clock, "first"), guard(cluster, clock, "second")
    await first.acquire()
    await second.acquire()
    await first.release()
    assert "second" == holder(cluster)
