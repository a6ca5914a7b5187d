"""Blocks of time as the unit of judging, where requests depend on those before them.

A queue that is long now was long a second ago: a thousand requests of one bad minute are one bad
minute. Means of blocks that are long against this memory are nearly independent.
"""

import math
from collections.abc import Sequence
from typing import Final

from kvserving_tuner.errors import JudgeError

LEAST_BLOCK_SECONDS: Final = 10.0
"""Shortest block: a few scrapes, whatever the memory seems to be."""

BLOCKS_PER_MEMORY: Final = 2.0
"""Length of a block over the time that a disturbance lasts."""

WINDOW: Final = 5.0
"""Lags that are summed, over the sum so far: enough of the memory with little of the noise. Sokal,
"Monte Carlo methods in statistical mechanics", 1996, section 3."""


def correlation_steps(series: Sequence[float]) -> float:
    """Integrated autocorrelation time of equally spaced values, in steps; 1 without memory."""
    count = len(series)
    if count < 2:
        raise JudgeError(f"series: expected at least 2 values, got {count}")
    mean = math.fsum(series) / count
    centered = [value - mean for value in series]
    variance = math.fsum(value * value for value in centered) / count
    if variance == 0:
        return 1.0
    total = 1.0
    for lag in range(1, count // 2):
        pairs = zip(centered, centered[lag:], strict=False)
        total += 2 * math.fsum(a * b for a, b in pairs) / (count * variance)
        if lag >= WINDOW * total:
            break
    return max(1.0, total)


def block_seconds(series: Sequence[float], step_seconds: float) -> float:
    """Length of blocks for values that are `step_seconds` apart."""
    memory = correlation_steps(series) * step_seconds
    return max(LEAST_BLOCK_SECONDS, BLOCKS_PER_MEMORY * memory)


def block_means(series: Sequence[float], steps: int) -> list[float]:
    """Means of whole blocks of so many values; an incomplete last one is left for later."""
    if steps < 1:
        raise JudgeError(f"steps: expected at least 1, got {steps}")
    ends = range(steps, len(series) + 1, steps)
    return [math.fsum(series[end - steps : end]) / steps for end in ends]
