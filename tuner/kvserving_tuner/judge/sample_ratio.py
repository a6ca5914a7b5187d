"""Whether the arms get the shares of traffic that the split promises.

A split that does not hold its shares usually selects, and then the arms' requests differ by more
than the setting. The e-value bets a Beta mixture against the promised share; it may be looked at
after every request. Lindon and Malek, "Anytime-valid inference for multinomial count data",
NeurIPS 2022, equation 9, for two arms.
"""

import math
from typing import Final

from kvserving_tuner.errors import JudgeError

CONCENTRATION: Final = 100.0
"""Requests that the prior around the promised share is worth."""


def sample_ratio_e_value(candidate: int, stable: int, candidate_share: float) -> float:
    """Evidence that the candidate's true share of requests is not the promised one."""
    if min(candidate, stable) < 0:
        raise JudgeError(f"requests: expected none or more, got {candidate} and {stable}")
    if not 0 < candidate_share < 1:
        raise JudgeError(f"candidate_share: expected between 0 and 1, got {candidate_share}")
    a = CONCENTRATION * candidate_share
    b = CONCENTRATION * (1 - candidate_share)
    log_mixture = _log_beta(a + candidate, b + stable) - _log_beta(a, b)
    log_promised = candidate * math.log(candidate_share) + stable * math.log1p(-candidate_share)
    return math.exp(min(log_mixture - log_promised, 700.0))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
