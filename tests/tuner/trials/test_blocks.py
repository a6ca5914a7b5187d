"""Blocks of time: engines with a change beside engines without it."""

from dataclasses import replace

import pytest

from kvserving_tuner.judge import shortfall
from kvserving_tuner.readings import Unknown
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.blocks import Arm, block_of, compared
from kvserving_tuner.trials.plan import GOODPUT_GAIN, Gain, Guard, Plan
from tunerkit.build import NOW, engine, lengths, observation, window

PLAIN = window(finished=60, preemptions=3, tpot=lengths(40))
PLAIN = replace(PLAIN, ttft=lengths(200))


def test_arms_that_are_alike_differ_in_nothing() -> None:
    seen = observation(engine(PLAIN, name="a"), engine(PLAIN, name="b"), engine(PLAIN, name="c"))
    block = block_of(seen, {"a"}, NOW - 60)
    assert block is not None
    assert set(block.numbers) == set(Guard)
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
    assert set(block.numbers) == {Guard.THROUGHPUT, Guard.ERRORS}


def test_failed_requests_are_compared_whatever_the_loads_are() -> None:
    for load in (20, 60, 300):
        failing = window(finished=load, failed=load / 20)
        seen = observation(engine(failing, name="a"), engine(PLAIN, name="b"))
        block = block_of(seen, {"a"}, 0)
        assert block is not None
        assert block.numbers[Guard.ERRORS] > 0.03
        other_way = block_of(seen, {"b"}, 0)
        assert other_way is not None
        assert other_way.numbers[Guard.ERRORS] == pytest.approx(-block.numbers[Guard.ERRORS])


def test_failures_count_up_to_what_the_bound_has_room_for() -> None:
    broken = observation(engine(window(finished=60, failed=60), name="a"), engine(PLAIN, name="b"))
    for percent in (0.1, 2.0, 30.0):
        plan = Plan(guards={Guard.ERRORS: percent})
        block = block_of(broken, {"a"}, 0, most_failed=plan.most_failed)
        assert block is not None
        assert block.numbers[Guard.ERRORS] == plan.guard(Guard.ERRORS).high == plan.most_failed


def test_engines_that_do_not_tell_of_failures_are_told_apart_from_those_without_any() -> None:
    silent = window(finished=60, failed=None)
    for one, other in ((silent, PLAIN), (PLAIN, silent)):
        block = block_of(observation(engine(one, name="a"), engine(other, name="b")), {"a"}, 0)
        assert block is not None
        assert not block.tells_failures
        assert Guard.ERRORS not in block.numbers
    block = block_of(observation(engine(PLAIN, name="a"), engine(PLAIN, name="b")), {"a"}, 0)
    assert block is not None
    assert block.tells_failures
    assert block.numbers[Guard.ERRORS] == 0


@pytest.mark.parametrize(("own", "left"), [(1, 2 / 59), (3, 0), (5, 0)])
def test_a_trials_own_requests_are_no_users(own: float, left: float) -> None:
    failing = window(finished=60, failed=3)
    seen = observation(engine(failing, name="a"), engine(PLAIN, name="b"))
    block = block_of(seen, {"a"}, 0, own_failures={"a": own, "c": 9})
    assert block is not None
    assert block.numbers[Guard.ERRORS] == pytest.approx(left)
    silent = observation(engine(window(failed=None), name="a"), engine(PLAIN, name="b"))
    assert block_of(silent, {"a"}, 0, own_failures={"a": own}) is not None


def test_fewer_requests_without_a_queue_are_no_fault_of_the_engine() -> None:
    idle = replace(PLAIN, waiting=window(waiting=0).waiting)
    light = replace(idle, finished=window(finished=30).finished)
    for candidate, other in ((light, idle), (light, PLAIN), (idle, light)):
        seen = observation(engine(candidate, name="a"), engine(other, name="b"))
        block = block_of(seen, {"a"}, 0)
        assert block is not None
        assert Guard.THROUGHPUT not in block.numbers
    # One engine in turns has the same clients all the time.
    first, second = Arm.of([light]), Arm.of([idle])
    assert compared(first, second, turns=True)[Guard.THROUGHPUT] > 0.3


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


def test_gain_is_measured_against_targets_of_latency_in_the_same_block() -> None:
    slow = replace(PLAIN, ttft=lengths(400))
    seen = observation(engine(PLAIN, name="a"), engine(slow, name="b"), engine(slow, name="c"))
    without = block_of(seen, {"a"}, 0)
    assert without is not None
    assert GOODPUT_GAIN not in without.numbers
    # Of the three only the candidate answers within 0.2 s.
    block = block_of(seen, {"a"}, 0, Slo(ttft_ms=200_000))
    assert block is not None
    assert block.numbers[GOODPUT_GAIN] == pytest.approx(shortfall(1.0, 0.0, 1 / 3))
    alike = block_of(seen, {"a"}, 0, Slo())
    assert alike is not None
    assert alike.numbers[GOODPUT_GAIN] == pytest.approx(0)
    # Nobody in time, or not told: no number.
    for slo in (Slo(ttft_ms=10_000), Slo(tpot_ms=1), Slo(ttft_ms=1)):
        seen = observation(
            engine(replace(slow, tpot=Unknown("renamed")), name="a"), engine(slow, name="b")
        )
        none = block_of(seen, {"a"}, 0, slo)
        assert none is not None
        assert GOODPUT_GAIN not in none.numbers


def test_a_share_that_a_route_decides_is_no_gain() -> None:
    light = replace(PLAIN, finished=window(finished=6).finished)
    seen = observation(engine(light, name="a"), engine(PLAIN, name="b"))
    for weighted in (False, True):
        block = block_of(seen, {"a"}, 0, Slo(), weighted=weighted)
        assert block is not None
        assert (GOODPUT_GAIN in block.numbers) == (not weighted)
    alike = block_of(
        observation(engine(PLAIN, name="a"), engine(PLAIN, name="b")),
        {"a"},
        0,
        Slo(),
        weighted=True,
    )
    assert alike is not None
    assert alike.numbers[GOODPUT_GAIN] == pytest.approx(0)


def test_numbers_of_blocks_are_judged_where_the_plan_says_so() -> None:
    plan = Plan(guards={Guard.TTFT: 10.0}, gain=Gain.CAPACITY)
    assert plan.of_blocks("TTFT") == plan.guard(Guard.TTFT)
    assert plan.of_blocks("TPOT") is None
    gain = plan.of_blocks(GOODPUT_GAIN)
    assert gain is not None
    assert gain.bound == pytest.approx(0.01 / 1.99)
    assert Plan().of_blocks(GOODPUT_GAIN) is None
    assert Plan().targets is None
