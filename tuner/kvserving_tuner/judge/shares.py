"""Shares of requests in a block of time, of two arms of unlike size.

A test by betting stakes little where a number can be far below its bound. So a share counts up to a
limit, in both arms. What is cut off then depends on how many requests an arm has, as the shares of
few scatter more; so both arms count as if they had equally many.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import JudgeError

LEAST_RANGE: Final = 0.05
"""Share from which on it counts as this much. A rise by it shows in as few blocks as any."""

BOUNDS_IN_RANGE: Final = 4.0
"""Most over the bound: a rise has to have room above it."""


@dataclass(frozen=True)
class Part:
    """Some of the requests of an arm."""

    count: float
    of: float

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.of:
            raise JudgeError(f"expected a part of {self.of:g} requests, got {self.count:g}")


def most_of(bound: float) -> float:
    """Share that counts at most, where a rise of `bound` is accepted."""
    return min(1.0, max(LEAST_RANGE, BOUNDS_IN_RANGE * bound))


def share_difference(candidate: Part, stable: Part, most: float) -> float | None:
    """Candidate's share less the stable one, each up to `most`; None where an arm has no requests.

    The arm with more requests counts as so many of them, drawn at random, as the other one has, in
    the mean over all draws. So arms whose requests fail alike differ by 0 in the mean.
    """
    drawn = math.floor(min(candidate.of, stable.of))
    if drawn < 1:
        return None
    return _drawn(candidate, drawn, most) - _drawn(stable, drawn, most)


def share_missed(candidate: Part, stable: Part, allowed: float) -> float | None:
    """Candidate's share of requests that miss a target; above `allowed` it counts against it.

    It does so in blocks in which the stable arm keeps the target. In all others it counts as
    `allowed` at most: less by what the candidate misses less often. So the mean is at most
    `allowed` for arms that miss alike, however often they do. Counts as in `share_difference`; None
    where an arm has no requests.
    """
    drawn = math.floor(min(candidate.of, stable.of))
    if drawn < 1:
        return None
    most = most_of(allowed)
    missed, other = _drawn(candidate, drawn, most), _drawn(stable, drawn, most)
    return missed if other <= allowed else allowed + min(0.0, missed - other)


def _drawn(part: Part, drawn: int, most: float) -> float:
    """Mean of the share among so many drawn without return (hypergeometric), up to `most`."""
    count, of = round(part.count), round(part.of)
    least, top = max(0, drawn - (of - count)), min(drawn, count)
    if top <= most * drawn:
        # Nothing is cut off: the mean of draws is the share itself.
        return count / of
    missing = math.fsum(
        _chance(found, drawn, count, of) * (most - found / drawn)
        for found in range(least, math.ceil(most * drawn))
    )
    return most - missing


def _chance(found: int, drawn: int, count: int, of: int) -> float:
    return math.exp(
        _log_choose(count, found) + _log_choose(of - count, drawn - found) - _log_choose(of, drawn)
    )


def _log_choose(of: int, chosen: int) -> float:
    if not 0 <= chosen <= of:
        return -math.inf
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)
