"""What comes before the ladder and what follows from it: loads that are back, ways back, advice."""

from dataclasses import replace

import pytest

from kvserving_tuner.decision import (
    Change,
    CostClass,
    Diagnosis,
    DiagnosisKind,
    Knob,
    Reason,
    RungName,
)
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.ladder.climb import climb
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.observation import Window
from kvserving_tuner.proposal import Knobs, Proposal
from kvserving_tuner.remembered import (
    Due,
    Fingerprint,
    Judged,
    Loads,
    Regime,
    Sample,
    Tried,
    Watch,
)
from kvserving_tuner.rules import Ability, Guardrails
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import Mode, Slo, TuningSettings
from kvserving_tuner.state import Recommendation, TunerState
from kvserving_tuner.stepping import take_step
from tunerkit.build import NOW, engine, window

ABLE = TuningSettings(
    mode=Mode.AUTO,
    abilities={**dict.fromkeys(Knob, Ability.RECOMMEND), Knob.KV_CACHE_DTYPE: Ability.CHANGE},
    allowed_dtypes=("fp8_e4m3", "int8", "k8v4"),
)
LOAD = Fingerprint(rate=1, prompt_tokens=100, answer_tokens=100)
HERE = Regime(name="load-1", load=LOAD, windows=9, seen_at=NOW, cap=6)
OTHER = Regime(name="load-2", load=LOAD, windows=9, seen_at=NOW, cap=4)
SAMPLE = Sample(
    at=NOW, goodput=1, missed=None, tokens_per_second=100, waiting=9, running=8,
    preemptions_per_second=0, finished=60,
)  # fmt: skip
READY = TunerState(
    cap=8, loads=Loads(regimes=(HERE, OTHER), current="load-1"), samples=(SAMPLE,) * 5,
    start_kv_cache_dtype="bfloat16",
)  # fmt: skip
CALM = Proposal(None, Reason.KV_PRESSURE, "20 requests wait")
BOUND = window(running=8, waiting=20, usage=0.95)


def engines(dtype: str = "bfloat16", **startup: object) -> tuple[RuntimeState, ...]:
    document = {
        "effective": {"kv_cache_dtype": dtype, "max_active_seqs": 8},
        "envelope": {
            "kv_cache_dtype": {"values": ["bfloat16", "fp8_e4m3", "int8", "k8v4"]},
        },
        "startup": {"max_num_seqs": 64, "prefix_caching": True, **startup},
    }
    return (RuntimeState.of("a", document),)


def stepped(
    state: TunerState = READY,
    proposal: Proposal = CALM,
    kind: DiagnosisKind = DiagnosisKind.KV_PRESSURE,
    full: Window = BOUND,
    settings: TuningSettings = ABLE,
    runtime: tuple[RuntimeState, ...] | None = None,
) -> tuple[Proposal, TunerState]:
    seen = Situation(
        settings, (engine(full),), engines() if runtime is None else runtime,
        Diagnosis(kind, "a", "20 requests wait", {}), 8, proposal.reason, proposal.message, state,
        NOW,
    )  # fmt: skip
    return take_step(seen, Knobs({"a": 8}, 1, 64), proposal)


def due(
    state: TunerState, value: int | str = "fp8_e4m3", rung: RungName = RungName.EIGHT_BIT_CACHE
) -> TunerState:
    since = Due(rung=rung, value=value, since=NOW - 181, last=NOW - 5)
    return state.model_copy(update={"due": since})


def test_a_rung_has_to_be_due_for_three_windows() -> None:
    found, state = stepped()
    assert (found.change, found.reason) == (None, Reason.CONFIRMING)
    assert state.due is not None
    assert state.due.since == NOW
    found, _ = stepped(due(READY))
    assert found.change == Change(Knob.KV_CACHE_DTYPE, "bfloat16", "fp8_e4m3")
    assert found.case is not None
    assert found.case.rung is RungName.EIGHT_BIT_CACHE


@pytest.mark.parametrize(
    "before",
    [
        Due(rung=RungName.EIGHT_BIT_CACHE, value="int8", since=NOW - 500, last=NOW - 5),
        Due(rung=RungName.MIXED_CACHE, value="fp8_e4m3", since=NOW - 500, last=NOW - 5),
        Due(rung=RungName.EIGHT_BIT_CACHE, value="fp8_e4m3", since=NOW - 500, last=NOW - 121),
    ],
)
def test_another_rung_or_a_gap_begins_anew(before: Due) -> None:
    found, state = stepped(READY.model_copy(update={"due": before}))
    assert found.reason is Reason.CONFIRMING
    assert state.due is not None
    assert state.due.since == NOW


