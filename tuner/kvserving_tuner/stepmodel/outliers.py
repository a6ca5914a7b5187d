"""Windows that do not belong to the line that the others lie on; pure."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final

FAR: Final = 3.5
"""Deviations from the line, in robust standard deviations, from which a window is an outlier."""
NORMAL: Final = 1.4826
"""Standard deviation of a normal distribution over its median deviation."""
LEAST_SHARE: Final = 0.2
"""Of a typical step: a window that is nearer to the line is none, however alike the others are."""
MOST_DROPPED: Final = 0.25
"""Share of the windows; where more of them are far off, the line is not one."""


def without_outliers(seen: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Windows as (sequences, seconds) without those far from the line through the others.

    The line is Theil and Sen's, which a quarter of wild windows does not move. All windows come
    back where there is no such line, or where too many are far from it.
    """
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(seen, 2) if a[0] != b[0]]
    if not slopes:
        return list(seen)
    slope = median(slopes)
    offset = median(seconds - slope * count for count, seconds in seen)
    distances = [abs(seconds - slope * count - offset) for count, seconds in seen]
    usual = NORMAL * median(distances)
    limit = max(FAR * usual, LEAST_SHARE * median(seconds for _, seconds in seen))
    kept = [each for each, distance in zip(seen, distances, strict=True) if distance <= limit]
    return kept if len(kept) >= (1 - MOST_DROPPED) * len(seen) else list(seen)
