"""What a change is expected to gain, and how sure that is.

A step takes a fixed part and a part that grows with the sequences in it. How large the latter is
says what more sequences at once bring: all of it where steps hardly grow, nothing where they grow
in proportion.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.decision import Forecast
from kvserving_tuner.remembered import Sample
from kvserving_tuner.stepmodel.outliers import without_outliers

LEAST_SAMPLES: Final = 5
LEAST_SPREAD: Final = 1.3
"""Most over least running sequences from which their effect on steps can be told from noise."""
FIFTH: Final = 0.8416
"""Standard deviations beyond which a normal number lies with a probability of a fifth."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Share of a step's time that grows with its sequences: likely, and a fifth either way."""

    share: float
    low: float
    high: float
    basis: str


PRIOR: Final = Growth(0.45, 0.2, 0.7, "step times as usual on GPUs")
"""Of Llama 3.1 8B on one H100, at 2,000 tokens of context, 0.29 of a step grows with 32 sequences,
0.44 with 64 and 0.62 with 128 (9.3, 12.1 and 17.3 ms: tuning reference, B.3)."""


def growth(samples: Sequence[Sample], running: float) -> Growth:
    """The share at so many running sequences, from windows with different numbers of them.

    Windows that are far off teach nothing. The prior where there are too few, or where they ran
    alike.
    """
    seen = without_outliers(
        [(s.running, s.step_seconds) for s in samples if s.step_seconds and s.running > 0]
    )
    if len(seen) < LEAST_SAMPLES:
        return PRIOR
    counts = [count for count, _ in seen]
    if max(counts) < LEAST_SPREAD * min(counts):
        return PRIOR
    middle = math.fsum(counts) / len(seen)
    typical = math.fsum(seconds for _, seconds in seen) / len(seen)
    square = math.fsum((count - middle) ** 2 for count in counts)
    slope = math.fsum((n - middle) * (t - typical) for n, t in seen) / square
    residue = math.fsum((t - typical - slope * (n - middle)) ** 2 for n, t in seen)
    error = math.sqrt(residue / (len(seen) - 2) / square)

    def share(of_slope: float) -> float:
        # A line that falls says that nothing grows, also where it falls below no time at all.
        if of_slope <= 0:
            return 0.0
        step = typical + of_slope * (running - middle)
        return min(1.0, of_slope * running / step) if step > 0 else 1.0

    return Growth(
        share(slope), share(slope - FIFTH * error), share(slope + FIFTH * error),
        f"step times of {len(seen)} windows",
    )  # fmt: skip


def more_sequences(ratio: float, steps: Growth, basis: str, wasted: float = 0.0) -> Forecast:
    """Gain of `ratio` times as many sequences at once.

    `wasted` is the share of the work that is done twice today and is not then.
    """
    saved = 1 / (1 - min(wasted, 0.5))

    def gain(growing: float) -> float:
        return max(1.0, ratio) / (1 + growing * (max(1.0, ratio) - 1)) - 1

    return Forecast(
        gain=(1 + gain(steps.share)) * (1 + (saved - 1) / 2) - 1,
        low=gain(steps.high),
        high=(1 + gain(steps.low)) * saved - 1,
        basis=f"{basis}; {steps.basis}",
    )


def between(low: float, high: float, basis: str) -> Forecast:
    """A gain of which only bounds are known."""
    return Forecast((low + high) / 2, low, high, basis)
