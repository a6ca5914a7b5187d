"""How the tuner's memory changes: agreement, cool-downs, remembered storms, recommendations."""

from collections.abc import Sequence

from kvserving_tuner.decision import Change, DiagnosisKind, Knob, Reason
from kvserving_tuner.learning import forget_windows
from kvserving_tuner.proposal import Proposal
from kvserving_tuner.remembered import Judged
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import CapRules
from kvserving_tuner.state import Recommendation, TunerState

SAME_RECOMMENDATION_SHARE = 0.2
"""A recommended value is renewed only when it moves by more than this share."""


def count_agreement(state: TunerState, kind: DiagnosisKind, sample_at: float | None) -> TunerState:
    """Count observations in a row with the same diagnosis; the same sample counts once."""
    if state.agreeing is not kind:
        return state.model_copy(
            update={"agreeing": kind, "agreeing_count": 1, "agreeing_at": sample_at}
        )
    if sample_at is None or sample_at == state.agreeing_at:
        return state
    return state.model_copy(
        update={"agreeing_count": state.agreeing_count + 1, "agreeing_at": sample_at}
    )


def adopt(state: TunerState, cap: int | None, now: float) -> TunerState:
    """Take a cap that somebody else set as the new baseline, and let it settle."""
    if cap is None or cap == state.cap:
        return state
    if state.cap is None:
        return state.model_copy(update={"cap": cap})
    return state.model_copy(update={"cap": cap, "last_change_at": now, "agreeing_count": 0})


def meet_kv_cache(state: TunerState, runtime: Sequence[RuntimeState], now: float) -> TunerState:
    """Forget what was learned under another KV cache once all engines run the new one.

    Another format or eviction policy holds another number of sequences, so ceilings and pauses of
    the former one mean nothing; the new one first gets time to settle.
    """
    found = {
        f"{each.effective.kv_cache_dtype}/{each.effective.eviction.policy}" for each in runtime
    }
    if len(found) != 1 or found == {state.kv_cache}:
        return state
    dtype = runtime[0].effective.kv_cache_dtype
    met: dict[str, object] = {"kv_cache": found.pop()}
    if state.start_kv_cache_dtype is None or not _own(state, dtype):
        # What a person sets is the new way back, and ends what was tried before.
        met |= {"start_kv_cache_dtype": dtype, "watch": None}
    if state.kv_cache is not None:
        met |= {
            "ceiling": None, "backoff_seconds": None, "raises_paused_until": None,
            "agreeing_count": 0, "last_change_at": now, "due": None, "last_storm_at": None,
            "storms": 0,
        }  # fmt: skip
        state = forget_windows(state)
    return state.model_copy(update=met)


def _own(state: TunerState, dtype: str) -> bool:
    """Whether a format is in effect because the tuner wanted it."""
    asked = state.asked.value if state.asked is not None else None
    passed = {
        each.value
        for each in state.tried
        if each.knob is Knob.KV_CACHE_DTYPE and each.judged is Judged.PASSED
    }
    return dtype in {state.start_kv_cache_dtype, state.set_kv_cache_dtype, asked, *passed}


def remember_change(
    rules: CapRules, state: TunerState, proposal: Proposal, now: float
) -> TunerState:
    """Memory after a change that is about to be carried out."""
    if proposal.change is None:
        return state
    changed: dict[str, object] = {
        "cap": proposal.change.to_value,
        "last_change_at": now,
        "agreeing_count": 0,
    }
    if proposal.reason is Reason.PREEMPTION_STORM:
        changed |= _after_storm(rules, state, proposal, now)
    elif proposal.reason is Reason.SEQUENCES_WAIT_KV_FREE:
        changed["last_raise_at"] = now
        if state.backoff_seconds is not None:
            changed["raises_paused_until"] = now + state.backoff_seconds
    return state.model_copy(update=changed)


def _after_storm(
    rules: CapRules, state: TunerState, proposal: Proposal, now: float
) -> dict[str, object]:
    backoff = state.backoff_seconds
    if (
        backoff is not None
        and state.last_storm_at is not None
        and now - state.last_storm_at > 4 * backoff
    ):
        # Long calm: the load has learned to live with the cap, or is another one.
        backoff = None
    changed: dict[str, object] = {"last_storm_at": now, "backoff_seconds": backoff}
    raised = state.last_raise_at
    storm_before = state.last_storm_at
    since_storm = raised is not None and (storm_before is None or raised > storm_before)
    if (
        raised is not None
        and since_storm
        and now - raised <= 2 * (backoff or rules.backoff_seconds)
    ):
        backoff = (
            rules.backoff_seconds
            if backoff is None
            else min(2 * backoff, rules.backoff_maximum_seconds)
        )
        changed |= {"backoff_seconds": backoff, "raises_paused_until": now + backoff}
    apart = storm_before is None or now - storm_before > rules.backoff_seconds
    storms = state.storms + 1 if apart else max(1, state.storms)
    changed["storms"] = storms
    if proposal.ceiling is not None:
        # A cap that storms now and then is remembered ever longer: each visit costs throughput.
        memory = min(
            rules.backoff_seconds * 2.0 ** min(storms - 1, 32), rules.backoff_maximum_seconds
        )
        until = now + max(backoff or 0.0, memory)
        changed["ceiling"] = proposal.ceiling.model_copy(update={"until": until})
    return changed


def same_recommendation(standing: Recommendation | None, change: Change) -> bool:
    """Whether a change says what already stands, apart from noise in its value."""
    if standing is None or standing.knob != change.knob or standing.from_value != change.from_value:
        return False
    before, to, standing_to = change.from_value, change.to_value, standing.to_value
    if not (isinstance(to, int) and isinstance(standing_to, int)):
        return to == standing_to
    if isinstance(before, int) and (to > before) != (standing_to > before):
        return False
    return abs(to - standing_to) <= max(1.0, SAME_RECOMMENDATION_SHARE * standing_to)


def remember_recommendation(
    state: TunerState, proposal: Proposal, identity: str, now: float
) -> TunerState:
    """Memory after a new recommendation."""
    if proposal.change is None:
        return state
    return state.model_copy(
        update={
            "recommendation": Recommendation(
                id=identity,
                at=now,
                knob=proposal.change.knob.value,
                from_value=proposal.change.from_value,
                to_value=proposal.change.to_value,
                reason=proposal.reason.value,
                message=proposal.message,
                cost=proposal.change.cost,
            )
        }
    )


def withdraw(rules: CapRules, state: TunerState, kind: DiagnosisKind) -> TunerState:
    """Drop a recommendation that observations no longer support, or that has been followed."""
    standing = state.recommendation
    if standing is None or kind is DiagnosisKind.UNKNOWN or standing.knob != Knob.MAX_ACTIVE_SEQS:
        # The ladder withdraws its own.
        return state
    followed = state.cap is not None and state.cap != standing.from_value
    unsupported = (
        kind not in (DiagnosisKind.PREEMPTION_STORM, DiagnosisKind.SEQUENCE_CAP)
        and state.agreeing_count >= rules.confirmations
    )
    return state.model_copy(update={"recommendation": None}) if followed or unsupported else state
