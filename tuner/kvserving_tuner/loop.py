"""One turn of the tuner: what is known goes in, a decision and the new memory come out.

Pure: the same inputs give the same decision, in the cluster, on a bare engine, and on a recorded
trace.
"""

from collections.abc import Sequence

from kvserving_tuner.decision import Decision
from kvserving_tuner.observation import Observation
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.state import TunerState

__all__ = ["TunerState", "decide"]


def decide(
    settings: TuningSettings,
    observation: Observation,
    runtime: Sequence[RuntimeState],
    state: TunerState,
    now: float,
) -> tuple[Decision, TunerState]:
    """Diagnose `observation` and say what is to be done at `now` (seconds since the epoch)."""
    raise NotImplementedError  # filled in with diagnosis.py and caps.py
