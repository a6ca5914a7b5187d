"""Whether the arms get the shares of traffic that the split promises.

A split that does not hold its shares usually selects, and then the arms' requests differ by more
than the setting. The e-value bets a Beta mixture against the promised share; it may be looked at
after every request. Lindon and Malek, "Anytime-valid inference for multinomial count data",
NeurIPS 2022, equation 9, for two arms. Against all shares near the promised one it bets as against
the one of them under which the counts are the most likely, which is the least that it can win.
"""

import math
from typing import Final

from kvserving_tuner.errors import JudgeError

CONCENTRATION: Final = 100.0
"""Requests that the prior around the promised share is worth."""


def sample_ratio_e_value(
    candidate: float, stable: float, candidate_share: float, tolerance: float = 0.0
) -> float:
    """Evidence that the candidate's true share of requests is not the promised one.

    Nor any other within `tolerance` of it.
    """
    if min(candidate, stable) < 0:
        raise JudgeError(f"requests: expected none or more, got {candidate} and {stable}")
    if not 0 < candidate_share < 1:
        raise JudgeError(f"candidate_share: expected between 0 and 1, got {candidate_share}")
    if tolerance < 0:
        raise JudgeError(f"tolerance: expected at least 0, got {tolerance}")
    if not candidate + stable:
        return 1.0
    a = CONCENTRATION * candidate_share
    b = CONCENTRATION * (1 - candidate_share)
    log_mixture = _log_beta(a + candidate, b + stable) - _log_beta(a, b)
    lowest, highest = candidate_share - tolerance, candidate_share + tolerance
    likeliest = min(max(candidate / (candidate + stable), lowest, 0.0), highest, 1.0)
    log_promised = _log_power(likeliest, candidate) + _log_power(1 - likeliest, stable)
    return math.exp(min(log_mixture - log_promised, 700.0))


def _log_power(base: float, exponent: float) -> float:
    return exponent * math.log(base) if exponent else 0.0


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