def test_a_number_that_moves_with_the_load_does_not_begin_anew() -> None:
    settings = ABLE.model_copy(update={"slo": Slo(ttft_ms=1000), "allowed_dtypes": ()})
    late = Histogram((1.0, float("inf")), (10.0, 90.0), 500.0)
    full = window(running=8, waiting=90, usage=0.95, finished=60, prompt_tokens=6000, ttft=late)
    state = due(READY, 77, RungName.ADMISSION)
    found, _ = stepped(state, full=full, settings=settings)
    assert found.change == Change(Knob.MAX_QUEUED_TOKENS, "unbounded", 100, CostClass.RESTART)


def test_advice_with_a_number_is_told_once_too() -> None:
    settings = ABLE.model_copy(update={"slo": Slo(ttft_ms=1000)})
    late = Histogram((1.0, float("inf")), (10.0, 90.0), 500.0)
    full = window(running=8, waiting=90, usage=0.95, finished=60, prompt_tokens=6000, ttft=late)
    told = Recommendation(
        id="x", at=NOW, knob="MaxQueuedTokens", from_value="unbounded", to_value=900, reason="",
        message="",
    )  # fmt: skip
    state = due(READY).model_copy(update={"recommendation": told})
    found, _ = stepped(state, full=full, settings=settings)
    assert found.change is not None
    assert found.change.knob is Knob.KV_CACHE_DTYPE


def test_a_guardrail_holds_and_the_rung_stays_due() -> None:
    settings = ABLE.model_copy(update={"guardrails": Guardrails(switches_per_day=0)})
    found, state = stepped(due(READY), settings=settings)
    assert (found.change, found.reason) == (None, Reason.CHANGE_BUDGET_SPENT)
    assert "fp8_e4m3 holds 2.00 times" in found.message
    assert state.due is not None


def test_a_trial_is_asked_for_where_changes_need_one_and_then_awaited() -> None:
    abilities = {Knob.KV_CACHE_DTYPE: Ability.TRIAL}
    settings = ABLE.model_copy(update={"abilities": abilities})
    found, _ = stepped(due(READY), settings=settings)
    assert found.ability is Ability.TRIAL
    asked = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="load-1", judged=Judged.FAILED,
        at=NOW - 60, until=NOW + 60,
    )  # fmt: skip
    found, _ = stepped(due(READY).model_copy(update={"asked": asked}), settings=settings)
    assert (found.change, found.reason) == (None, Reason.TRIAL_STANDS)


def test_advice_is_told_once_and_then_the_ladder_goes_on() -> None:
    off = engines(prefix_caching=False)
    state = due(READY, "on", RungName.PREFIX_CACHING)
    found, _ = stepped(state, runtime=off)
    assert found.change is not None
    assert (found.change.knob, found.ability) == (Knob.PREFIX_CACHING, Ability.RECOMMEND)
    told = Recommendation(
        id="x", at=NOW, knob="PrefixCaching", from_value="off", to_value="on", reason="",
        message="",
    )  # fmt: skip
    found, _ = stepped(due(READY).model_copy(update={"recommendation": told}), runtime=off)
    assert found.change is not None
    assert found.change.knob is Knob.KV_CACHE_DTYPE


def test_in_mode_recommend_the_first_rung_stays_recommended() -> None:
    off, settings = engines(prefix_caching=False), ABLE.model_copy(update={"mode": Mode.RECOMMEND})
    told = Recommendation(
        id="x", at=NOW, knob="PrefixCaching", from_value="off", to_value="on", reason="",
        message="",
    )  # fmt: skip
    state = due(READY, "on", RungName.PREFIX_CACHING).model_copy(update={"recommendation": told})
    found, _ = stepped(state, runtime=off, settings=settings)
    assert found.change is not None
    assert found.change.knob is Knob.PREFIX_CACHING


def test_advice_that_is_not_supported_any_more_is_withdrawn() -> None:
    told = Recommendation(
        id="x", at=NOW, knob="PrefixCaching", from_value="off", to_value="on", reason="",
        message="",
    )  # fmt: skip
    for agreeing, kept in ((1, told), (3, None)):
        state = READY.model_copy(update={"recommendation": told, "agreeing_count": agreeing})
        _, after = stepped(state)
        assert after.recommendation == kept


def watch(from_value: str = "bfloat16", to_value: str = "fp8_e4m3", harmful: bool = True) -> Watch:
    after = SAMPLE.model_copy(update={"tokens_per_second": 40.0 if harmful else 120.0})
    return Watch(
        rung=RungName.EIGHT_BIT_CACHE, knob=Knob.KV_CACHE_DTYPE, from_value=from_value,
        to_value=to_value, at=NOW - 500, regime="load-1", before=(SAMPLE,) * 5, after=(after,) * 5,
    )  # fmt: skip


