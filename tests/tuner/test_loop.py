"""Decisions, case by case: what is done, what is not, and the reason given."""

from dataclasses import replace

import pytest

from kvserving_tuner.decision import Action, Change, DiagnosisKind, Knob, Reason
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.loop import TunerState, decide
from kvserving_tuner.observation import (
    EngineObservation,
    GaugeWindow,
    Observation,
    Problem,
    ProblemReason,
    Window,
)
from kvserving_tuner.readings import Known, Unknown
from kvserving_tuner.runtime_client import Capacity, RuntimeState
from kvserving_tuner.settings import Bounds, CapRules, Mode, Slo, TuningSettings
from kvserving_tuner.state import Ceiling
from tunerkit.build import NOW, engine, lengths, observation, runtime, window

AUTO = TuningSettings(mode=Mode.AUTO)
CONFIRMED = TunerState(
    cap=8,
    last_change_at=NOW - 600,
    agreeing=DiagnosisKind.SEQUENCE_CAP,
    agreeing_count=5,
    agreeing_at=NOW - 5,
)
"""Memory that makes a raise due at once."""
WAITING = window(running=8, waiting=5, usage=0.5, finished=30)
STORM = window(15, running=8, waiting=20, usage=0.99, preemptions=12, finished=1)


def waiting(name: str = "a", full: Window | Unknown = WAITING) -> EngineObservation:
    return engine(full, name=name)


def storming(name: str = "a", short: Window = STORM) -> EngineObservation:
    return engine(
        Unknown("2 of 3 samples"), short, name, prompts=lengths(200), answers=lengths(500)
    )


def raised(change: Change | None) -> tuple[int, int] | None:
    return None if change is None else (int(change.from_value), int(change.to_value))


def test_a_storm_lowers_the_cap_at_once_to_what_fits() -> None:
    decision, state = decide(AUTO, observation(storming()), runtime({"a": 64}), TunerState(), NOW)
    assert decision.action is Action.CHANGE
    assert decision.change == Change(Knob.MAX_ACTIVE_SEQS, 64, 6)
    assert decision.reason is Reason.PREEMPTION_STORM
    assert decision.numbers["sequences_that_fit"] == 6
    assert decision.numbers["preemptions"] == 12
    assert (state.cap, state.last_change_at, state.last_storm_at) == (6, NOW, NOW)
    assert state.ceiling == Ceiling(sequences=8, tokens_per_request=700, until=NOW + 600)


def test_a_storm_does_not_wait_for_the_cooldown() -> None:
    settled = CONFIRMED.model_copy(update={"last_change_at": NOW - 16})
    decision, _ = decide(AUTO, observation(storming()), runtime({"a": 8}), settled, NOW)
    assert raised(decision.change) == (8, 6)


def test_a_storm_from_before_the_last_change_is_no_reason_for_another() -> None:
    settled = CONFIRMED.model_copy(update={"last_change_at": NOW - 5})
    decision, _ = decide(AUTO, observation(storming()), runtime({"a": 8}), settled, NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.WARMING_UP)


def test_a_lowered_cap_is_given_time_to_drain() -> None:
    settled = CONFIRMED.model_copy(update={"last_change_at": NOW - 20, "cap": 6})
    decision, _ = decide(AUTO, observation(storming()), runtime({"a": 6}), settled, NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.DRAINING)


def test_a_window_that_ran_more_than_the_cap_allows_says_nothing_about_the_cap() -> None:
    # It is down to the cap by now, but the preemptions are of the sequences from before.
    assert isinstance(STORM.running, GaugeWindow)
    drained = replace(STORM, running=replace(STORM.running, last=6.0))
    settled = CONFIRMED.model_copy(update={"last_change_at": NOW - 20, "cap": 6})
    seen = observation(storming(short=drained))
    decision, state = decide(AUTO, seen, runtime({"a": 6}), settled, NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.DRAINING)
    assert state.ceiling == settled.ceiling


def test_a_storm_at_the_minimum_is_said_to_be_one() -> None:
    settings = AUTO.model_copy(update={"max_active_seqs": Bounds(minimum=8)})
    decision, _ = decide(settings, observation(storming()), runtime({"a": 8}), TunerState(), NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.AT_MINIMUM)
    assert "12 preemptions" in decision.message


