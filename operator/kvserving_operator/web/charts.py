"""Line charts as plain numbers and SVG path data; what draws them is a template.

Own code, since the view runs no script: chart libraries for Python draw by script in the browser,
or bring styles into the page that its Content-Security-Policy forbids.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from kvserving_operator.web.history import Band

WIDTH, NARROW, HEIGHT = 1000, 480, 150
"""Pixels of a view box: of a chart that takes the whole page, and of two side by side."""
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 20, 22
REACH: Final = 3.0
"""Times the line or the limit that an interval stretches the y axis: few numbers show very little,
and the line would lie flat."""
CLUSTER: Final = 16
"""Marks that are nearer to each other than this have one line and one label."""
MOST_TICKS: Final = 7

Dot = tuple[float, Band]
"""Where on the x axis, and the number there."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis, in pixels."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: its number in the table, and what kind it is."""

    x: float
    number: int
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """Marks that share one line of the chart, in pixels."""

    at: float
    label: str
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that can be drawn, in pixels of its view box."""

    line: str
    band: str
    dots: tuple[tuple[float, float], ...]
    """Numbers that stand alone, which no line shows."""
    limit: float | None
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Line, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM

    @property
    def right(self) -> int:
        """Right end of the x axis."""
        return self.width - RIGHT


@dataclass(frozen=True, slots=True)
class Axis:
    """Values along one axis, from the first to the last pixel."""

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        """Pixel of a value; values beyond the ends are at the ends."""
        value = min(max(value, self.low), self.high)
        share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)


def chart(
    dots: Sequence[Dot],
    x_range: tuple[float, float],
    *,
    limit: float | None = None,
    top: float | None = None,
    marks: Iterable[Mark] = (),
    gap: float = math.inf,
    times: bool = False,
    width: int = WIDTH,
) -> Chart:
    """Lay out one line with its interval; `limit` is a dashed line across.

    `top` fixes the upper end of the y axis. Where two numbers are further apart than `gap` the line
    is broken. With `times` the x axis is one of seconds since the epoch.
    """
    low, high = x_range
    x = Axis(low, max(high, low + 1e-9), LEFT, width - RIGHT)
    y = Axis(*_span(dots, limit, top), HEIGHT - BOTTOM, TOP)
    runs = list(_runs(dots, gap))
    return Chart(
        line=" ".join(_path(x, y, run) for run in runs if len(run) > 1),
        band=" ".join(_area(x, y, run) for run in runs if len(run) > 1),
        dots=tuple((x.place(run[0][0]), y.place(run[0][1].value)) for run in runs if len(run) == 1),
        limit=None if limit is None else y.place(limit),
        x_ticks=_clock(x) if times else _steps(x),
        y_ticks=_steps(y, 4),
        marks=_lines(x, marks),
        width=width,
    )


def nice_step(span: float, most: int) -> float:
    """Give the least of 1, 2 or 5 times a power of ten that needs no more than `most` steps."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9))


def _span(dots: Sequence[Dot], limit: float | None, top: float | None) -> tuple[float, float]:
    """Ends of the y axis: 0, the line, the limit, and the newest interval as far as it is near."""
    values = [0.0, *(band.value for _, band in dots)]
    values += [] if limit is None else [1.25 * limit]
    reach = REACH * max(map(abs, values))
    ends = (dots[-1][1].low, dots[-1][1].high) if dots else ()
    values += [min(max(end, -reach), reach) for end in ends]
    low, high = min(values), top if top is not None else max(values)
    if high - low < 1e-9:
        high = low + 1
    step = nice_step(high - low, 4)
    return math.floor(low / step) * step, high if top is not None else math.ceil(high / step) * step


def _runs(dots: Sequence[Dot], gap: float) -> Iterable[Sequence[Dot]]:
    start = 0
    for number, (before, after) in enumerate(pairwise(dots), 1):
        if after[0] - before[0] > gap:
            yield dots[start:number]
            start = number
    if dots:
        yield dots[start:]


def _path(x: Axis, y: Axis, run: Sequence[Dot]) -> str:
    return "M" + " L".join(f"{x.place(at)},{y.place(band.value)}" for at, band in run)


def _area(x: Axis, y: Axis, run: Sequence[Dot]) -> str:
    if all(band.low == band.high for _, band in run):
        return ""
    over = [f"{x.place(at)},{y.place(band.high)}" for at, band in run]
    under = [f"{x.place(at)},{y.place(band.low)}" for at, band in reversed(run)]
    return "M" + " L".join((*over, *under)) + " Z"


def _steps(axis: Axis, most: int = MOST_TICKS) -> tuple[Tick, ...]:
    step = nice_step(axis.high - axis.low, most)
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    # Adding 0 makes no minus of zero.
    values = [round(each * step, 9) + 0.0 for each in range(first, last + 1)]
    return tuple(Tick(axis.place(value), f"{value:g}") for value in values)


def _clock(axis: Axis) -> tuple[Tick, ...]:
    """Full minutes or hours, UTC."""
    steps = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600)
    span = axis.high - axis.low
    step = next((each for each in steps if span / each <= MOST_TICKS), steps[-1])
    first = math.ceil(axis.low / step) * step
    found = range(first, math.floor(axis.high) + 1, step)
    return tuple(
        Tick(axis.place(at), datetime.fromtimestamp(at, UTC).strftime("%H:%M")) for at in found
    )


def _lines(x: Axis, marks: Iterable[Mark]) -> tuple[Line, ...]:
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda each: each.x):
        if groups and x.place(mark.x) - x.place(groups[-1][0].x) < CLUSTER:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return tuple(_line(x, group) for group in groups)


def _line(x: Axis, group: Sequence[Mark]) -> Line:
    numbers = [mark.number for mark in group]
    label = str(numbers[0])
    if len(group) > 1:
        label = f"{min(numbers)}-{max(numbers)}"
    kinds = {mark.kind for mark in group}
    kind = next(each for each in ("bad", "change", "trial", "other") if each in kinds)
    return Line(x.place(group[0].x), label, kind, "; ".join(mark.title for mark in group))