def test_harm_is_taken_back_before_anything_else() -> None:
    state = READY.model_copy(update={"watch": watch()})
    found, _ = stepped(state, runtime=engines("fp8_e4m3"))
    assert found.change == Change(Knob.KV_CACHE_DTYPE, "fp8_e4m3", "bfloat16")
    assert (found.reason, found.ability) == (Reason.ROLLED_BACK, Ability.CHANGE)


def test_a_storm_is_ended_before_that() -> None:
    state = READY.model_copy(update={"watch": watch()})
    lower = Proposal(Change(Knob.MAX_ACTIVE_SEQS, 8, 6), Reason.PREEMPTION_STORM, "")
    found, _ = stepped(state, lower, DiagnosisKind.PREEMPTION_STORM, runtime=engines("fp8_e4m3"))
    assert found.change == lower.change
    assert found.case is not None


def test_a_format_whose_predecessor_failed_too_goes_back_to_the_start() -> None:
    failed = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="load-1", judged=Judged.ROLLED_BACK,
        at=NOW - 900, until=NOW + 900, message="slow",
    )  # fmt: skip
    state = READY.model_copy(update={"watch": watch("fp8_e4m3", "k8v4"), "tried": (failed,)})
    found, _ = stepped(state, runtime=engines("k8v4"))
    assert found.change == Change(Knob.KV_CACHE_DTYPE, "k8v4", "bfloat16")
    assert found.reason is Reason.FALLBACK


def test_a_change_that_passed_is_remembered_and_the_ladder_goes_on() -> None:
    state = READY.model_copy(update={"watch": watch(harmful=False)})
    found, after = stepped(state, runtime=engines("fp8_e4m3"))
    assert after.watch is None
    assert [(each.value, each.judged) for each in after.tried] == [("fp8_e4m3", Judged.PASSED)]
    assert found.reason is not Reason.WATCHING


def test_nothing_else_is_changed_while_a_change_is_watched() -> None:
    young = watch().model_copy(update={"after": ()})
    found, after = stepped(
        due(READY).model_copy(update={"watch": young}), runtime=engines("fp8_e4m3")
    )
    assert (found.change, found.reason) == (None, Reason.WATCHING)
    assert after.watch == young


def test_a_load_that_changes_ends_the_watch_without_a_verdict() -> None:
    loads = READY.loads.model_copy(update={"current": "load-2"})
    state = READY.model_copy(update={"watch": watch(harmful=False), "loads": loads})
    found, after = stepped(state, runtime=engines("fp8_e4m3"))
    assert found.reason is Reason.LOAD_CHANGED
    assert after.tried == ()


def test_a_format_that_failed_under_the_load_that_is_back_is_left() -> None:
    failed = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="load-1", judged=Judged.ROLLED_BACK,
        at=NOW - 900, until=NOW + 900, message="slow",
    )  # fmt: skip
    mine = READY.model_copy(update={"tried": (failed,), "set_kv_cache_dtype": "fp8_e4m3"})
    found, _ = stepped(mine, runtime=engines("fp8_e4m3"))
    assert (found.change, found.reason) == (
        Change(Knob.KV_CACHE_DTYPE, "fp8_e4m3", "bfloat16"), Reason.FALLBACK,
    )  # fmt: skip
    # Somebody else set it, or a trial did: it is theirs.
    theirs = mine.model_copy(update={"set_kv_cache_dtype": None})
    assert stepped(theirs, runtime=engines("fp8_e4m3"))[0].reason is not Reason.FALLBACK


@pytest.mark.parametrize(
    ("changes", "restored"),
    [
        ({}, True),
        ({"tried": ()}, False),
        ({"restoring": False}, False),
        ({"set_kv_cache_dtype": None}, False),
        ({"switched_at": (NOW - 100,) * 4}, False),
        ({"last_change_at": NOW - 10}, False),
    ],
)
def test_a_load_that_is_back_gets_the_format_that_passed_under_it(
    changes: dict[str, object], restored: bool
) -> None:
    passed = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="k8v4", regime="load-1", judged=Judged.PASSED,
        at=NOW - 900, until=NOW + 900,
    )  # fmt: skip
    mine = HERE.model_copy(update={"kv_cache_dtype": "k8v4"})
    state = READY.model_copy(
        update={
            "restoring": True, "tried": (passed,), "set_kv_cache_dtype": "bfloat16",
            "loads": Loads(regimes=(mine,), current="load-1"), **changes,
        }
    )  # fmt: skip
    found, _ = stepped(state)
    wanted = Change(Knob.KV_CACHE_DTYPE, "bfloat16", "k8v4")
    assert (found.change == wanted) is restored


def test_a_load_that_is_back_gets_its_cap() -> None:
    state = READY.model_copy(update={"restoring": True})
    found, after = stepped(state)
    assert (found.change, found.reason) == (
        Change(Knob.MAX_ACTIVE_SEQS, 8, 6), Reason.REGIME_REMEMBERED,
    )  # fmt: skip
    assert not after.restoring