def test_waiting_sequences_and_free_kv_raise_the_cap_by_a_quarter() -> None:
    decision, state = decide(AUTO, observation(waiting()), runtime({"a": 8}), CONFIRMED, NOW)
    assert raised(decision.change) == (8, 10)
    assert decision.reason is Reason.SEQUENCES_WAIT_KV_FREE
    assert decision.numbers["predicted_kv_usage"] == pytest.approx(0.625)
    assert (state.cap, state.last_raise_at, state.agreeing_count) == (10, NOW, 0)


def latencies(above: float) -> Histogram:
    return Histogram((0.0425, 0.05, float("inf")), (100 - above, above, 0), 1.0)


@pytest.mark.parametrize(
    ("seen", "changes", "cap", "reason"),
    [
        (waiting(), {"last_change_at": NOW - 59}, 8, Reason.COOLDOWN),
        (waiting(), {"agreeing_count": 1}, 8, Reason.CONFIRMING),
        (waiting(), {"raises_paused_until": NOW + 10}, 8, Reason.COOLDOWN),
        (
            waiting(),
            {"last_storm_at": NOW - 900, "last_raise_at": NOW - 200},
            8,
            Reason.COOLDOWN,
        ),
        (
            waiting(),
            {"ceiling": Ceiling(sequences=9, until=NOW + 100)},
            8,
            Reason.CEILING_REMEMBERED,
        ),
        (
            waiting(full=window(running=8, usage=0.84, finished=30)),
            {},
            8,
            Reason.KV_WOULD_FILL,
        ),
        (waiting(full=window(running=8, usage=0.3, finished=0)), {}, 8, Reason.WARMING_UP),
        (waiting(full=window(running=64, finished=99)), {"cap": 64}, 64, Reason.AT_MAXIMUM),
        # More could run than does: the cap is not what holds requests back.
        (waiting(full=window(running=4, waiting=5, usage=0.4)), {}, 8, Reason.HEALTHY),
        (waiting(full=window(running=4, waiting=0, usage=0.4)), {}, 8, Reason.HEALTHY),
        (waiting(full=window(running=8, usage=0.95)), {}, 8, Reason.KV_PRESSURE),
        (
            waiting(full=window(running=0, waiting=0, usage=0, tokens=0, finished=0)),
            {},
            8,
            Reason.IDLE,
        ),
        (waiting(full=Unknown("2 of 3 samples")), {}, 8, Reason.WARMING_UP),
        (waiting(full=window(running=0, waiting=5, usage=0)), {}, 8, Reason.CONTRADICTION),
    ],
)
def test_the_cap_is_not_raised(
    seen: EngineObservation, changes: dict[str, object], cap: int, reason: Reason
) -> None:
    state = CONFIRMED.model_copy(update=changes)
    decision, after = decide(AUTO, observation(seen), runtime({"a": cap}), state, NOW)
    assert (decision.action, decision.change, decision.reason) == (Action.HOLD, None, reason)
    assert decision.message
    assert after.cap == cap


@pytest.mark.parametrize(
    ("above", "action", "reason"),
    [
        (4, Action.CHANGE, Reason.SEQUENCES_WAIT_KV_FREE),
        (6, Action.HOLD, Reason.NO_TPOT_SLACK),
        (None, Action.HOLD, Reason.TPOT_UNKNOWN),
    ],
)
def test_a_target_for_time_per_output_token_needs_room(
    above: float | None, action: Action, reason: Reason
) -> None:
    settings = AUTO.model_copy(update={"slo": Slo(tpot_ms=50)})
    tpot = Unknown("absent") if above is None else latencies(above)
    seen = observation(waiting(full=replace(WAITING, tpot=tpot)))
    decision, _ = decide(settings, seen, runtime({"a": 8}), CONFIRMED, NOW)
    assert (decision.action, decision.reason) == (action, reason)


def test_confirmations_count_samples_and_not_turns() -> None:
    state = CONFIRMED.model_copy(update={"agreeing_count": 0, "agreeing": None})
    for _ in range(5):
        decision, state = decide(AUTO, observation(waiting()), runtime({"a": 8}), state, NOW)
        assert decision.reason is Reason.CONFIRMING
    for seconds in (5, 10):
        later = NOW + seconds
        seen = observation(waiting(full=replace(WAITING, end=later)))
        decision, state = decide(AUTO, seen, runtime({"a": 8}), state, later)
    assert decision.action is Action.CHANGE


