"""What the tuner learns from the end of a trial that it asked for; pure."""

from collections.abc import Mapping

from kvserving_operator.api.v1alpha1 import KVServingSpec, RequestedBy
from kvserving_operator.trials.turn import Outcome
from kvserving_operator.tuner_settings import tuning_settings
from kvserving_tuner.committing import concluded
from kvserving_tuner.remembered import Judged
from kvserving_tuner.state import TunerState
from kvserving_tuner.trials.progress import Verdict

JUDGED: Mapping[Verdict, Judged | None] = {
    Verdict.PROMOTED: Judged.PASSED,
    Verdict.ROLLED_BACK: Judged.ROLLED_BACK,
    # It gained nothing in all the time there was: not worth another try under this load.
    Verdict.INCONCLUSIVE: Judged.FAILED,
    Verdict.FAILED: Judged.FAILED,
    Verdict.VOID: None,
}


def learned(
    spec: KVServingSpec, state: TunerState, outcome: Outcome | None, now: float
) -> TunerState:
    """The tuner's memory after a look at the trials."""
    record = None if outcome is None else outcome.record
    if record is None or record.requested_by is not RequestedBy.TUNER or record.again:
        return state
    conclusion = record.progress.conclusion
    if conclusion is None or outcome is None or outcome.trials.running is not None:
        return state
    if state.asked is None or state.asked.value != record.candidate.kv_cache_dtype:
        return state
    judged = JUDGED[conclusion.verdict]
    return concluded(tuning_settings(spec), state, judged, conclusion.message, now)
