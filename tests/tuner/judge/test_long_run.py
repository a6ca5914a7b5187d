"""A comparison without an end: its error does not grow, and what begins late is found."""

import math
import random

import pytest

from kvserving_tuner.judge import Comparison, Criterion, LongRun, floor, likelihood, task
from kvserving_tuner.judge.long_run import LOST

TASK = task("Task", 2)
LIKELIHOOD = likelihood("Likelihood", 2)
FLOOR = floor("Floor", 70)


def after(run: LongRun, numbers: list[float]) -> LongRun:
    for number in numbers:
        run = run.add([number])
    return run


def until_harmful(run: LongRun, number: float, alpha: float, most: int = 5000) -> int:
    """Numbers after which harm is shown; `most` where it is not."""
    for count in range(most):
        if run.is_harmful(alpha):
            return count
        run = run.add([number])
    return most


def test_the_first_epoch_is_a_plain_comparison_at_half_the_rate() -> None:
    numbers = [0.0, 1.0] * 20
    run, plain = after(LongRun.start(TASK), numbers), Comparison.start(TASK).add(numbers)
    assert run.comparison == plain
    edge = math.exp(-plain.harm.log_peak)
    assert run.is_harmful(2.001 * edge)
    assert not run.is_harmful(1.999 * edge)


def test_shares_of_all_epochs_are_no_more_than_the_whole() -> None:
    shares = []
    for epoch in range(2000):
        run = LongRun(Comparison.start(TASK).add([1.0] * 30), epoch)
        edge = math.exp(-run.comparison.harm.log_peak)
        low, high = 0.0, 1e8
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if run.is_harmful(middle) else (middle, high)
        shares.append(edge / high)
    assert shares[:3] == pytest.approx([1 / 2, 1 / 6, 1 / 12])
    assert math.fsum(shares) == pytest.approx(1, abs=1e-3)
    assert math.fsum(shares) < 1


@pytest.mark.parametrize("at_once", [1, 7, 40])
def test_a_test_that_has_lost_gives_way_to_one_that_begins_with_the_next_numbers(
    at_once: int,
) -> None:
    run = LongRun.start(TASK)
    while run.comparison.harm.e_value >= LOST:
        assert run.epoch == 0
        run = run.add([0.0] * at_once)
    seen = run.count
    run = run.add([1.0] * at_once)
    assert (run.epoch, run.before, run.count) == (1, seen, seen + at_once)
    assert run.comparison == Comparison.start(TASK).add([1.0] * at_once)


def test_a_test_that_wins_is_never_given_up() -> None:
    run = after(LongRun.start(TASK), [1.0, 0.0] * 200)
    assert (run.epoch, run.count) == (0, 400)


@pytest.mark.parametrize(("criterion", "number"), [(TASK, 1.0), (LIKELIHOOD, 0.4), (FLOOR, 1.0)])
def test_a_fall_after_months_shows_nearly_as_soon_as_one_at_once(
    criterion: Criterion, number: float
) -> None:
    fresh = LongRun.start(criterion)
    late = after(fresh, [0.0] * 20_000)
    at_once = until_harmful(fresh, number, 0.001)
    # Two logarithms of its number, and what good numbers have lost.
    assert until_harmful(late, number, 0.001) < at_once + 50
    endless = Comparison.start(criterion).add([0.0] * 20_000)
    assert not endless.add([number] * (at_once + 50)).is_harmful(0.001)


@pytest.mark.parametrize("criterion", [TASK, FLOOR])
def test_at_the_bound_false_alarms_stay_below_the_rate_however_many_tests(
    criterion: Criterion,
) -> None:
    alpha, alarms = 0.1, 0
    for seed in range(40):
        chance, run = random.Random(seed), LongRun.start(criterion)
        for _ in range(1500):
            run = run.add([float(chance.random() < criterion.bound)])
            if run.is_harmful(alpha):
                alarms += 1
                break
    # 4 are expected at most; 11 or more would come in one of 700 such tests.
    assert alarms <= 10
