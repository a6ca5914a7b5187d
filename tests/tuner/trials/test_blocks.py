"""Blocks of time: engines with a change beside engines without it."""

from dataclasses import replace

import pytest

from kvserving_tuner.readings import Unknown
from kvserving_tuner.trials.blocks import block_of
from kvserving_tuner.trials.plan import Guard, Plan
from tunerkit.build import NOW, engine, lengths, observation, window

PLAIN = window(finished=60, preemptions=3, tpot=lengths(40))
PLAIN = replace(PLAIN, ttft=lengths(200))


def test_arms_that_are_alike_differ_in_nothing() -> None:
    seen = observation(engine(PLAIN, name="a"), engine(PLAIN, name="b"), engine(PLAIN, name="c"))
    block = block_of(seen, {"a"}, NOW - 60)
    assert block is not None
    assert set(block.numbers) == {Guard.TTFT, Guard.TPOT, Guard.PREEMPTIONS, Guard.THROUGHPUT}
    assert set(block.numbers.values()) == {0.0}
    assert block.end == NOW


@pytest.mark.parametrize(
    ("guard", "worse"),
    [
        (Guard.TTFT, replace(PLAIN, ttft=lengths(400))),
        (Guard.TPOT, replace(PLAIN, tpot=lengths(60))),
        (Guard.PREEMPTIONS, window(finished=60, preemptions=30, tpot=lengths(40))),
        (Guard.THROUGHPUT, window(finished=40, preemptions=2)),
    ],
)
def test_what_is_worse_is_above_nothing(guard: Guard, worse: object) -> None:
    seen = observation(engine(worse, name="a"), engine(PLAIN, name="b"))  # type: ignore[arg-type]
    block = block_of(seen, {"a"}, NOW - 60)
    assert block is not None
    assert block.numbers[guard] > 0.05
    assert all(abs(n) < 1e-9 for other, n in block.numbers.items() if other is not guard)
    other_way = block_of(seen, {"b"}, NOW - 60)
    assert other_way is not None
    assert other_way.numbers[guard] == pytest.approx(-block.numbers[guard])


def test_latencies_of_unlike_loads_are_not_compared() -> None:
    busy = replace(PLAIN, finished=window(finished=90).finished, ttft=lengths(900))
    block = block_of(observation(engine(busy, name="a"), engine(PLAIN, name="b")), {"a"}, 0)
    assert block is not None
    assert set(block.numbers) == {Guard.THROUGHPUT}


def test_without_requests_there_is_nothing_to_compare() -> None:
    idle = window(finished=0)
    block = block_of(observation(engine(idle, name="a"), engine(idle, name="b")), {"a"}, 0)
    assert block is not None
    assert block.numbers == {}


def test_a_block_begins_where_the_last_one_ended() -> None:
    seen = observation(engine(PLAIN, name="a"), engine(PLAIN, name="b"))
    assert block_of(seen, {"a"}, NOW - 59) is None


def test_there_is_no_block_while_an_engine_is_unknown_or_an_arm_is_empty() -> None:
    young = engine(Unknown("too young"), name="b")
    assert block_of(observation(engine(PLAIN, name="a"), young), {"a"}, 0) is None
    assert block_of(observation(engine(PLAIN, name="a")), {"a"}, 0) is None


def test_every_guard_of_a_plan_has_a_criterion_within_its_range() -> None:
    plan = Plan(guards=dict.fromkeys(Guard, 10.0))
    for guard in Guard:
        criterion = plan.guard(guard)
        assert criterion.low < criterion.bound < criterion.high