def test_a_remembered_storm_bends_to_a_lighter_load() -> None:
    ceiling = Ceiling(sequences=9, tokens_per_request=700, until=NOW + 500)
    state = CONFIRMED.model_copy(
        update={"ceiling": ceiling, "raises_paused_until": NOW + 500, "backoff_seconds": 600.0}
    )
    for tokens, action in ((300, Action.CHANGE), (700, Action.HOLD)):
        full = replace(
            WAITING, prompt_lengths=lengths(tokens / 2), answer_lengths=lengths(tokens / 2)
        )
        decision, _ = decide(AUTO, observation(waiting(full=full)), runtime({"a": 8}), state, NOW)
        assert decision.action is action


@pytest.mark.parametrize(
    ("bounds", "envelope", "change", "reason"),
    [
        (Bounds(maximum=9), (1, 64), (8, 9), Reason.SEQUENCES_WAIT_KV_FREE),
        (Bounds(), (1, 9), (8, 9), Reason.SEQUENCES_WAIT_KV_FREE),
        (Bounds(maximum=4), (1, 64), (8, 4), Reason.OUTSIDE_BOUNDS),
        (Bounds(minimum=12), (1, 64), (8, 12), Reason.OUTSIDE_BOUNDS),
        (Bounds(minimum=12), (1, 10), None, Reason.BOUNDS_CONFLICT),
        (None, (1, 64), None, Reason.KNOB_NOT_ALLOWED),
    ],
)
def test_the_cap_stays_within_all_bounds(
    bounds: Bounds | None,
    envelope: tuple[int, int],
    change: tuple[int, int] | None,
    reason: Reason,
) -> None:
    settings = AUTO.model_copy(update={"max_active_seqs": bounds})
    found = runtime({"a": 8}, *envelope)
    decision, _ = decide(settings, observation(waiting()), found, CONFIRMED, NOW)
    assert (raised(decision.change), decision.reason) == (change, reason)


def test_engines_with_different_caps_are_brought_together() -> None:
    seen = observation(waiting("a"), waiting("b"))
    fresh, _ = decide(AUTO, seen, runtime({"a": 8, "b": 20}), TunerState(), NOW)
    assert (raised(fresh.change), fresh.reason) == ((20, 8), Reason.CAPS_DIFFER)
    decided = CONFIRMED.model_copy(update={"cap": 20})
    back, _ = decide(AUTO, seen, runtime({"a": 8, "b": 20}), decided, NOW)
    assert raised(back.change) == (20, 20)


def test_a_storm_on_one_of_several_engines_lowers_all_and_raises_none() -> None:
    seen = observation(waiting("a"), storming("b"))
    decision, _ = decide(AUTO, seen, runtime({"a": 3, "b": 64}), TunerState(), NOW)
    assert raised(decision.change) == (64, 3)
    assert decision.diagnosis.target == "b"


def test_one_engine_under_pressure_keeps_the_cap_of_all_down() -> None:
    seen = observation(waiting("a"), waiting("b", window(running=8, usage=0.93)))
    decision, _ = decide(AUTO, seen, runtime({"a": 8, "b": 8}), CONFIRMED, NOW)
    assert decision.reason is Reason.KV_PRESSURE


def test_a_cap_set_by_somebody_else_is_adopted_and_given_time() -> None:
    decision, state = decide(AUTO, observation(waiting()), runtime({"a": 7}), CONFIRMED, NOW)
    assert decision.action is Action.HOLD
    assert (state.cap, state.last_change_at) == (7, NOW)


def test_engines_without_a_runtime_api_are_diagnosed_only() -> None:
    for seen, kind in (
        (waiting(), DiagnosisKind.HEALTHY),
        (storming(), DiagnosisKind.PREEMPTION_STORM),
    ):
        decision, _ = decide(AUTO, observation(seen), [], CONFIRMED, NOW)
        assert (decision.action, decision.reason) == (Action.HOLD, Reason.NO_RUNTIME_API)
        assert decision.diagnosis.kind is kind


def test_engines_too_busy_to_be_read_back_are_not_taken_for_stock_ones() -> None:
    seen = replace(waiting("a"), max_active_seqs=Known(8, NOW))
    decision, _ = decide(AUTO, observation(seen), [], CONFIRMED, NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.RUNTIME_UNREADABLE)
    assert "a" in decision.message


def test_an_engine_that_cannot_be_read_back_forbids_a_raise() -> None:
    seen = observation(waiting("a"), waiting("b"))
    decision, _ = decide(AUTO, seen, runtime({"a": 8}), CONFIRMED, NOW)
    assert decision.reason is Reason.RUNTIME_UNREADABLE
    assert decision.action is Action.HOLD