def test_a_higher_cap_is_put_back_as_far_as_it_fits() -> None:
    higher = HERE.model_copy(update={"cap": 40})
    loads = Loads(regimes=(higher,), current="load-1")
    state = READY.model_copy(update={"restoring": True, "loads": loads})
    full = window(running=8, waiting=20, usage=0.5, finished=60)
    found, _ = stepped(state, Proposal(None, Reason.HEALTHY, ""), DiagnosisKind.HEALTHY, full)
    # 0.9 of the cache, at 0.0625 for each sequence.
    assert found.change == Change(Knob.MAX_ACTIVE_SEQS, 8, 14)


def test_the_last_change_settles_before_a_cap_is_put_back() -> None:
    state = READY.model_copy(update={"restoring": True, "last_change_at": NOW - 10})
    found, after = stepped(state)
    assert found.reason is not Reason.REGIME_REMEMBERED
    assert after.restoring


def test_loads_that_alternate_keep_the_cap_that_suits_them_all() -> None:
    loads = Loads(regimes=(HERE, OTHER), current="load-1", changed_at=(NOW - 900, NOW - 400))
    state = READY.model_copy(update={"restoring": True, "loads": loads})
    found, _ = stepped(state)
    assert found.change == Change(Knob.MAX_ACTIVE_SEQS, 8, 4)
    assert "loads alternate" in found.message
    higher = Proposal(Change(Knob.MAX_ACTIVE_SEQS, 8, 10), Reason.SEQUENCES_WAIT_KV_FREE, "")
    found, _ = stepped(READY.model_copy(update={"loads": loads}), higher)
    assert (found.change, found.reason) == (None, Reason.REGIME_REMEMBERED)


def test_a_format_that_failed_under_one_of_alternating_loads_is_not_gone_to() -> None:
    failed = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="load-2", judged=Judged.ROLLED_BACK,
        at=NOW - 900, until=NOW + 900, message="slow",
    )  # fmt: skip
    calm = READY.model_copy(update={"tried": (failed,)})
    alternating = calm.model_copy(
        update={"loads": calm.loads.model_copy(update={"changed_at": (NOW - 900, NOW - 400)})}
    )
    for state, value in ((calm, "fp8_e4m3"), (alternating, "int8")):
        seen = Situation(
            ABLE, (engine(BOUND),), engines(), Diagnosis(DiagnosisKind.KV_PRESSURE, "a", "", {}),
            8, Reason.KV_PRESSURE, "", state, NOW,
        )  # fmt: skip
        step = climb(seen).step
        assert step is not None
        assert step.candidate.to_value == value


def test_unknown_data_changes_nothing_but_back() -> None:
    unknown = Proposal(None, Reason.METRICS_MISSING, "NaN")
    state = due(READY).model_copy(update={"restoring": True})
    found, after = stepped(state, unknown, DiagnosisKind.UNKNOWN)
    assert (found, after) == (unknown, state)
    old = watch().model_copy(update={"at": NOW - 1801, "after": ()})
    found, _ = stepped(
        READY.model_copy(update={"watch": old}), unknown, DiagnosisKind.UNKNOWN,
        runtime=engines("fp8_e4m3"),
    )  # fmt: skip
    assert found.reason is Reason.ROLLED_BACK


def test_a_raise_carries_its_forecast_and_what_was_passed_over() -> None:
    higher = Proposal(Change(Knob.MAX_ACTIVE_SEQS, 8, 10), Reason.SEQUENCES_WAIT_KV_FREE, "")
    found, _ = stepped(proposal=higher, kind=DiagnosisKind.SEQUENCE_CAP)
    assert found.case is not None
    assert found.case.forecast is not None
    assert 0 < found.case.forecast.low < 0.25
    assert [each.rung for each in found.passed_over] == list(RungName)[:3]


def test_a_day_of_changes_holds_raises_too() -> None:
    settings = ABLE.model_copy(update={"guardrails": Guardrails(changes_per_day=1)})
    state = READY.model_copy(update={"changed_at": (NOW - 100,)})
    higher = Proposal(Change(Knob.MAX_ACTIVE_SEQS, 8, 10), Reason.SEQUENCES_WAIT_KV_FREE, "up")
    found, _ = stepped(state, higher, DiagnosisKind.SEQUENCE_CAP, settings=settings)
    assert (found.change, found.reason) == (None, Reason.CHANGE_BUDGET_SPENT)
    together = replace(higher, reason=Reason.CAPS_DIFFER)
    found, _ = stepped(state, together, DiagnosisKind.HEALTHY, settings=settings)
    assert found.change is not None
