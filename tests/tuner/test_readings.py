"""Readings keep what is not known."""

import math

import pytest

from kvserving_tuner.readings import (
    Known,
    Reading,
    Stale,
    Unknown,
    combine,
    explain,
    highest,
    known,
    mean,
    ratio,
    reading,
    total,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, Known(1.5, 9.0)),
        (0.0, Known(0.0, 9.0)),
        (None, Unknown("absent")),
        (math.nan, Unknown("NaN")),
        (math.inf, Unknown("infinite")),
        (-math.inf, Unknown("infinite")),
    ],
)
def test_reading(value: float | None, expected: Reading) -> None:
    assert reading(value, 9.0) == expected


def test_sums_are_as_old_as_their_oldest_part() -> None:
    assert total([Known(1, 5), Known(2, 3)]) == Known(3, 3)
    assert highest([Known(1, 5), Known(2, 6)]) == Known(2, 5)
    assert mean([Known(1, 5), Known(2, 6)]) == Known(1.5, 5)


def test_one_unknown_makes_all_unknown_and_one_stale_all_stale() -> None:
    assert total([Known(1, 5), Unknown("gone"), Stale(1, 40)]) == Unknown("gone")
    assert total([Known(1, 5), Stale(2, 40), Stale(2, 50)]) == Stale(5, 50)
    assert isinstance(total([]), Unknown)


def test_a_zero_denominator_is_unknown() -> None:
    assert ratio(Known(0, 1), Known(0, 1)) == Unknown("zero denominator")
    assert ratio(Known(1, 1), Stale(0, 9)) == Unknown("zero denominator")
    assert ratio(Known(1, 1), Known(4, 2)) == Known(0.25, 1)
    assert ratio(Known(1, 1), Unknown("gone")) == Unknown("gone")


def test_an_overflow_is_unknown() -> None:
    assert isinstance(combine(lambda v: v[0] * v[1], [Known(1e300, 1), Known(1e300, 1)]), Unknown)


def test_only_known_values_may_be_acted_on() -> None:
    assert known(Known(0.0, 1)) == 0.0
    assert known(Stale(3, 31)) is None
    assert known(Unknown("x")) is None


def test_words() -> None:
    assert explain(Known(0.25, 0)) == "0.25"
    assert explain(Stale(3, 31.4)) == "3 (31 s old)"
    assert explain(Unknown("NaN")) == "unknown (NaN)"
