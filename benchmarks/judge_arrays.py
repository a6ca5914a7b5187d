"""The judge's tests for many simulated trials at once, after every pair.

What a controller computes pair by pair (`kvserving_tuner.judge`), for arrays of trials;
`tests/tuner/judge/test_arrays.py` compares the two number by number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvserving_tuner.judge import Comparison, Criterion
from kvserving_tuner.judge.betting import (
    CALM_STAKE,
    LARGEST,
    PRIOR_COUNT,
    WILD_SQUARE,
    WILD_STAKE,
    MeanTest,
)

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]
"""Numbers of so many pairs (rows) of so many trials (columns)."""

CHUNK = 50
NEVER = np.inf


@dataclass
class Capitals:
    """Where a test stands in each trial."""

    test: MeanTest
    steady: Array
    other: Array
    squares: Array
    peak: Array
    count: int = 0

    @classmethod
    def start(cls, test: MeanTest, trials: int) -> "Capitals":
        """Before the first number."""
        steady = np.full(trials, test.stakes.steady)
        return cls(test, steady, 1 - steady, np.zeros(trials), np.ones(trials))

    def add(self, numbers: Array) -> None:
        """One more number of each trial."""
        test = self.test
        most = test.bound - test.low
        gain = (np.maximum(numbers, test.low) - test.bound) / most
        square = (PRIOR_COUNT * test.stakes.square + self.squares) / (PRIOR_COUNT + self.count)
        self.steady *= 1 + np.minimum(test.stakes.size / most / square, LARGEST) * gain
        self.other *= 1 + np.where(square < WILD_SQUARE, CALM_STAKE, WILD_STAKE) * gain
        self.squares += gain * gain
        self.count += 1
        np.maximum(self.peak, self.steady + self.other, out=self.peak)

    def keep(self, trials: NDArray[np.bool_]) -> None:
        """Go on with some of the trials."""
        for name in ("steady", "other", "squares", "peak"):
            setattr(self, name, getattr(self, name)[trials])


@dataclass(frozen=True)
class Moments:
    """Pair at which each trial was first shown to be harmful, and to be safe; infinite: never."""

    harmful: Array
    safe: Array


def simulate(
    criterion: Criterion,
    draw: Draw,
    trials: int,
    source: np.random.Generator,
    *,
    harm_alpha: float,
    safe_alpha: float,
    least: int,
    most: int,
) -> Moments:
    """Trials of `most` pairs that are judged after each from the pair `least` on."""
    harm_test, safe_test = Comparison.start(criterion).tests
    harm, safe = Capitals.start(harm_test, trials), Capitals.start(safe_test, trials)
    beyond = np.zeros(trials, np.int64)
    found = Moments(np.full(trials, NEVER), np.full(trials, NEVER))
    running = np.arange(trials)
    for first in range(0, most, CHUNK):
        numbers = draw(source, (min(CHUNK, most - first), running.size))
        for row in numbers:
            harm.add(row)
            safe.add(-row)
            beyond += row > criterion.high
            if harm.count < least:
                continue
            harmful = harm.peak >= 1 / harm_alpha
            kept = (safe.peak >= 1 / safe_alpha) & (beyond == 0)
            for when, shown in ((found.harmful, harmful), (found.safe, kept)):
                new = running[shown]
                when[new] = np.minimum(when[new], harm.count)
        # What is shown to be harmful is over; what is safe goes on, as a trial has other criteria.
        open_ = ~np.isfinite(found.harmful[running])
        running, beyond = running[open_], beyond[open_]
        harm.keep(open_)
        safe.keep(open_)
        if not running.size:
            break
    return found


def peeked(
    criterion: Criterion,
    draw: Draw,
    trials: int,
    source: np.random.Generator,
    *,
    quantile: float,
    every: int,
    most: int,
) -> tuple[int, int]:
    """Trials that a t-test at a normal quantile calls harmful: at any of its looks, and at the end.

    It is looked at after every so many pairs.
    """
    total, squares = np.zeros(trials), np.zeros(trials)
    ever = now = np.zeros(trials, np.bool_)
    for count in range(every, most + 1, every):
        numbers = draw(source, (every, trials)) - criterion.bound
        total += numbers.sum(axis=0)
        squares += (numbers * numbers).sum(axis=0)
        variance = (squares - total * total / count) / (count - 1)
        now = total > quantile * np.sqrt(np.maximum(variance, 0) * count)
        now &= variance > 0
        ever = ever | now
    return int(ever.sum()), int(now.sum())


def upper_bound(errors: int, runs: int, confidence: float = 0.95) -> float:
    """Upper bound of a rate by Clopper and Pearson, one-sided."""
    low, high = errors / runs, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        if _chance_of_at_most(errors, runs, rate) > 1 - confidence:
            low = rate
        else:
            high = rate
    return high


def _chance_of_at_most(errors: int, runs: int, rate: float) -> float:
    if rate >= 1:
        return float(errors >= runs)
    term = runs * math.log1p(-rate)
    total = math.exp(term)
    for count in range(1, errors + 1):
        term += math.log((runs - count + 1) / count) + math.log(rate) - math.log1p(-rate)
        total += math.exp(term)
    return total
