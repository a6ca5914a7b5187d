"""Memory: back-off, agreement, and the way through storage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.decision import Change, DiagnosisKind, Knob, Reason
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.memory import remember_change, same_recommendation
from kvserving_tuner.proposal import Proposal
from kvserving_tuner.settings import CapRules
from kvserving_tuner.state import Ceiling, Recommendation, TunerState

RULES = CapRules()
times = st.none() | st.floats(0, 2e9)
ceilings = st.builds(
    Ceiling,
    sequences=st.floats(1, 1000),
    tokens_per_request=st.none() | st.floats(1, 1e6),
    until=st.floats(0, 2e9),
)
states = st.builds(
    TunerState,
    cap=st.none() | st.integers(1, 1000),
    last_change_at=times,
    last_raise_at=times,
    last_storm_at=times,
    ceiling=st.none() | ceilings,
    backoff_seconds=st.none() | st.floats(1, 1e5),
    raises_paused_until=times,
    agreeing=st.none() | st.sampled_from(DiagnosisKind),
    agreeing_count=st.integers(0, 100),
    agreeing_at=times,
    recommendation=st.none()
    | st.builds(
        Recommendation,
        id=st.text(max_size=16),
        at=st.floats(0, 2e9),
        knob=st.just("MaxActiveSeqs"),
        from_value=st.integers(1, 99),
        to_value=st.integers(1, 99),
        reason=st.text(max_size=20),
        message=st.text(max_size=50),
    ),
)


@given(states)
def test_the_state_survives_storage(state: TunerState) -> None:
    assert TunerState.from_json(state.to_json()) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cap": "many"}', '{"agreeing": "Tired"}'])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="tuner state: expected"):
        TunerState.from_json(text)


def test_fields_of_a_later_version_are_dropped() -> None:
    assert TunerState.from_json('{"version": 9, "cap": 4, "future": {"x": 1}}').cap == 4


def storm(cap: int = 10) -> Proposal:
    change = Change(Knob.MAX_ACTIVE_SEQS, cap, cap - 2)
    return Proposal(
        change, Reason.PREEMPTION_STORM, "", {}, Ceiling(sequences=float(cap), until=0.0)
    )


def growth(cap: int = 8) -> Proposal:
    change = Change(Knob.MAX_ACTIVE_SEQS, cap, cap + 2)
    return Proposal(change, Reason.SEQUENCES_WAIT_KV_FREE, "")


def test_the_backoff_doubles_with_every_storm_that_follows_a_raise() -> None:
    state, now, pauses = TunerState(), 0.0, []
    for _ in range(8):
        now += 100
        state = remember_change(RULES, state, storm(), now)
        pauses.append((state.raises_paused_until or now) - now)
        now += max(pauses[-1], 60)
        state = remember_change(RULES, state, growth(), now)
    assert pauses == [0, 600, 1200, 2400, 4800, 9600, 19200, 21600]


def test_a_storm_without_a_raise_before_it_pauses_nothing() -> None:
    state = remember_change(RULES, TunerState(), storm(), 0)
    state = remember_change(RULES, state, storm(8), 30)
    assert state.raises_paused_until is None
    assert state.ceiling == Ceiling(sequences=8, until=630)


def test_a_storm_long_after_a_raise_is_not_blamed_on_it() -> None:
    state = remember_change(RULES, TunerState(), growth(), 0)
    assert remember_change(RULES, state, storm(), 1300).raises_paused_until is None
    assert remember_change(RULES, state, storm(), 1100).raises_paused_until == 1700


def test_the_backoff_is_forgotten_after_a_long_calm() -> None:
    state = TunerState(backoff_seconds=600, last_storm_at=0, last_raise_at=5000)
    assert remember_change(RULES, state, storm(), 5100).backoff_seconds == 600
    recent = TunerState(backoff_seconds=600, last_storm_at=4000, last_raise_at=5000)
    assert remember_change(RULES, recent, storm(), 5100).backoff_seconds == 1200


@pytest.mark.parametrize(
    ("from_value", "to_value", "same"),
    [(10, 5, True), (10, 6, True), (10, 3, False), (9, 5, False), (10, 12, False)],
)
def test_noise_does_not_renew_a_recommendation(from_value: int, to_value: int, same: bool) -> None:
    standing = Recommendation(
        id="x", at=0, knob="MaxActiveSeqs", from_value=10, to_value=5, reason="", message=""
    )
    change = Change(Knob.MAX_ACTIVE_SEQS, from_value, to_value)
    assert same_recommendation(standing, change) is same
    assert not same_recommendation(None, change)


@pytest.mark.parametrize(
    ("to_value", "same"), [(100, True), (119, True), (130, False), ("unbounded", False)]
)
def test_a_number_that_begins_from_a_name_may_be_noisy_too(to_value: int | str, same: bool) -> None:
    standing = Recommendation(
        id="x", at=0, knob="MaxQueuedTokens", from_value="unbounded", to_value=100, reason="",
        message="",
    )  # fmt: skip
    change = Change(Knob.MAX_QUEUED_TOKENS, "unbounded", to_value)
    assert same_recommendation(standing, change) is same
