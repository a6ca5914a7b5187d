"""Shares of failed requests: fair between arms of unlike size, and to a bound in basis points."""

import math
import random
from collections.abc import Callable
from itertools import combinations

import pytest

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge import (
    Cause,
    Comparison,
    Criterion,
    Outcome,
    Part,
    Rules,
    Trial,
    judge,
    share_difference,
    share_missed,
    share_rise,
    target_missed,
)

TEN_BASIS_POINTS = share_rise("Errors", 0.001)
P95 = target_missed("TTFTTarget", 0.05)
Arms = Callable[[random.Random], tuple[Part, Part]]


def failures(source: random.Random, requests: int, chance: float) -> Part:
    """Requests that fail independently; jumps from one failure to the next."""
    count, place = 0, 0
    while chance > 0:
        place += 1 + int(math.log(1 - source.random()) / math.log1p(-chance))
        if place > requests:
            break
        count += 1
    return Part(count, requests)


def arms(candidate: int, stable: int, chance: float, rise: float = 0.0) -> Arms:
    return lambda source: (
        failures(source, candidate, chance + rise),
        failures(source, stable, chance),
    )


def bad_minutes(candidate: int, stable: int) -> Arms:
    """Arms that fail in bursts, at the same time: a backend that both depend on."""

    def block(source: random.Random) -> tuple[Part, Part]:
        chance = 0.4 if source.random() < 0.1 else 0.001
        return failures(source, candidate, chance), failures(source, stable, chance)

    return block


def blocks_to_rollback(
    source: random.Random, block: Arms, alpha: float, most: int, criterion: Criterion
) -> int | None:
    seen = Comparison.start(criterion)
    for count in range(1, most + 1):
        if criterion is TEN_BASIS_POINTS:
            number = share_difference(*block(source), criterion.high)
        else:
            number = share_missed(*block(source), criterion.bound)
        assert number is not None
        seen = seen.add([number])
        if seen.is_harmful(alpha):
            return count
    return None


def by_all_draws(part: Part, drawn: int, most: float) -> float:
    requests = [1] * int(part.count) + [0] * int(part.of - part.count)
    shares = [min(sum(draw) / drawn, most) for draw in combinations(requests, drawn)]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("most", [0.05, 0.3, 0.5, 1.0])
def test_the_larger_arm_counts_as_the_mean_of_all_draws_from_it(most: float) -> None:
    for of in range(1, 9):
        for count in range(of + 1):
            for drawn in range(1, of + 1):
                found = share_difference(Part(count, of), Part(0, drawn), most)
                expected = by_all_draws(Part(count, of), drawn, most)
                assert found == pytest.approx(expected), (count, of, drawn)
                other = share_difference(Part(0, drawn), Part(count, of), most)
                assert other == pytest.approx(-expected)


def test_without_requests_on_both_sides_there_is_no_difference() -> None:
    assert share_difference(Part(0, 0), Part(3, 9), 0.05) is None
    assert share_difference(Part(3, 9), Part(0, 0), 0.05) is None
    with pytest.raises(JudgeError, match="a part of 3 requests, got 4"):
        Part(4, 3)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(arms(20, 380, 0.001), id="few on trial"),
        pytest.param(arms(20, 380, 0.001, rise=0.001), id="few on trial, at the bound"),
        pytest.param(arms(380, 20, 0.02), id="few beside it, and many fail"),
        pytest.param(arms(300, 40, 0.06), id="more fail than counts"),
        pytest.param(arms(50, 50, 0.03), id="equal arms, and many fail"),
        pytest.param(bad_minutes(20, 200), id="bad minutes, few on trial"),
        pytest.param(bad_minutes(200, 20), id="bad minutes, few beside it"),
    ],
)
def test_chance_rolls_back_no_more_often_than_accepted(block: Arms) -> None:
    # Looked at after each of 100 blocks, at a rate of 5 %: 5 of 100 are accepted in the mean, and a
    # test that is at that rate exceeds 10 in one of a hundred.
    alarms = sum(
        blocks_to_rollback(random.Random(seed), block, 0.05, 100, TEN_BASIS_POINTS) is not None
        for seed in range(100)
    )
    assert alarms <= 10


@pytest.mark.parametrize("failed", range(1, 8))
def test_a_few_failures_among_few_requests_are_no_verdict(failed: int) -> None:
    # All on the candidate, in as many blocks as there are of them, and then none any more.
    numbers = [share_difference(Part(1, 20), Part(0, 20), TEN_BASIS_POINTS.high)] * failed
    numbers += [share_difference(Part(0, 20), Part(0, 20), TEN_BASIS_POINTS.high)] * 20
    seen = Comparison.start(TEN_BASIS_POINTS).add([each for each in numbers if each is not None])
    assert judge(Trial({}, {"Errors": seen}), Rules()).outcome is not Outcome.ROLL_BACK


