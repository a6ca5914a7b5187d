"""What is remembered of changes that were judged."""

from kvserving_tuner.remembered import Judged, Tried
from kvserving_tuner.state import TunerState

MOST_TRIED = 64
"""Verdicts that are kept."""


def with_verdict(state: TunerState, tried: Tried) -> TunerState:
    """The memory after a change was judged: by a trial, by watching it, or by the engine."""
    kept = [
        each
        for each in state.tried
        if (each.knob, each.value, each.regime) != (tried.knob, tried.value, tried.regime)
        and tried.at < each.until
    ]
    rollbacks = {Judged.PASSED: 0, Judged.ROLLED_BACK: state.rollbacks + 1}
    asked = state.asked
    if asked is not None and (asked.knob, asked.value) == (tried.knob, tried.value):
        asked = None
    return state.model_copy(
        update={
            "tried": (*kept, tried)[-MOST_TRIED:],
            "asked": asked,
            # What was not made has cost nobody anything.
            "rollbacks": rollbacks.get(tried.judged, state.rollbacks),
            "last_step_at": state.last_step_at if tried.judged is Judged.FAILED else tried.at,
            "due": None,
        }
    )
