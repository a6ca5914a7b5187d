"""The benchmark's arrays against the judge, number by number."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kvserving_tuner.judge import Comparison, Criterion, likelihood, relative_rise, task

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from judge_arrays import Array, Capitals, peeked, simulate, upper_bound


@pytest.mark.parametrize(
    ("criterion", "scatter"),
    [
        (task("task", 0), 0.4), (task("task", 2), 0.2), (likelihood("likelihood", 2), 0.05),
        (relative_rise("ttft", 10), 0.1),
    ],
)  # fmt: skip
def test_capitals_are_those_of_the_judge(criterion: Criterion, scatter: float) -> None:
    source = np.random.default_rng(4)
    numbers = source.normal(criterion.bound + 0.1 * scatter, scatter, (300, 3))
    numbers[::7] = 0.0
    tests = Comparison.start(criterion).tests
    harm, safe = (Capitals.start(test, 3) for test in tests)
    for row in numbers:
        harm.add(row)
        safe.add(-row)
    for trial in range(3):
        one = Comparison.start(criterion).add(map(float, numbers[:, trial]))
        for array, evidence in ((harm, one.harm), (safe, one.safety)):
            assert array.steady[trial] + array.other[trial] == pytest.approx(evidence.e_value)
            assert np.log(array.peak[trial]) == pytest.approx(evidence.log_peak, abs=1e-9)


def test_trials_are_decided_at_the_pairs_at_which_the_judge_decides() -> None:
    criterion, most = task("task", 2), 600
    source = np.random.default_rng(5)
    drops = source.choice([-1.0, 0.0, 1.0], p=(0.02, 0.8, 0.18), size=(most, 40))
    drops[:, 20:] = -drops[:, 20:]
    place = 0

    columns = np.arange(40)

    def draw(_: np.random.Generator, shape: tuple[int, int]) -> Array:
        nonlocal place, columns
        if shape[1] != columns.size:
            columns = np.array([n for n in columns if decided[n][0] > place])
        assert shape[1] == columns.size
        place += shape[0]
        return drops[place - shape[0] : place][:, columns]

    decided = []
    for trial in range(40):
        one, harmful, safe = Comparison.start(criterion), np.inf, np.inf
        for number in drops[:, trial]:
            one = one.add([float(number)])
            if one.count >= 30 and one.is_harmful(0.005):
                harmful = min(harmful, one.count)
            if one.count >= 30 and one.is_safe(0.05):
                safe = min(safe, one.count)
        decided.append((harmful, safe))
    found = simulate(
        criterion, draw, 40, source, harm_alpha=0.005, safe_alpha=0.05, least=30, most=most
    )
    for trial, (harmful, safe) in enumerate(decided):
        assert found.harmful[trial] == harmful
        if harmful == np.inf:
            assert found.safe[trial] == safe
    assert {harmful < np.inf for harmful, _ in decided} == {True, False}


def test_a_peeked_test_alarms_more_often_than_one_that_is_looked_at_once() -> None:
    def draw(source: np.random.Generator, shape: tuple[int, int]) -> Array:
        return source.choice([-1.0, 0.0, 1.0], p=(0.05, 0.9, 0.05), size=shape)

    ever, once = peeked(
        task("task", 0), draw, 2000, np.random.default_rng(1), quantile=2.326, every=50, most=1000
    )
    assert 5 <= once <= 40
    assert ever > 2 * once


def test_upper_bounds_are_those_of_tables() -> None:
    # Clopper and Pearson, one-sided 95 %: the rule of three, and the bound behind 12 of 2,000.
    assert upper_bound(0, 2000) == pytest.approx(1 - 0.05 ** (1 / 2000))
    assert upper_bound(1, 10) == pytest.approx(0.39416, abs=1e-5)
    assert upper_bound(12, 2000) < 0.01 < upper_bound(13, 2000)
