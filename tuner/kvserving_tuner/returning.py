"""Ways back to settings of a load that was seen before, good ones and from bad ones; pure."""

from kvserving_tuner import caps
from kvserving_tuner.decision import Change, Knob, Reason
from kvserving_tuner.guardrails import change_budget, switch_budget
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.proposal import Knobs, Proposal
from kvserving_tuner.readings import Unknown
from kvserving_tuner.regimes.loads import alternates, current, robust_cap
from kvserving_tuner.remembered import Judged, failed, latest
from kvserving_tuner.state import TunerState


def unfit_format(situation: Situation) -> Proposal | None:
    """The way back from a format that failed under the load that is back."""
    state, dtype = situation.state, situation.dtype
    start = state.start_kv_cache_dtype
    # What a trial put in force is its policy's to take back.
    if dtype is None or start in (None, dtype) or state.set_kv_cache_dtype != dtype:
        return None
    tried = failed(state.tried, Knob.KV_CACHE_DTYPE, dtype, {state.loads.current}, situation.now)
    if tried is None:
        return None
    message = f"{dtype} failed under {state.loads.current}: {tried.message}"
    return Proposal(
        Change(Knob.KV_CACHE_DTYPE, dtype, start), Reason.FALLBACK, f"back to {start}: {message}"
    )


def restored_format(situation: Situation) -> Proposal | None:
    """The format that has passed under the load that is back, where the tuner sets formats."""
    state, now, dtype = situation.state, situation.now, situation.dtype
    here = current(state.loads)
    if not state.restoring or here is None or dtype is None or state.set_kv_cache_dtype is None:
        return None
    if alternates(state.loads, situation.settings.regimes, now):
        return None
    wanted = here.kv_cache_dtype
    if wanted is None or wanted == dtype:
        return None
    tried = latest(state.tried, Knob.KV_CACHE_DTYPE, wanted, {here.name}, now)
    if tried is None or tried.judged is not Judged.PASSED:
        return None
    since = state.last_change_at
    settling = since is not None and now - since < situation.settings.cooldowns.live_seconds
    if settling or switch_budget(situation.settings, state, now) is not None:
        return None
    message = f"{here.name} is back: {wanted} passed under it, instead of {dtype}"
    return Proposal(Change(Knob.KV_CACHE_DTYPE, dtype, wanted), Reason.REGIME_REMEMBERED, message)


def restored_cap(
    situation: Situation, knobs: Knobs | Proposal, proposal: Proposal
) -> tuple[Proposal | None, TunerState]:
    """The cap of a load that was seen before, or the one that suits loads that alternate."""
    state, settings, now = situation.state, situation.settings, situation.now
    if isinstance(knobs, Proposal) or knobs.common is None:
        return None, state
    changing = alternates(state.loads, settings.regimes, now)
    here = current(state.loads)
    robust = robust_cap(state.loads, now) if changing else None
    cap = knobs.common
    if robust is not None and proposal.reason is Reason.SEQUENCES_WAIT_KV_FREE and cap >= robust:
        message = f"loads alternate, and {robust} is the cap that suits all of the last hour"
        return Proposal(None, Reason.REGIME_REMEMBERED, message, proposal.numbers), state
    if not state.restoring:
        return None, state
    done = state.model_copy(update={"restoring": False})
    wanted = robust if changing else here.cap if here is not None else None
    if wanted is None or knobs.clamp(wanted) == cap:
        return None, done
    since = state.last_change_at
    if since is not None and now - since < settings.cooldowns.live_seconds:
        return None, state
    to = knobs.clamp(wanted)
    if to > cap:
        to, predicted = caps.largest_that_fits(situation.engines, cap, to, settings)
        if isinstance(predicted, Unknown) or to <= cap:
            return None, done
    held = change_budget(settings, state, now)
    if held is not None:
        return Proposal(None, held.reason, held.message), done
    name = state.loads.current
    message = (
        f"loads alternate: the cap goes from {cap} to {to}, which suits all of the last hour"
        if changing
        else f"{name} is back: the cap goes from {cap} to {to}, which served it last"
    )
    change = Proposal(Change(Knob.MAX_ACTIVE_SEQS, cap, to), Reason.REGIME_REMEMBERED, message)
    return change, done
