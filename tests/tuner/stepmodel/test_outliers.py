"""Outliers are left out, and what is no outlier is kept."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.stepmodel.outliers import MOST_DROPPED, without_outliers

NUMBERS = st.floats(1e-6, 1e6)


def line(count: int, noise: float, seed: int = 1) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [
        (float(n), (0.006 + 9e-5 * n) * (1 + chance.gauss(0, noise)))
        for n in (chance.randint(4, 120) for _ in range(count))
    ]


def test_noise_is_kept() -> None:
    for seed in range(50):
        seen = line(16, 0.05, seed)
        assert without_outliers(seen) == seen


def test_wild_windows_are_left_out_wherever_they_are() -> None:
    for seed in range(50):
        seen = line(12, 0.05, seed)
        wild = [(60.0, 0.5), (60.0, 0.0001), (5.0, 0.09)]
        assert without_outliers([*seen[:4], *wild, *seen[4:]]) == seen


def test_where_many_are_far_off_there_is_no_line() -> None:
    seen = [*line(8, 0.02), *((float(n), 1.0) for n in range(10, 15))]
    assert without_outliers(seen) == seen


def test_windows_that_ran_alike_have_no_line() -> None:
    alike = [(32.0, 0.01), (32.0, 0.01), (32.0, 5.0)]
    assert without_outliers(alike) == alike
    assert without_outliers([]) == []


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=16))
def test_most_windows_are_always_kept_in_their_order(seen: list[tuple[float, float]]) -> None:
    kept = without_outliers(seen)
    assert len(kept) >= (1 - MOST_DROPPED) * len(seen)
    rest = iter(seen)
    assert all(each in rest for each in kept)
