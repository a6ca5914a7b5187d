"""Blocks of time: engines with a change beside engines without it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.judge import shortfall
from kvserving_tuner.observation import GaugeWindow, Window
from kvserving_tuner.readings import Known, Unknown
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.alternation import Alternation
from kvserving_tuner.trials.arm import Arm
from kvserving_tuner.trials.blocks import block_of, compared
from kvserving_tuner.trials.plan import GOODPUT_GAIN, TARGETS, Gain, Guard, Plan
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


def gauge(first: float, last: float) -> GaugeWindow:
    middle = (first + last) / 2
    return GaugeWindow(first, last, min(first, last), middle, max(first, last), max(first, last))


def numbers_of(candidate: Window, other: Window, *, weighted: bool = False) -> dict[str, float]:
    seen = observation(engine(candidate, name="a"), engine(other, name="b"))
    block = block_of(seen, {"a"}, 0, Slo(), weighted=weighted)
    assert block is not None
    return block.numbers


@pytest.mark.parametrize("in_flight", [8, 11, 12, 13, 20])
@pytest.mark.parametrize("waits", [0, 4])
def test_full_engines_tell_a_gain_of_candidates_that_have_no_fewer_requests(
    in_flight: int, waits: int
) -> None:
    full = replace(PLAIN, running=gauge(8, 8), waiting=gauge(5, 5))
    faster = replace(
        PLAIN, finished=window(finished=90).finished, waiting=gauge(waits, waits),
        running=gauge(in_flight - waits, in_flight - waits),
    )  # fmt: skip
    numbers = numbers_of(faster, full)
    assert (GOODPUT_GAIN in numbers) == (in_flight >= 12)
    assert GOODPUT_GAIN not in numbers_of(faster, full, weighted=True)
    if GOODPUT_GAIN in numbers:
        assert numbers[GOODPUT_GAIN] == pytest.approx(shortfall(1.5, 1.0, 1 / 2))
    # Engines that are not full might do as much with as many requests.
    light = replace(full, waiting=gauge(0, 0))
    assert GOODPUT_GAIN not in numbers_of(faster, light)


@pytest.mark.parametrize("weighted", [False, True])
def test_engines_that_are_sent_as_much_are_compared_where_one_does_not_keep_up(
    weighted: bool,
) -> None:
    keeps_up = replace(PLAIN, finished=window(finished=90).finished, waiting=gauge(0, 0))
    falls_behind = replace(PLAIN, waiting=gauge(0, 30), ttft=lengths(900))
    numbers = numbers_of(keeps_up, falls_behind, weighted=weighted)
    assert numbers[GOODPUT_GAIN] == pytest.approx(shortfall(1.5, 1.0, 1 / 2))
    assert numbers[Guard.TTFT] < 0
    assert numbers[Guard.THROUGHPUT] < 0
    worse = numbers_of(falls_behind, keeps_up, weighted=weighted)
    assert worse[Guard.TTFT] > 0.05
    assert worse[Guard.THROUGHPUT] > 0.05


def test_numbers_of_blocks_are_judged_where_the_plan_says_so() -> None:
    plan = Plan(guards={Guard.TTFT: 10.0}, gain=Gain.CAPACITY)
    assert plan.of_blocks("TTFT") == plan.guard(Guard.TTFT)
    assert plan.of_blocks("TPOT") is None
    gain = plan.of_blocks(GOODPUT_GAIN)
    assert gain is not None
    assert gain.bound == pytest.approx(0.01 / 1.99)
    assert Plan().of_blocks(GOODPUT_GAIN) is None


SLO = Slo(ttft_ms=500, tpot_ms=50, percentile=95)


def seconds(late: float, count: float = 100) -> Histogram:
    """Latencies of which so many are above half a second, and all are above 50 ms."""
    return Histogram((0.05, 0.5, math.inf), (0.0, count - late, late), 0.3 * count)


def gauges(first: float, last: float) -> GaugeWindow:
    return GaugeWindow(first, last, min(first, last), (first + last) / 2, max(first, last), last)


def lighter(late: float, **changes: object) -> Window:
    """A window of half the load of `PLAIN`, in which nobody waits at first."""
    light = window(finished=30, tokens=2500, waiting=0)
    return replace(light, ttft=seconds(late), **changes)  # type: ignore[arg-type]


KEEPS = replace(PLAIN, ttft=seconds(4))


def targets(candidate: Window, stable: Window, slo: Slo = SLO, **more: Any) -> dict[str, float]:
    seen = observation(engine(candidate, name="a"), engine(stable, name="b"))
    block = block_of(seen, {"a"}, NOW - 60, slo, **more)
    assert block is not None
    return {name: n for name, n in block.numbers.items() if name in TARGETS.values()}


def test_where_loads_are_unlike_the_targets_are_what_is_kept() -> None:
    assert targets(lighter(15), KEEPS) == {"TTFTTarget": pytest.approx(0.15)}
    assert targets(lighter(1), KEEPS) == {"TTFTTarget": pytest.approx(0.01)}
    # Both of them late: nothing against the candidate.
    assert targets(lighter(50), replace(KEEPS, ttft=seconds(40))) == {"TTFTTarget": 0.05}
    # By percentile.
    p80 = Slo(ttft_ms=500, percentile=80)
    overloaded = replace(KEEPS, ttft=seconds(15))
    assert targets(lighter(60), overloaded, p80) == {"TTFTTarget": pytest.approx(0.6)}


def test_doubt_between_two_edges_is_in_the_candidates_favor() -> None:
    tpot = seconds(0)
    between = Slo(tpot_ms=200)
    # Of the candidate none is surely late, of the other all may be.
    assert targets(lighter(0, tpot=tpot), replace(KEEPS, tpot=tpot), between) == {
        "TPOTTarget": pytest.approx(0.05 - 0.2)
    }
    # Of an answer of one token there is no time per further token.
    assert targets(lighter(0, tpot=seconds(0, 0)), replace(KEEPS, tpot=tpot), between) == {}


def test_without_targets_or_latencies_nothing_changes() -> None:
    assert targets(lighter(90), KEEPS, Slo()) == {}
    assert targets(replace(lighter(90), ttft=Unknown("renamed")), KEEPS) == {}
    assert targets(lighter(90), replace(KEEPS, ttft=Unknown("renamed"))) == {}


def test_latencies_of_like_loads_are_compared_with_each_other_alone() -> None:
    alike = replace(KEEPS, waiting=gauges(0, 0), ttft=seconds(90))
    assert targets(alike, KEEPS) == {}


@pytest.mark.parametrize(
    "more",
    [
        {"finished": Known(90, NOW)},
        # So many came, and wait.
        {"waiting": gauges(0, 50)},
        {"running": gauges(8, 58)},
        {"prompt_tokens": Known(5000, NOW)},
        # What is not known is no reason to judge.
        {"prompt_tokens": Unknown("renamed")},
        {"running": Unknown("renamed")},
    ],
)
def test_who_has_more_to_do_is_not_held_to_the_targets(more: dict[str, Any]) -> None:
    assert targets(lighter(90), KEEPS)
    assert targets(lighter(90, **more), KEEPS) == {}


def rested(candidate: Window, stable: Window, since: float = NOW - 60, **more: Any) -> bool:
    block = block_of(
        observation(engine(candidate, name="a"), engine(stable, name="b")), {"a"}, since, **more
    )
    assert block is not None
    return block.rested


def test_what_is_left_over_from_a_heavier_load_is_not_held_against_the_candidate() -> None:
    queue = lighter(90, waiting=gauges(40, 40))
    assert targets(queue, KEEPS) == {}
    # A queue that has come about under the lighter load is its own.
    assert targets(queue, KEEPS, rested=True)
    assert rested(lighter(0), KEEPS)
    assert rested(queue, KEEPS, rested=True)
    assert not rested(queue, KEEPS)
    assert not rested(replace(lighter(0), finished=Known(90, NOW)), KEEPS, rested=True)
    # Nothing is known of the time between.
    assert not rested(queue, KEEPS, NOW - 600, rested=True)
    assert not rested(replace(queue, waiting=Unknown("renamed")), KEEPS)


def test_turns_of_one_engine_are_held_to_the_targets_too() -> None:
    first = Arm.of([lighter(90)], SLO)
    assert Arm.model_validate_json(first.model_dump_json()) == first
    turns, _ = Alternation().measured(first, SLO)
    _, numbers = turns.measured(Arm.of([KEEPS], SLO), SLO)
    assert numbers["TTFTTarget"] == pytest.approx(0.2)
    turns, _ = Alternation().measured(Arm.of([lighter(90, waiting=gauges(40, 40))], SLO), SLO)
    _, numbers = turns.measured(Arm.of([KEEPS], SLO), SLO)
    assert "TTFTTarget" not in numbers


def test_a_target_is_guarded_where_its_latency_is() -> None:
    plan = Plan(guards={Guard.TTFT: 10.0}, slo=SLO)
    assert plan.guarding == {"TTFT", "TTFTTarget"}
    criterion = plan.of_blocks("TTFTTarget")
    assert criterion is not None
    assert criterion.bound == pytest.approx(0.05)
    assert plan.of_blocks("TPOTTarget") is None
    assert Plan(guards={Guard.ERRORS: 1.0}).guarding == {"Errors"}
