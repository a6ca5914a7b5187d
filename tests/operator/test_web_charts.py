"""Geometry of charts: everything lies inside, gaps stay gaps, and marks do not hide each other."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.web.charts import (
    HEIGHT,
    WIDTH,
    Dot,
    Mark,
    chart,
    nice_step,
)
from kvserving_operator.web.history import Band

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def bands() -> st.SearchStrategy[Band]:
    return st.tuples(NUMBERS, NUMBERS, st.one_of(NUMBERS, st.just(math.inf))).map(
        lambda three: (
            Band(sorted(three)[1], sorted(three)[0], sorted(three)[2])
            if math.isfinite(sorted(three)[1])
            else Band(three[0], min(three), math.inf)
        )
    )


@given(
    st.lists(st.tuples(st.floats(0, 1000), bands()), max_size=40),
    st.one_of(st.none(), st.floats(0, 1e5)),
)
def test_everything_lies_inside(found: list[Dot], limit: float | None) -> None:
    found = sorted(found, key=lambda dot: dot[0])
    drawn = chart(found, (0.0, 1000.0), limit=limit)
    pairs = re.findall(r"(-?[\d.]+),(-?[\d.]+)", drawn.line + drawn.band)
    assert "nan" not in drawn.line + drawn.band
    assert "inf" not in drawn.line + drawn.band
    for x, y in (*((float(a), float(b)) for a, b in pairs), *drawn.dots):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert drawn.limit is None or drawn.top <= drawn.limit <= drawn.bottom
    assert 2 <= len(drawn.y_ticks) <= 8


def test_where_nothing_was_measured_there_is_no_line() -> None:
    dots = [(float(at), Band.exactly(1)) for at in (0, 10, 20, 500, 510, 900)]
    drawn = chart(dots, (0.0, 1000.0), gap=60)
    assert 2 == drawn.line.count("M")
    assert 1 == len(drawn.dots)


def test_a_wide_interval_does_not_flatten_the_line() -> None:
    dots = [(float(at), Band(1.0, -500.0, 500.0)) for at in range(20)]
    drawn = chart(dots, (0.0, 20.0), limit=2.0)
    assert max(float(tick.label) for tick in drawn.y_ticks) <= 10


def test_near_marks_share_a_line_that_is_as_bad_as_the_worst_of_them() -> None:
    marks = [Mark(100.0, 1, "trial", "1"), Mark(101.0, 2, "bad", "2"), Mark(900.0, 3, "other", "3")]
    drawn = chart([], (0.0, 1000.0), marks=marks)
    assert [("1-2", "bad"), ("3", "other")] == [(m.label, m.kind) for m in drawn.marks]


def test_hours_are_full_ones() -> None:
    drawn = chart([], (1_800_000_123.0, 1_800_086_523.0), times=True)
    assert all(tick.label.endswith(":00") for tick in drawn.x_ticks)
    assert 3 <= len(drawn.x_ticks) <= 7


@given(st.floats(1e-6, 1e9), st.integers(2, 10))
def test_steps_are_few_and_round(span: float, most: int) -> None:
    step = nice_step(span, most)
    assert span / step <= most * (1 + 1e-6)
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5, 10)
