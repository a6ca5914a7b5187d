"""A step-time model corrected by what an engine shows, one window at a time; pure.

Two factors, on what a step takes whatever it does and on what grows with its sequences, follow the
windows by a Kalman filter. A window that is farther off than noise explains is an outlier and
teaches nothing, until several in a row say that the engine has changed. However far the windows
lead, no factor leaves its bounds: a model that is off by more is not to be trusted, and
`is_trusted` says so (tuning reference, C.2).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

LOWEST, HIGHEST = 0.5, 2.0
"""Bounds of each factor; wider corrections have made controllers unstable (dynamo#12751)."""
PRIOR_DEVIATION: Final = 0.3
"""How far off a model of kernels may be: Vidur's was within 9 %, without an engine's own work."""
DRIFT: Final = 0.01
"""Standard deviation by which a factor may move from one window to the next."""
NOISE: Final = 0.08
"""Relative standard deviation of the mean step of a window."""
OUTLIER: Final = 5.024
"""Squared distance in standard deviations beyond which one window in 40 lies by chance: the 97.5th
percentile of chi squared with one degree of freedom."""
OUTLIERS_IN_A_ROW: Final = 5
"""So many, and on one side, are no outliers: what was learned is then doubted."""
DOUBT: Final = 0.3**2
"""Variance that doubt adds."""


SHORTEST, LONGEST = 1e-6, 3600.0
"""Seconds within which a step's time lies; all else is no measurement."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """One window: what the model says of the mean step, in two parts, and how long it was."""

    fixed_seconds: float
    growing_seconds: float
    measured_seconds: float

    @property
    def is_usable(self) -> bool:
        """Whether these are times of a step; the growing part may be nothing."""
        steps = (self.fixed_seconds, self.measured_seconds)
        possible = all(SHORTEST <= each <= LONGEST for each in steps)
        return possible and 0 <= self.growing_seconds <= LONGEST


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors on both parts of a model, and how certain they are."""

    fixed: float = 1.0
    growing: float = 1.0
    variances: tuple[float, float, float] = (PRIOR_DEVIATION**2, 0.0, PRIOR_DEVIATION**2)
    """Of the first factor, of both together, of the second."""
    windows: int = 0
    """Windows that were learned from."""
    outliers: int = 0
    """Windows in a row that were not, negative where they were shorter than expected."""
    at_bound: bool = False
    """Whether the last window led beyond the bounds."""

    @property
    def is_trusted(self) -> bool:
        """Whether the corrected model describes this engine."""
        return not self.at_bound and abs(self.outliers) < OUTLIERS_IN_A_ROW

    def seconds(self, fixed_seconds: float, growing_seconds: float) -> float:
        """A step's corrected time."""
        return self.fixed * fixed_seconds + self.growing * growing_seconds

    def growing_share(self, fixed_seconds: float, growing_seconds: float) -> float:
        """Share of a step's corrected time that grows with its sequences."""
        return self.growing * growing_seconds / self.seconds(fixed_seconds, growing_seconds)

    def learned(self, window: StepWindow) -> "Correction":
        """The correction after a window."""
        if not window.is_usable:
            return self
        parts = np.array([window.fixed_seconds, window.growing_seconds])
        first, both, second = self.variances
        spread = np.array([[first, both], [both, second]]) + DRIFT**2 * np.eye(2)
        factors = np.array([self.fixed, self.growing])
        residual = window.measured_seconds - float(parts @ factors)
        noise = (NOISE * window.measured_seconds) ** 2
        variance = float(parts @ spread @ parts) + noise
        if residual**2 > OUTLIER * variance:
            return self._doubted(1 if residual > 0 else -1)
        gain = spread @ parts / variance
        moved = factors + gain * residual
        kept = np.clip(moved, LOWEST, HIGHEST)
        # The form that stays symmetric and positive whatever is rounded.
        left = np.eye(2) - np.outer(gain, parts)
        spread = left @ spread @ left.T + noise * np.outer(gain, gain)
        return Correction(
            fixed=float(kept[0]),
            growing=float(kept[1]),
            variances=(float(spread[0, 0]), float(spread[0, 1]), float(spread[1, 1])),
            windows=self.windows + 1,
            at_bound=bool((moved != kept).any()),
        )

    def _doubted(self, side: int) -> "Correction":
        row = self.outliers + side if self.outliers * side >= 0 else side
        if abs(row) < OUTLIERS_IN_A_ROW:
            return replace(self, outliers=row)
        first, both, second = self.variances
        return replace(
            self,
            outliers=row,
            variances=(min(1.0, first + DOUBT), both, min(1.0, second + DOUBT)),
        )


def corrected(windows: Iterable[StepWindow], begin: Correction | None = None) -> Correction:
    """The correction after windows in their order."""
    correction = begin or Correction()
    for window in windows:
        correction = correction.learned(window)
    return correction
