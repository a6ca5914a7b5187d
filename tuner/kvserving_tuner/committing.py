"""The memory of a change that is about to be carried out: what is watched, spent and not tried."""

from kvserving_tuner.decision import CostClass, Knob, Reason
from kvserving_tuner.learning import forget_windows
from kvserving_tuner.memory import remember_change
from kvserving_tuner.proposal import Proposal
from kvserving_tuner.remembered import Judged, Tried, Watch
from kvserving_tuner.rules import DAY_SECONDS
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.state import TunerState
from kvserving_tuner.verdicts import with_verdict

_NOT_COUNTED = frozenset({Reason.PREEMPTION_STORM, Reason.CAPS_DIFFER, Reason.OUTSIDE_BOUNDS})
"""Changes of the cap that no budget holds back."""
_WAYS_BACK = frozenset({Reason.ROLLED_BACK, Reason.LOAD_CHANGED, Reason.FALLBACK})


def remember_step(
    settings: TuningSettings, state: TunerState, proposal: Proposal, now: float
) -> TunerState:
    """Memory after a change of any knob that is about to be carried out."""
    change = proposal.change
    if change is None:
        return state
    if change.knob is Knob.MAX_ACTIVE_SEQS:
        state = remember_change(settings.cap, state, proposal, now)
        counted = proposal.reason not in _NOT_COUNTED
        return _counted(state, now) if counted else state
    if proposal.reason in _WAYS_BACK:
        return _went_back(settings, state, proposal, now)
    before = state.samples[-settings.guardrails.watch_windows :]
    watch = None
    if proposal.case is not None:
        watch = Watch(
            rung=proposal.case.rung,
            knob=change.knob,
            from_value=change.from_value,
            to_value=change.to_value,
            at=now,
            regime=state.loads.current,
            before=before,
        )
    state = _changed(_counted(state, now), proposal, now)
    update: dict[str, object] = {"watch": watch}
    if change.knob is Knob.KV_CACHE_DTYPE or change.cost is CostClass.RESTART:
        update["switched_at"] = (*_today(state.switched_at, now), now)
    return state.model_copy(update=update)


def remember_request(
    settings: TuningSettings, state: TunerState, proposal: Proposal, now: float
) -> TunerState:
    """Memory after a trial was asked for: it is not asked for again until it can have ended."""
    change = proposal.change
    if change is None:
        return state
    asked = Tried(
        knob=change.knob, value=change.to_value, regime=state.loads.current,
        judged=Judged.FAILED, at=now, until=now + settings.ladder.trial_seconds,
    )  # fmt: skip
    return state.model_copy(update={"asked": asked})


def refused(
    settings: TuningSettings, state: TunerState, knob: Knob, value: int | str, why: str, now: float
) -> TunerState:
    """Memory of a change that was not made: an engine or the quality gate said no."""
    tried = Tried(
        knob=knob, value=value, regime=state.loads.current, judged=Judged.FAILED, at=now,
        until=now + settings.guardrails.tabu_seconds, message=why,
    )  # fmt: skip
    return with_verdict(state, tried)


def concluded(
    settings: TuningSettings, state: TunerState, judged: Judged | None, why: str, now: float
) -> TunerState:
    """Memory after the verdict of the trial that was asked for; None: it has judged nothing."""
    asked = state.asked
    if asked is None or judged is None:
        return state.model_copy(update={"asked": None})
    tried = asked.model_copy(
        update={
            "judged": judged, "message": why, "at": now,
            "until": now + settings.guardrails.tabu_seconds,
        }
    )  # fmt: skip
    return with_verdict(state, tried)


def _went_back(
    settings: TuningSettings, state: TunerState, proposal: Proposal, now: float
) -> TunerState:
    watch = state.watch
    if watch is not None and proposal.reason is not Reason.LOAD_CHANGED:
        tried = Tried(
            knob=watch.knob, value=watch.to_value, regime=watch.regime, judged=Judged.ROLLED_BACK,
            at=now, until=now + settings.guardrails.tabu_seconds, message=proposal.message,
        )  # fmt: skip
        state = with_verdict(state, tried)
    return _changed(state, proposal, now).model_copy(update={"watch": None})


def _changed(state: TunerState, proposal: Proposal, now: float) -> TunerState:
    change = proposal.change
    if change is None:
        return state
    update: dict[str, object] = {
        "last_change_at": now, "last_step_at": now, "agreeing_count": 0, "due": None,
    }  # fmt: skip
    if change.knob is Knob.KV_CACHE_DTYPE:
        update["set_kv_cache_dtype"] = str(change.to_value)
    return forget_windows(state).model_copy(update=update)


def _counted(state: TunerState, now: float) -> TunerState:
    return state.model_copy(update={"changed_at": (*_today(state.changed_at, now), now)})


def _today(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < DAY_SECONDS)
