"""Corrections that follow an engine, and neither outliers nor nonsense."""

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.stepmodel.corrected import (
    HIGHEST,
    LOWEST,
    OUTLIERS_IN_A_ROW,
    Correction,
    StepWindow,
    corrected,
)

ANY = st.floats(allow_nan=True, allow_infinity=True)


def windows(
    count: int, fixed: float, growing: float, seed: int = 1, noise: float = 0.05
) -> Iterator[StepWindow]:
    """Windows of an engine whose parts take so many times what the model says."""
    chance = random.Random(seed)
    for _ in range(count):
        sequences = chance.randint(4, 120)
        parts = 0.006, 9e-5 * sequences
        measured = (fixed * parts[0] + growing * parts[1]) * (1 + chance.gauss(0, noise))
        yield StepWindow(*parts, measured)


@pytest.mark.parametrize(("fixed", "growing"), [(1.0, 1.0), (1.3, 1.2), (0.8, 1.3), (1.25, 0.75)])
def test_both_parts_are_found(fixed: float, growing: float) -> None:
    found = corrected(windows(150, fixed, growing))
    assert found.fixed == pytest.approx(fixed, rel=0.1)
    assert found.growing == pytest.approx(growing, rel=0.1)
    assert found.is_trusted


def test_a_correction_predicts_better_than_its_model() -> None:
    found = corrected(windows(40, 1.25, 1.25))
    after = list(windows(40, 1.25, 1.25, seed=2))
    plain = sum(abs(w.fixed_seconds + w.growing_seconds - w.measured_seconds) for w in after)
    better = sum(
        abs(found.seconds(w.fixed_seconds, w.growing_seconds) - w.measured_seconds) for w in after
    )
    assert better < plain / 3


def test_an_outlier_moves_nothing() -> None:
    before = corrected(windows(60, 1.1, 1.1))
    for factor in (0.1, 5, 100):
        after = before.learned(StepWindow(0.006, 0.004, 0.010 * factor))
        assert (after.fixed, after.growing, after.windows) == (
            before.fixed,
            before.growing,
            before.windows,
        )
    # The next window that is as usual ends the row.
    assert before.learned(StepWindow(0.006, 0.004, 0.05)).outliers == 1
    assert corrected(windows(5, 1.1, 1.1), before).outliers == 0


def test_an_engine_that_has_changed_is_followed_after_a_while() -> None:
    before = corrected(windows(200, 0.8, 0.8))
    row = list(windows(30, 1.5, 1.5, seed=3))
    doubted = corrected(row[:OUTLIERS_IN_A_ROW], before)
    assert not doubted.is_trusted
    assert doubted.fixed == before.fixed
    after = corrected(row, before)
    assert after.is_trusted
    assert after.seconds(0.006, 0.004) == pytest.approx(0.015, rel=0.15)


def test_outliers_on_both_sides_are_no_change() -> None:
    before = corrected(windows(60, 1.0, 1.0))
    wild = [StepWindow(0.006, 0.004, 0.1), StepWindow(0.006, 0.004, 0.0005)] * 20
    after = corrected(wild, before)
    assert (after.fixed, after.growing) == (before.fixed, before.growing)
    assert after.variances == before.variances


def test_no_correction_leaves_its_bounds_and_one_that_would_is_not_trusted() -> None:
    found = corrected(windows(300, 3.0, 3.0))
    assert max(found.fixed, found.growing) == HIGHEST
    assert not found.is_trusted


@given(st.lists(st.builds(StepWindow, ANY, ANY, ANY), max_size=30))
def test_nonsense_teaches_nothing_harmful(found: list[StepWindow]) -> None:
    after = corrected(found)
    assert LOWEST <= after.fixed <= HIGHEST
    assert LOWEST <= after.growing <= HIGHEST
    assert all(math.isfinite(each) for each in after.variances)
    assert after.variances[0] >= 0
    assert after.variances[2] >= 0


@pytest.mark.parametrize(
    "window",
    [
        StepWindow(0.0, 0.004, 0.01),
        StepWindow(0.006, -0.004, 0.01),
        StepWindow(0.006, 0.004, 0.0),
        StepWindow(0.006, 0.004, math.nan),
        StepWindow(0.006, math.inf, 0.01),
    ],
)
def test_a_window_that_says_nothing_teaches_nothing(window: StepWindow) -> None:
    before = corrected(windows(10, 1.2, 1.2))
    assert before.learned(window) == before


def test_the_share_that_grows_follows_the_factors() -> None:
    assert Correction().growing_share(0.006, 0.002) == pytest.approx(0.25)
    assert Correction(growing=2.0).growing_share(0.006, 0.002) == pytest.approx(0.4)
