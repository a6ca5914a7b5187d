"""Values that say whether they can be trusted.

A controller that mistakes "absent" for zero scales a healthy fleet away, so no number reaches a
decision bare: it is known, known but old, or unknown with the reason. Combining readings keeps the
worst of them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A finite value and the time in seconds since the epoch at which it was sampled."""

    value: float
    at: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, and one clause saying why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The last value seen, too old or too frozen to act on."""

    value: float
    age_seconds: float


Reading = Known | Unknown | Stale


def reading(value: float | None, at: float, absent: str = "absent") -> Reading:
    """Wrap one sample: absent, NaN and infinite values become unknown."""
    if value is None:
        return Unknown(absent)
    if math.isnan(value):
        return Unknown("NaN")
    if math.isinf(value):
        return Unknown("infinite")
    return Known(value, at)


def known(value: Reading) -> float | None:
    """The value if it may be acted on, else None."""
    return value.value if isinstance(value, Known) else None


def explain(value: Reading) -> str:
    """The reading in words: its number, or why there is none."""
    match value:
        case Known(number, _):
            return f"{number:g}"
        case Stale(number, age):
            return f"{number:g} ({age:.0f} s old)"
        case Unknown(reason):
            return f"unknown ({reason})"


def combine(function: Callable[[list[float]], float], readings: Iterable[Reading]) -> Reading:
    """Apply `function` to all values; one unknown (or stale) value makes the result so."""
    parts = list(readings)
    if not parts:
        return Unknown("no readings")
    values: list[float] = []
    oldest: float | None = None
    age: float | None = None
    for part in parts:
        if isinstance(part, Unknown):
            return part
        values.append(part.value)
        if isinstance(part, Stale):
            age = part.age_seconds if age is None else max(age, part.age_seconds)
        else:
            oldest = part.at if oldest is None else min(oldest, part.at)
    result = function(values)
    if not math.isfinite(result):
        return Unknown("not finite")
    if age is not None:
        return Stale(result, age)
    return Known(result, oldest if oldest is not None else 0.0)


def total(readings: Iterable[Reading]) -> Reading:
    """Sum of all readings."""
    return combine(math.fsum, readings)


def highest(readings: Iterable[Reading]) -> Reading:
    """Largest of all readings."""
    return combine(max, readings)


def mean(readings: Iterable[Reading]) -> Reading:
    """Arithmetic mean of all readings."""
    return combine(lambda values: math.fsum(values) / len(values), readings)


def ratio(numerator: Reading, denominator: Reading) -> Reading:
    """Quotient of two readings; a zero denominator is unknown, never zero and never infinite."""
    if isinstance(denominator, Known | Stale) and denominator.value == 0:
        return Unknown("zero denominator")
    return combine(lambda values: values[0] / values[1], [numerator, denominator])