@pytest.mark.parametrize(
    ("block", "median"),
    [
        (arms(50, 50, 0.0, rise=0.2), 14),
        (arms(5, 95, 0.0, rise=0.2), 25),
        (arms(50, 50, 0.0, rise=0.05), 20),
        (arms(50, 50, 0.01, rise=0.02), 50),
        (arms(200, 200, 0.0, rise=0.02), 32),
        (arms(50, 50, 0.0, rise=0.01), 75),
    ],
)
def test_what_fails_more_often_is_found(block: Arms, median: int) -> None:
    # At the rate of a policy of 1 %, half of it spent on screening, and shared by five guards.
    found = [
        blocks_to_rollback(random.Random(seed), block, 0.001, 300, TEN_BASIS_POINTS)
        for seed in range(21)
    ]
    assert sorted(each or 301 for each in found)[10] <= median


def test_the_verdict_names_value_bound_number_and_interval() -> None:
    number = share_difference(Part(4, 100), Part(0, 100), TEN_BASIS_POINTS.high)
    assert number is not None
    seen = Comparison.start(TEN_BASIS_POINTS).add([number] * 60)
    verdict = judge(Trial({}, {"Errors": seen}), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.ROLL_BACK, Cause.GUARD_VIOLATED)
    assert "Errors: 4.00 % more failed (95 % interval " in verdict.message
    assert "n = 60), at most 0.10 % accepted" in verdict.message


@pytest.mark.parametrize("bound", [0.0, 0.001, 0.02, 0.3, 0.99])
def test_any_bound_has_room_above_it(bound: float) -> None:
    criterion = share_rise("Errors", bound)
    assert criterion.low < criterion.bound < criterion.high <= 1
    everything = Comparison.start(criterion).add([criterion.high] * 2000)
    assert everything.is_harmful(0.001)


def test_a_bound_of_everything_is_none() -> None:
    with pytest.raises(JudgeError, match="to below 1, got 1"):
        share_rise("Errors", 1.0)


def overloads(candidate: int, stable: int) -> Arms:
    """A load that now and then is too much for both arms."""

    def block(source: random.Random) -> tuple[Part, Part]:
        chance = source.choice([0.01, 0.01, 0.1, 0.9])
        return failures(source, candidate, chance), failures(source, stable, chance)

    return block


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(arms(50, 50, 0.05), id="both just keep the target"),
        pytest.param(arms(20, 200, 0.06), id="both just miss it, few on trial"),
        pytest.param(arms(200, 20, 0.06), id="both just miss it, few beside it"),
        pytest.param(arms(200, 20, 0.15), id="both miss it, few beside it"),
        pytest.param(arms(50, 50, 0.5), id="both are overloaded"),
        pytest.param(overloads(20, 100), id="both are overloaded at times"),
        pytest.param(overloads(100, 20), id="both are overloaded at times, few beside it"),
    ],
)
def test_what_the_others_do_not_keep_either_is_not_held_against_a_change(block: Arms) -> None:
    alarms = sum(
        blocks_to_rollback(random.Random(seed), block, 0.05, 100, P95) is not None
        for seed in range(100)
    )
    assert alarms <= 10


@pytest.mark.parametrize(
    ("block", "median"),
    [
        (arms(20, 100, 0.01, rise=0.9), 16),
        (arms(20, 100, 0.01, rise=0.3), 20),
        (arms(20, 100, 0.01, rise=0.14), 40),
    ],
)
def test_a_change_that_misses_what_the_others_keep_is_found(block: Arms, median: int) -> None:
    found = [blocks_to_rollback(random.Random(seed), block, 0.001, 300, P95) for seed in range(21)]
    assert sorted(each or 301 for each in found)[10] <= median


def test_a_block_in_which_the_others_miss_the_target_says_nothing_against_a_change() -> None:
    assert share_missed(Part(10, 100), Part(5, 100), 0.05) == pytest.approx(0.1)
    assert share_missed(Part(90, 100), Part(6, 100), 0.05) == pytest.approx(0.05)
    assert share_missed(Part(6, 100), Part(10, 100), 0.05) == pytest.approx(0.01)
    # Both count up to four times of what is allowed.
    assert share_missed(Part(0, 100), Part(90, 100), 0.05) == pytest.approx(P95.low)
    assert share_missed(Part(90, 100), Part(0, 100), 0.05) == pytest.approx(P95.high)
    assert share_missed(Part(0, 0), Part(1, 3), 0.05) is None
    assert share_missed(Part(1, 3), Part(0, 0), 0.05) is None


def test_a_missed_target_is_told_as_such() -> None:
    verdict = judge(Trial({}, {"TTFTTarget": Comparison.start(P95).add([0.2] * 40)}), Rules())
    assert (verdict.outcome, verdict.cause) == (Outcome.ROLL_BACK, Cause.GUARD_VIOLATED)
    assert verdict.message.startswith("TTFTTarget: 20.00 % late (95 % interval ")
    assert verdict.message.endswith("n = 40), at most 5.00 % accepted")


@pytest.mark.parametrize("allowed", [0.0, 0.001, 0.05, 0.5, 0.99])
def test_any_percentile_has_room_above_it(allowed: float) -> None:
    criterion = target_missed("TTFTTarget", allowed)
    assert criterion.low < criterion.bound < criterion.high
    with pytest.raises(JudgeError, match="to below 1, got 1"):
        target_missed("TTFTTarget", 1.0)
