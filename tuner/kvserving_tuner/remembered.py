"""What the ladder remembers: what was tried, what is being watched, loads, and budgets.

Plain values that `state.TunerState` keeps between turns; times in seconds since the epoch.
"""

from collections.abc import Container, Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from kvserving_tuner.decision import Knob, RungName, Value


class Remembered(BaseModel):
    """A part of the state."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Judged(StrEnum):
    """How a change turned out."""

    PASSED = "Passed"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"
    """It could not be made at all."""


class Tried(Remembered):
    """A change and how it turned out under one load."""

    knob: Knob
    value: Value
    regime: str
    judged: Judged
    at: float
    until: float
    """While it counts."""
    message: str = ""


def latest(
    tried: Sequence[Tried], knob: Knob, value: Value, regimes: Container[str], now: float
) -> Tried | None:
    """How a change last turned out under one of these loads, while that counts."""
    return next(
        (
            each
            for each in reversed(tried)
            if (each.knob, each.value) == (knob, value)
            and each.regime in regimes
            and now < each.until
        ),
        None,
    )


def failed(
    tried: Sequence[Tried], knob: Knob, value: Value, regimes: Container[str], now: float
) -> Tried | None:
    """The same where the change did not pass."""
    found = latest(tried, knob, value, regimes, now)
    return None if found is None or found.judged is Judged.PASSED else found


class Due(Remembered):
    """A rung that has been due since `since`, and was last seen to be at `last`."""

    rung: RungName
    value: Value
    since: float
    last: float


class Sample(Remembered):
    """One full window, for comparisons; windows do not overlap.

    Rates are per second. `missed` is the share of requests beyond a target of latency, None where
    no target is set; `step_seconds` the mean time per output token and `running` the mean number
    of sequences per rank.
    """

    at: float
    goodput: float
    missed: float | None
    tokens_per_second: float
    waiting: float
    running: float
    preemptions_per_second: float
    finished: float
    step_seconds: float | None = None


class Watch(Remembered):
    """A change that was made at `at` and may have to be taken back."""

    rung: RungName
    knob: Knob
    from_value: Value
    to_value: Value
    at: float
    regime: str
    before: tuple[Sample, ...] = ()
    after: tuple[Sample, ...] = ()
    sampled_at: float | None = None


class Account(Remembered):
    """Requests of one UTC day, and what trying changes has cost of them."""

    day: int = -1
    requests: float = 0.0
    missed: float = 0.0
    explored: float = 0.0
    """Missed while a change was watched, beyond what was missed before it."""


class Fingerprint(Remembered):
    """A load in a few numbers."""

    rate: float
    """Requests per second that arrive."""
    prompt_tokens: float
    answer_tokens: float
    dispersion: float | None = None
    """Variance over mean of arrivals between two scrapes; 1 is Poisson, more is bursty."""
    hit_ratio: float | None = None
    """Share of prompt tokens found in the prefix cache."""


class Regime(Remembered):
    """A load that was seen, and the settings that served it best so far."""

    name: str
    load: Fingerprint
    windows: int
    """Full windows that `load` is the mean of, up to a bound."""
    seen_at: float
    cap: int | None = None
    kv_cache_dtype: str | None = None


class Drift(Remembered):
    """Page-Hinkley sums of one number (see `regimes.drift`)."""

    count: int = 0
    mean: float = 0.0
    up: float = 0.0
    up_least: float | None = None
    down: float = 0.0
    down_most: float | None = None


class Loads(Remembered):
    """Loads by name, the one now, and how steady it is."""

    regimes: tuple[Regime, ...] = ()
    current: str = ""
    """Empty until a load is known."""
    drifts: tuple[Drift, ...] = ()
    gathered: Fingerprint | None = None
    """Mean of the windows since the load was last in doubt."""
    gathered_windows: int = 0
    doubtful: bool = True
    """Whether the load is to be looked up once enough windows are gathered."""
    changed_at: tuple[float, ...] = ()
    """Changes from one load to another in the last hour."""
    fed_at: float | None = None
    """End of the last window that was taken in."""
    numbered: int = 0