@pytest.mark.parametrize("reason", [r for r in ProblemReason if not r.informational])
@pytest.mark.parametrize("target", ["a", None])
def test_missing_data_holds_with_its_reason(reason: ProblemReason, target: str | None) -> None:
    problem = Problem(reason, target, "what is wrong")
    for seen in (waiting(), storming()):
        decision, state = decide(
            AUTO, observation(seen, problems=[problem]), runtime({"a": 8}), CONFIRMED, NOW
        )
        assert decision.action is Action.HOLD
        assert decision.reason.value == reason.value
        assert decision.diagnosis.kind is DiagnosisKind.UNKNOWN
        assert "what is wrong" in decision.message
        assert state.cap == 8


def test_a_storm_that_is_well_seen_is_ended_although_another_engine_is_silent() -> None:
    problem = Problem(ProblemReason.METRICS_MISSING, "b", "refused")
    seen = observation(storming("a"), waiting("b", Unknown("refused")), problems=[problem])
    decision, _ = decide(AUTO, seen, runtime({"a": 64}), TunerState(), NOW)
    assert raised(decision.change) == (64, 6)


def test_no_traffic_is_idle_and_not_missing_data() -> None:
    idle = window(running=0, waiting=0, usage=0, tokens=0, finished=0)
    seen = observation(engine(idle))
    assert [p.reason for p in seen.problems] == [ProblemReason.NO_TRAFFIC]
    decision, _ = decide(AUTO, seen, runtime({"a": 8}), CONFIRMED, NOW)
    assert decision.reason is Reason.IDLE


def test_no_engines_at_all() -> None:
    decision, _ = decide(AUTO, observation(), [], TunerState(), NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.NO_ENGINES)


@pytest.mark.parametrize("seen", [waiting(), storming()])
def test_mode_off_diagnoses_only(seen: EngineObservation) -> None:
    off = TuningSettings(mode=Mode.OFF)
    decision, state = decide(off, observation(seen), runtime({"a": 8}), CONFIRMED, NOW)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.MODE_OFF)
    assert decision.diagnosis.kind in {DiagnosisKind.SEQUENCE_CAP, DiagnosisKind.PREEMPTION_STORM}
    assert state.recommendation is None


RECOMMEND = TuningSettings(mode=Mode.RECOMMEND)


def recommend(
    seen: Observation, state: TunerState, cap: int = 8, now: float = NOW
) -> tuple[Action, TunerState]:
    """One turn with one engine."""
    decision, state = decide(RECOMMEND, seen, runtime({"a": cap}), state, now)
    assert decision.action is not Action.CHANGE
    assert state.last_change_at == CONFIRMED.last_change_at
    return decision.action, state


def test_a_recommendation_is_made_once_and_stands() -> None:
    action, state = recommend(observation(storming()), CONFIRMED)
    assert action is Action.RECOMMEND
    assert state.recommendation is not None
    assert (state.recommendation.from_value, state.recommendation.to_value) == (8, 6)
    standing = state.recommendation
    action, state = recommend(observation(storming()), state, now=NOW + 5)
    assert action is Action.HOLD
    assert state.recommendation == standing


@pytest.mark.parametrize(
    ("seen", "caps", "bounds", "words"),
    [
        ((storming(),), (8,), None, "would lower the cap from 8 to 6, 6 sequences fit"),
        ((waiting(),), (8,), None, "would raise the cap from 8 to "),
        ((waiting(),), (8,), Bounds(minimum=1, maximum=5), "would move it to 5"),
        ((waiting(), waiting("b")), (8, 6), None, "would set all to "),
    ],
)
def test_advice_does_not_read_as_if_it_had_been_followed(
    seen: tuple[EngineObservation, ...], caps: tuple[int, ...], bounds: Bounds | None, words: str
) -> None:
    states = runtime(dict(zip((each.target for each in seen), caps, strict=True)))
    advice, done = (
        decide(
            TuningSettings(mode=mode, max_active_seqs=bounds or Bounds(minimum=1)),
            observation(*seen),
            states,
            CONFIRMED,
            NOW,
        )[0]
        for mode in (Mode.RECOMMEND, Mode.AUTO)
    )
    assert words in advice.message
    assert "would" not in done.message
    assert done.change == advice.change


def test_a_recommendation_survives_a_gap_in_the_data() -> None:
    _, state = recommend(observation(storming()), CONFIRMED)
    problem = Problem(ProblemReason.METRICS_MISSING, "a", "refused")
    _, state = recommend(observation(waiting(), problems=[problem]), state)
    assert state.recommendation is not None


