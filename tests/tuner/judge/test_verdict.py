"""Verdicts: what a policy's bounds mean for what was measured."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge import (
    Cause,
    Comparison,
    Criterion,
    HardStop,
    Outcome,
    Rules,
    Split,
    Trial,
    floor,
    goodput_gain,
    goodput_loss,
    judge,
    least_to_show,
    likelihood,
    loads_are_comparable,
    relative_rise,
    share_rise,
    symmetric,
    task,
)
from kvserving_tuner.judge.criteria import drop_percent

SOURCE = random.Random(17)


def seen(criterion: Criterion, numbers: Sequence[float]) -> Comparison:
    return Comparison.start(criterion).add(numbers)


def gauss(mean: float, deviation: float, count: int) -> list[float]:
    return [SOURCE.gauss(mean, deviation) for _ in range(count)]


GOOD = seen(likelihood("likelihood", 2), gauss(0.002, 0.01, 150))
BAD = seen(likelihood("likelihood", 2), gauss(0.3, 0.1, 60))
GAINED = seen(goodput_gain("goodput", 1), gauss(-0.2, 0.1, 100))
CALM = seen(relative_rise("tpot", 10), gauss(0.0, 0.05, 100))
TRIAL = Trial(quality={"likelihood": GOOD}, guards={"tpot": CALM}, gain=GAINED)


def test_a_change_that_keeps_its_bounds_and_gains_is_promoted() -> None:
    verdict = judge(TRIAL, Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.PROMOTE, Cause.WITHIN_BOUNDS)
    assert verdict.finding is not None
    assert "goodput" in verdict.message


def test_a_drop_in_quality_rolls_back_whatever_is_gained() -> None:
    verdict = judge(replace(TRIAL, quality={"likelihood": BAD, "other": GOOD}), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.ROLL_BACK, Cause.QUALITY_DROP)
    assert verdict.finding is not None
    assert verdict.finding.percent == pytest.approx(35, abs=6)
    assert "at most 2.00 % accepted" in verdict.message
    assert "n = 60" in verdict.message


def test_the_worst_stratum_decides() -> None:
    strata = {"short": GOOD, "long": BAD}
    verdict = judge(replace(TRIAL, quality=strata), Rules())
    assert verdict.outcome is Outcome.ROLL_BACK


def test_a_guard_rolls_back_alone() -> None:
    slow = seen(relative_rise("tpot", 10), [symmetric(1.5, 1.0)] * 80)
    verdict = judge(replace(TRIAL, guards={"tpot": slow}), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.ROLL_BACK, Cause.GUARD_VIOLATED)
    assert verdict.finding is not None
    assert verdict.finding.percent == pytest.approx(50)
    assert verdict.finding.bound_percent == pytest.approx(10)


def test_the_accepted_error_is_shared_by_all_that_can_roll_back() -> None:
    criterion = relative_rise("ttft", 10)
    barely = Comparison.start(criterion)
    while not barely.is_harmful(0.01):
        barely = barely.add([0.2])
    others = {f"other-{number}": CALM for number in range(9)}
    strict = Rules(false_rollback=0.01)
    for quality, guards in (
        ({}, others), (dict.fromkeys(others, GOOD), {}), ({"likelihood": GOOD}, {}),
    ):  # fmt: skip
        several = Trial(quality, {"ttft": barely, **guards})
        assert judge(several, strict).outcome is not Outcome.ROLL_BACK
        count = 1 + len(quality) + len(guards)
        assert judge(several, Rules(false_rollback=0.01 * count)).outcome is Outcome.ROLL_BACK
    watched = Trial({}, {"ttft": barely}, watched=dict.fromkeys(others, GOOD))
    assert judge(watched, strict).outcome is not Outcome.ROLL_BACK
    assert judge(Trial({}, {"ttft": barely}), strict).outcome is Outcome.ROLL_BACK


@pytest.mark.parametrize("side", ["harm", "safety"])
def test_what_was_shown_stays_shown_whatever_comes_later(side: str) -> None:
    sign = 1 if side == "harm" else -1
    found = Comparison.start(relative_rise("ttft", 10))
    shown = found.is_harmful if side == "harm" else found.is_safe
    while not shown(0.01):
        found = found.add([0.2 * sign])
        shown = found.is_harmful if side == "harm" else found.is_safe
    # As much as takes all of the capital again.
    later = found.add([-0.2 * sign] * 10 * found.count)
    evidence = later.harm if side == "harm" else later.safety
    assert evidence.e_value < 1
    assert later.is_harmful(0.01) if side == "harm" else later.is_safe(0.01)


def test_nothing_is_promoted_without_quality() -> None:
    verdict = judge(replace(TRIAL, quality={}), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.INCONCLUSIVE, Cause.QUALITY_NOT_SHOWN)


def test_few_samples_allow_no_verdict() -> None:
    few = seen(likelihood("likelihood", 2), [0.24] * 29)
    assert judge(replace(TRIAL, quality={"likelihood": few}), Rules()).outcome is Outcome.CONTINUE
    more = few.add([0.24])
    verdict = judge(replace(TRIAL, quality={"likelihood": more}), Rules())
    assert verdict.outcome is Outcome.ROLL_BACK


def test_what_is_open_at_the_end_stays_open() -> None:
    edge = seen(likelihood("likelihood", 2), gauss(0.0198, 0.01, 60))
    rules = Rules(max_samples=60)
    verdict = judge(replace(TRIAL, quality={"likelihood": edge}), rules)
    assert (verdict.outcome, verdict.cause) == (Outcome.INCONCLUSIVE, Cause.QUALITY_NOT_SHOWN)


def test_one_broken_prompt_among_many_forbids_a_pass() -> None:
    broken = GOOD.add([3.0])
    verdict = judge(replace(TRIAL, quality={"likelihood": broken}), Rules())
    assert verdict.outcome is Outcome.CONTINUE


@pytest.mark.parametrize("stop", list(HardStop))
def test_a_hard_stop_needs_no_statistics(stop: HardStop) -> None:
    verdict = judge(replace(TRIAL, hard_stop=stop), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.ROLL_BACK, Cause.HARD_STOP)
    assert stop.value in verdict.message


def test_arms_with_the_wrong_shares_are_not_compared() -> None:
    verdict = judge(replace(TRIAL, split=Split(200, 800, 0.05)), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.CONTINUE, Cause.SPLIT_MISMATCH)
    assert "20 % of the requests instead of 5 %" in verdict.message
    # It excuses no harm, and is none.
    harmed = replace(TRIAL, split=Split(200, 800, 0.05), quality={"likelihood": BAD})
    assert judge(harmed, Rules()).cause is Cause.QUALITY_DROP
    assert judge(replace(TRIAL, split=Split(50, 950, 0.05)), Rules()).outcome is Outcome.PROMOTE


def test_bounds_are_what_policies_say() -> None:
    assert drop_percent(likelihood("l", 2), likelihood("l", 2).bound) == pytest.approx(2)
    assert drop_percent(task("t", 2), task("t", 2).bound) == pytest.approx(2)
    rise = relative_rise("ttft", 10)
    assert rise.bound == pytest.approx(symmetric(1.1, 1.0))
    assert drop_percent(rise, rise.bound) == pytest.approx(10)
    loss = goodput_loss("goodput", 0.99)
    assert loss.bound == pytest.approx(symmetric(1.0, 0.99))
    assert share_rise("errors", 0.001).bound == 0.001


def test_relative_differences_do_not_favor_an_arm() -> None:
    assert symmetric(3.0, 1.0) == -symmetric(1.0, 3.0) == 0.5
    assert symmetric(0.0, 0.0) == 0.0
    with pytest.raises(JudgeError, match="at least 0"):
        symmetric(-1.0, 1.0)


def test_loads_within_a_tenth_are_comparable() -> None:
    assert loads_are_comparable(0.9, 1.0)
    assert not loads_are_comparable(0.89, 1.0)
    assert loads_are_comparable(0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"false_rollback": 0.0}, "false_rollback: expected a number between 0 and 1, got 0.0"),
        ({"min_samples": 50, "max_samples": 40}, r"min_samples: expected 1 to max_samples \(40\)"),
    ],
)
def test_rules_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        replace(Rules(), **change)


def test_a_floor_is_an_absolute_limit_in_both_directions() -> None:
    below = seen(floor("floor", 80), [0.6] * 60)
    verdict = judge(Trial({"floor": below}, {}), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.ROLL_BACK, Cause.QUALITY_DROP)
    assert "floor: 60.00 % missed" in verdict.message
    assert "at most 20.00 % accepted" in verdict.message
    above = seen(floor("floor", 80), [0.05] * 60)
    assert judge(Trial({"floor": above}, {}), Rules()).outcome is Outcome.PROMOTE
    near = seen(floor("floor", 80), [0.0, 1.0, 0.0, 0.0, 0.0] * 12)
    assert judge(Trial({"floor": near}, {}), Rules()).outcome is Outcome.CONTINUE


@pytest.mark.parametrize(("percent", "missed", "most"), [(95, 0.25, 120), (80, 0.4, 150)])
def test_grades_well_below_a_floor_show_it_soon(percent: int, missed: float, most: int) -> None:
    counts = []
    for seed in range(15):
        chance, found = random.Random(seed), Comparison.start(floor("floor", percent))
        while not found.is_harmful(0.0004):
            found = found.add([float(chance.random() < missed)])
        counts.append(found.count)
    assert median(counts) < most


@pytest.mark.parametrize("percent", [0, 100, -1])
def test_a_floor_lies_between_nothing_and_everything(percent: float) -> None:
    with pytest.raises(JudgeError, match="least_percent: expected more than 0 and below 100"):
        floor("floor", percent)


def test_nothing_shows_a_mean_of_0_to_be_below_a_bound_of_0() -> None:
    with pytest.raises(JudgeError, match="needle: expected a bound above 0, got 0"):
        least_to_show(task("needle", 0), 0.05)


def test_an_interval_of_numbers_beyond_the_range_has_no_upper_end() -> None:
    criterion = likelihood("Likelihood", 2)
    within = Comparison.start(criterion).add([0.1] * 40).finding()
    assert within.interval_percent.low < within.percent < within.interval_percent.high < math.inf
    beyond = Comparison.start(criterion).add([1.5] * 40).finding()
    assert beyond.interval_percent.low < beyond.percent < beyond.interval_percent.high == math.inf
    assert f"interval from {beyond.interval_percent.low:.2f} on" in str(beyond)
