"""Whether two arms with equal settings look equal: what an A/A run is for.

A difference that equal arms have by themselves (another node, a colder prefix cache, a split that
selects) would be taken for an effect. Where the A/A run shows one, nothing is judged.
"""

from dataclasses import replace
from typing import Final

from kvserving_tuner.judge.comparison import Comparison
from kvserving_tuner.judge.criteria import Criterion

AA_ALPHA: Final = 0.01
"""Accepted chance of calling equal arms different."""


def calibration(criterion: Criterion) -> Comparison:
    """A comparison for the pairs or blocks of an A/A run, which accepts no difference."""
    return Comparison.start(replace(criterion, bound=0.0))


def arms_differ(run: Comparison) -> bool:
    """Whether the arms of an A/A run differ without any change, in either direction."""
    return any(test.rejects(AA_ALPHA / 2) for test in (run.harm, run.safety))