def test_a_recommendation_is_withdrawn_once_followed_or_no_longer_supported() -> None:
    _, recommended = recommend(observation(storming()), CONFIRMED)
    idle = engine(window(running=0, waiting=0, usage=0, tokens=0, finished=0))
    state = recommended
    for index in range(CapRules().confirmations):
        calm = replace(idle, at=NOW + index)
        _, state = recommend(observation(calm), state)
    assert state.recommendation is None
    decision, state = decide(RECOMMEND, observation(idle), runtime({"a": 5}), recommended, NOW + 60)
    assert decision.action is Action.HOLD
    assert state.recommendation is None


def test_a_change_of_mode_ends_a_recommendation() -> None:
    _, state = recommend(observation(storming()), CONFIRMED)
    for mode in (Mode.OFF, Mode.AUTO):
        settings = TuningSettings(mode=mode)
        _, after = decide(settings, observation(waiting()), runtime({"a": 8}), state, NOW)
        assert after.recommendation is None


def test_the_same_inputs_give_the_same_decision_and_id() -> None:
    seen, found = observation(storming()), runtime({"a": 64})
    first = decide(AUTO, seen, found, TunerState(), NOW)
    assert decide(AUTO, seen, found, TunerState(), NOW) == first
    other, _ = decide(AUTO, seen, found, TunerState(), NOW + 1)
    assert other.id != first[0].id
    assert len(first[0].id) == 16


def test_a_decision_as_plain_values() -> None:
    decision, _ = decide(AUTO, observation(storming()), runtime({"a": 64}), TunerState(), NOW)
    plain = decision.to_dict()
    assert plain["change"] == {"knob": "MaxActiveSeqs", "from": 64, "to": 6, "cost": "Live"}
    assert plain["reason"] == "PreemptionStorm"


def under(dtype: str, caps: dict[str, int]) -> list[RuntimeState]:
    return [
        each.model_copy(
            update={"effective": each.effective.model_copy(update={"kv_cache_dtype": dtype})}
        )
        for each in runtime(caps)
    ]


def test_another_kv_format_ends_what_the_former_one_taught() -> None:
    ceiling = Ceiling(sequences=9, tokens_per_request=700, until=NOW + 600)
    learned = CONFIRMED.model_copy(
        update={
            "kv_cache": "bfloat16/None", "ceiling": ceiling, "backoff_seconds": 600,
            "raises_paused_until": NOW + 600,
        }
    )  # fmt: skip
    held, state = decide(AUTO, observation(waiting()), under("bfloat16", {"a": 8}), learned, NOW)
    assert (held.action, state.ceiling) == (Action.HOLD, ceiling)
    fresh, state = decide(AUTO, observation(waiting()), under("int4", {"a": 8}), learned, NOW)
    assert fresh.action is Action.HOLD
    assert (state.ceiling, state.raises_paused_until, state.last_change_at) == (None, None, NOW)
    # Settled and confirmed, it may be raised above the former format's ceiling.
    due = state.model_copy(update={"last_change_at": NOW - 600, "agreeing_count": 5})
    raise_, _ = decide(AUTO, observation(waiting()), under("int4", {"a": 8}), due, NOW)
    assert raised(raise_.change) == (8, 10)


def test_engines_on_their_way_to_another_kv_format_teach_nothing_new() -> None:
    mixed = [*under("bfloat16", {"a": 8}), *under("int4", {"b": 8})]
    known = CONFIRMED.model_copy(update={"kv_cache": "bfloat16/None"})
    _, state = decide(AUTO, observation(waiting("a"), waiting("b")), mixed, known, NOW)
    assert state.kv_cache == "bfloat16/None"


def test_the_cache_is_as_large_as_the_engine_says_now() -> None:
    """The labels of its metrics keep the size that the format of the start had."""
    state = runtime({"a": 64})[0]
    larger = state.model_copy(
        update={"capacity": Capacity(kv_cache_tokens=9999, blocks=500, block_size=16)}
    )
    decision, _ = decide(AUTO, observation(storming()), [larger], TunerState(), NOW)
    # 4,000 tokens would hold 6 sequences.
    assert raised(decision.change) == (64, 6)
    assert decision.numbers["sequences_that_fit"] == 14
    unsized = state.model_copy(update={"capacity": Capacity()})
    decision, _ = decide(AUTO, observation(storming()), [unsized], TunerState(), NOW)
    assert decision.numbers["sequences_that_fit"] == 6
