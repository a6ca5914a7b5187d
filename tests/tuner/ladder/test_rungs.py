"""Each rung: when it is due, what it would set, and why it is passed over."""

from dataclasses import replace
from typing import Any

import pytest

from kvserving_tuner.decision import (
    CostClass,
    Diagnosis,
    DiagnosisKind,
    Knob,
    Reason,
    Risk,
    RungName,
)
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.ladder.climb import LADDER, climb
from kvserving_tuner.ladder.formats import token_bits
from kvserving_tuner.ladder.rung import Candidate
from kvserving_tuner.ladder.service import next_capture_size
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.observation import Window
from kvserving_tuner.readings import Known
from kvserving_tuner.remembered import Fingerprint, Judged, Loads, Regime, Tried
from kvserving_tuner.rules import Ability, LadderRules, Strategy
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import Mode, Slo, TuningSettings
from kvserving_tuner.state import Ceiling, TunerState
from tunerkit.build import NOW, engine, lengths, window

SETTINGS = TuningSettings(
    mode=Mode.AUTO,
    abilities={**dict.fromkeys(Knob, Ability.RECOMMEND), Knob.KV_CACHE_DTYPE: Ability.CHANGE},
    allowed_dtypes=("fp8_e4m3", "int8", "k8v4", "int4", "int4_hadamard", "int2"),
)
LIVE = ["bfloat16", "fp8_e4m3", "int8", "k8v4", "int4", "int4_hadamard", "int2"]
STARTUP = {
    "max_num_seqs": 64, "max_num_batched_tokens": 2048, "prefix_caching": True,
    "dtype": "bfloat16", "chunked_prefill": True, "reserve_full_isl": True, "watermark": 0.0,
}  # fmt: skip


def runtime(
    dtype: str = "bfloat16", live: list[str] | None = None, cap: int = 8, **startup: Any
) -> RuntimeState:
    envelope: dict[str, Any] = {"max_active_seqs": {"minimum": 1, "maximum": 64}}
    envelope["max_scheduled_tokens"] = {"minimum": 64, "maximum": 2048}
    envelope["kv_cache_dtype"] = {"values": LIVE if live is None else live}
    return RuntimeState.of(
        "a",
        {
            "effective": {
                "kv_cache_dtype": dtype, "max_active_seqs": cap, "max_scheduled_tokens": 512,
            },
            "envelope": envelope,
            "startup": {**STARTUP, **startup},
            "versions": {"vllm": "0.32.0"},
        },
    )  # fmt: skip


def situation(
    kind: DiagnosisKind = DiagnosisKind.KV_PRESSURE,
    full: Window | None = None,
    settings: TuningSettings = SETTINGS,
    states: tuple[RuntimeState, ...] | None = None,
    cap_reason: Reason = Reason.KV_PRESSURE,
    state: TunerState | None = None,
    cap: int = 8,
) -> Situation:
    seen = full or window(running=8, waiting=20, usage=0.95)
    return Situation(
        settings=settings,
        engines=(engine(seen),),
        runtime=(runtime(),) if states is None else states,
        diagnosis=Diagnosis(kind, "a", "20 requests wait", {}),
        cap=cap,
        cap_reason=cap_reason,
        cap_message="more would not fit",
        state=state or TunerState(),
        now=NOW,
    )


def considered(name: RungName, seen: Situation) -> Candidate | str:
    return next(rung for rung in LADDER if rung.name is name).consider(seen)


def candidate(name: RungName, seen: Situation) -> Candidate:
    found = considered(name, seen)
    assert isinstance(found, Candidate), found
    return found


def late(share: float, seconds: float = 1.0) -> Histogram:
    """A share of latencies lies above a limit, the rest below."""
    return Histogram((seconds, float("inf")), (100 * (1 - share), 100 * share), 50.0)


def test_the_ladder_is_in_the_order_of_the_reference() -> None:
    assert [rung.name for rung in LADDER] == list(RungName)
    assert len({rung.name for rung in LADDER}) == len(LADDER)
    quality = [rung.name for rung in LADDER if rung.risk is Risk.QUALITY]
    assert quality[0] is RungName.EIGHT_BIT_CACHE
    assert all(rung.precondition for rung in LADDER)


@pytest.mark.parametrize(
    ("kind", "cap_reason", "binds"),
    [
        (DiagnosisKind.KV_PRESSURE, Reason.KV_PRESSURE, True),
        (DiagnosisKind.PREEMPTION_STORM, Reason.AT_MINIMUM, True),
        (DiagnosisKind.SEQUENCE_CAP, Reason.KV_WOULD_FILL, True),
        (DiagnosisKind.SEQUENCE_CAP, Reason.CEILING_REMEMBERED, True),
        (DiagnosisKind.SEQUENCE_CAP, Reason.AT_MAXIMUM, False),
        (DiagnosisKind.SEQUENCE_CAP, Reason.COOLDOWN, False),
        (DiagnosisKind.SEQUENCE_CAP, Reason.NO_TPOT_SLACK, False),
        (DiagnosisKind.HEALTHY, Reason.HEALTHY, False),
        (DiagnosisKind.COMPUTE_BOUND, Reason.HEALTHY, False),
        (DiagnosisKind.TOKEN_BUDGET, Reason.HEALTHY, False),
        (DiagnosisKind.IDLE, Reason.IDLE, False),
    ],
)
def test_formats_and_watermark_change_only_where_the_cache_binds(
    kind: DiagnosisKind, cap_reason: Reason, binds: bool
) -> None:
    usage = 0.95 if binds else 0.6
    full = window(running=8, waiting=20, usage=usage, preemptions=10, prompt_tokens=5000)
    seen = situation(kind, full, cap_reason=cap_reason)
    for name in (
        RungName.WATERMARK, RungName.EIGHT_BIT_CACHE, RungName.MIXED_CACHE,
        RungName.FOUR_BIT_CACHE, RungName.FEWER_BITS, RungName.EVICTION,
    ):  # fmt: skip
        assert isinstance(considered(name, seen), Candidate) is binds, name


def test_a_cap_held_down_by_a_remembered_storm_means_that_the_cache_binds() -> None:
    remembered = TunerState(ceiling=Ceiling(sequences=9, until=NOW + 60))
    over = TunerState(ceiling=Ceiling(sequences=9, until=NOW - 1))
    for state, binds in ((remembered, True), (over, False)):
        seen = situation(DiagnosisKind.SEQUENCE_CAP, cap_reason=Reason.COOLDOWN, state=state)
        assert seen.binding()[0] is binds


def test_a_queue_at_a_cache_with_little_room_means_that_it_binds() -> None:
    for usage, binds in ((0.87, True), (0.84, False)):
        full = window(running=8, waiting=20, usage=usage)
        seen = situation(DiagnosisKind.HEALTHY, full, cap_reason=Reason.HEALTHY)
        assert seen.binding()[0] is binds


def test_more_sequences_are_no_help_where_tokens_come_too_slowly_already() -> None:
    settings = SETTINGS.model_copy(update={"slo": Slo(tpot_ms=50)})
    full = window(running=8, waiting=20, usage=0.95, tpot=late(0.5, 0.05), prompt_tokens=5000)
    found = considered(RungName.EIGHT_BIT_CACHE, situation(full=full, settings=settings))
    assert "too slowly already" in str(found)
    # Preemptions make tokens late as well: then room is what helps.
    thrashing = replace(full, preemptions=Known(20.0, NOW))
    seen = situation(full=thrashing, settings=settings)
    assert candidate(RungName.EIGHT_BIT_CACHE, seen).to_value == "fp8_e4m3"


def test_eight_bits_are_what_the_hardware_can_store() -> None:
    assert candidate(RungName.EIGHT_BIT_CACHE, situation()).to_value == "fp8_e4m3"
    unavailable = RuntimeState.of(
        "a",
        {
            "effective": {"kv_cache_dtype": "bfloat16"},
            "envelope": {
                "kv_cache_dtype": {
                    "values": ["bfloat16", "int8"], "unavailable": {"fp8_e4m3": "needs AVX-512"},
                }
            },
        },
    )  # fmt: skip
    assert candidate(RungName.EIGHT_BIT_CACHE, situation(states=(unavailable,))).to_value == "int8"


def test_a_format_that_is_not_offered_live_needs_a_restart() -> None:
    found = candidate(RungName.EIGHT_BIT_CACHE, situation(states=(runtime(live=["bfloat16"]),)))
    assert (found.to_value, found.cost) == ("fp8_e4m3", CostClass.RESTART)
    assert candidate(RungName.EIGHT_BIT_CACHE, situation()).cost is CostClass.LIVE


@pytest.mark.parametrize(
    ("dtype", "rung", "why"),
    [
        ("fp8_e4m3", RungName.EIGHT_BIT_CACHE, "fp8_e4m3 holds no more than fp8_e4m3"),
        ("k8v4", RungName.MIXED_CACHE, "k8v4 holds no more than k8v4"),
        ("int4", RungName.FOUR_BIT_CACHE, "int4 holds no more than int4"),
        ("int2", RungName.FEWER_BITS, "int2 holds no more than int2"),
        ("odd", RungName.EIGHT_BIT_CACHE, "the size of odd"),
    ],
)
def test_a_rung_that_is_reached_is_passed_over(dtype: str, rung: RungName, why: str) -> None:
    found = considered(rung, situation(states=(runtime(dtype=dtype),)))
    assert isinstance(found, str)
    assert why in found


def test_only_allowed_formats_are_gone_to() -> None:
    settings = SETTINGS.model_copy(update={"allowed_dtypes": ("k8v4",)})
    found = considered(RungName.EIGHT_BIT_CACHE, situation(settings=settings))
    assert isinstance(found, str)
    assert "fp8_e4m3 is not among the allowed formats" in found
    assert candidate(RungName.MIXED_CACHE, situation(settings=settings)).to_value == "k8v4"


def test_a_format_that_failed_under_this_load_makes_way_for_the_next() -> None:
    tried = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="", judged=Judged.ROLLED_BACK,
        at=NOW - 9, until=NOW + 9, message="slower",
    )  # fmt: skip
    state = TunerState(tried=(tried,))
    assert candidate(RungName.EIGHT_BIT_CACHE, situation(state=state)).to_value == "int8"
    over = TunerState(tried=(tried.model_copy(update={"until": NOW - 1}),))
    assert candidate(RungName.EIGHT_BIT_CACHE, situation(state=over)).to_value == "fp8_e4m3"


def test_engines_that_differ_or_say_nothing_are_left_alone() -> None:
    mixed = (runtime(), runtime(dtype="fp8_e4m3"))
    for states in (mixed, ()):
        found = considered(RungName.EIGHT_BIT_CACHE, situation(states=states))
        assert isinstance(found, str)
        assert "do not say in which format" in found


def test_a_stock_engine_is_judged_by_the_labels_of_its_cache() -> None:
    seen = situation(states=(), kind=DiagnosisKind.PREEMPTION_STORM)
    labels = {"cache_dtype": "fp8", "enable_prefix_caching": "False"}
    seen = replace(seen, engines=(replace(seen.engines[0], config=labels),))
    assert seen.dtype == "fp8_e4m3"
    assert candidate(RungName.PREFIX_CACHING, seen).cost is CostClass.RESTART
    assert candidate(RungName.MIXED_CACHE, seen).cost is CostClass.RESTART


@pytest.mark.parametrize(
    ("startup", "knob", "to"),
    [
        ({"chunked_prefill": False}, Knob.SCHEDULING, "chunked_prefill=True"),
        ({"reserve_full_isl": False}, Knob.SCHEDULING, "reserve_full_isl=True"),
        ({"max_num_batched_tokens": 32}, Knob.MAX_NUM_BATCHED_TOKENS, 64),
    ],
)
def test_settings_with_one_right_value(startup: dict[str, Any], knob: Knob, to: object) -> None:
    found = candidate(RungName.CONFIGURATION, situation(states=(runtime(**startup),)))
    assert (found.knob, found.to_value, found.advice) == (knob, to, True)
    assert isinstance(considered(RungName.CONFIGURATION, situation()), str)


def test_what_engines_do_not_tell_is_not_called_wrong() -> None:
    silent = runtime(chunked_prefill=None, prefix_caching=None, max_num_seqs=None)
    for name, words in (
        (RungName.CONFIGURATION, "do not tell of chunked_prefill"),
        (RungName.PREFIX_CACHING, "do not say whether it is on"),
        (RungName.CAPACITY, "do not say what they were built for"),
    ):
        found = considered(name, situation(states=(silent,)))
        assert isinstance(found, str)
        assert words in found


def test_a_queue_that_is_longer_than_the_target_gets_a_bound() -> None:
    settings = SETTINGS.model_copy(update={"slo": Slo(ttft_ms=1000)})
    full = window(running=8, waiting=30, usage=0.5, finished=60, prompt_tokens=6000, ttft=late(0.6))
    found = candidate(RungName.ADMISSION, situation(full=full, settings=settings))
    # A second's worth of the 100 prompt tokens that are computed per second.
    assert (found.to_value, found.cost) == (100, CostClass.RESTART)
    assert found.forecast is not None
    assert found.forecast.high == pytest.approx(1 / 0.4 - 1)
    kept = replace(full, ttft=late(0.01))
    assert isinstance(considered(RungName.ADMISSION, situation(full=kept, settings=settings)), str)
    assert isinstance(considered(RungName.ADMISSION, situation(full=full)), str)


@pytest.mark.parametrize(
    ("kind", "ttft", "tpot", "to"),
    [
        (DiagnosisKind.HEALTHY, 0.0, 0.6, 409),
        (DiagnosisKind.TOKEN_BUDGET, 0.6, 0.0, 640),
        (DiagnosisKind.HEALTHY, 0.6, 0.0, None),
        (DiagnosisKind.TOKEN_BUDGET, 0.6, 0.6, None),
        (DiagnosisKind.TOKEN_BUDGET, 0.0, 0.0, None),
    ],
)
def test_the_token_budget_follows_the_target_that_is_missed(
    kind: DiagnosisKind, ttft: float, tpot: float, to: int | None
) -> None:
    settings = SETTINGS.model_copy(update={"slo": Slo(ttft_ms=1000, tpot_ms=50)})
    full = window(running=8, usage=0.5, ttft=late(ttft), tpot=late(tpot, 0.05))
    found = considered(RungName.ACTIVE_CAP, situation(kind, full, settings))
    assert (found.to_value if isinstance(found, Candidate) else None) == to


def test_the_watermark_rises_step_by_step_and_only_where_work_is_lost() -> None:
    full = window(running=8, waiting=20, usage=0.97, preemptions=10, prompt_tokens=5000)
    for watermark, to in ((0.0, 2), (0.02, 5), (0.05, None)):
        seen = situation(full=full, states=(runtime(watermark=watermark),))
        found = considered(RungName.WATERMARK, seen)
        assert (found.to_value if isinstance(found, Candidate) else None) == to
    calm = replace(full, preemptions=Known(0.0, NOW))
    assert isinstance(considered(RungName.WATERMARK, situation(full=calm)), str)
    settings = SETTINGS.model_copy(update={"slo": Slo(ttft_ms=1000)})
    seen = situation(full=replace(full, ttft=late(0.3)), settings=settings)
    assert "they are late" in str(considered(RungName.WATERMARK, seen))


def test_capacity_grows_by_sizes_that_are_captured() -> None:
    full = window(running=64, waiting=200, usage=0.3, finished=200)
    found = candidate(RungName.CAPACITY, situation(DiagnosisKind.SEQUENCE_CAP, full, cap=64))
    assert (found.knob, found.from_value, found.to_value) == (Knob.MAX_NUM_SEQS, 64, 80)
    below = situation(DiagnosisKind.SEQUENCE_CAP, full, cap=32)
    assert "the live cap comes first" in str(considered(RungName.CAPACITY, below))
    fuller = situation(
        DiagnosisKind.SEQUENCE_CAP, window(running=64, waiting=9, usage=0.84, finished=99), cap=64
    )
    assert "would not fit" in str(considered(RungName.CAPACITY, fuller))


def test_capture_sizes_are_those_of_vllm() -> None:
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    for wanted in range(1, 513):
        assert next_capture_size(wanted) == min(size for size in sizes if size >= wanted)


def test_the_hosts_memory_is_for_reuse_that_is_lost() -> None:
    assert isinstance(considered(RungName.OFFLOAD, situation()), str)
    unknown = situation(DiagnosisKind.PREFIX_THRASH, window(running=8, prefix=(5000, 500)))
    assert "is not known" in str(considered(RungName.OFFLOAD, unknown))


def test_sizes_of_formats_are_those_of_their_records() -> None:
    assert token_bits("bfloat16") == token_bits("auto") == 16
    assert token_bits("auto", "float32") == 32
    assert token_bits("fp8_e4m3") == 8
    assert token_bits("k8v4") == pytest.approx(6.125)
    assert token_bits("nuq3") is None


def test_the_first_rung_that_is_worth_it_is_taken_and_the_others_are_explained() -> None:
    found = climb(situation())
    assert found.step is not None
    assert found.step.rung.name is RungName.EIGHT_BIT_CACHE
    names = [each.rung for each in found.passed_over]
    order = list(RungName)
    assert names == order[: order.index(RungName.EIGHT_BIT_CACHE)]
    assert all(each.why for each in found.passed_over)


def test_where_nothing_binds_every_rung_says_why_not() -> None:
    found = climb(situation(DiagnosisKind.HEALTHY, window(running=4, waiting=0, usage=0.3)))
    assert (found.step, found.advice) == (None, None)
    assert [each.rung for each in found.passed_over] == list(RungName)


def test_a_gain_that_is_not_likely_enough_is_no_reason() -> None:
    # One waits beside eight: room for more would be used by one alone.
    full = window(running=8, waiting=1, usage=0.95)
    found = climb(situation(full=full))
    assert found.step is None
    whys = {each.rung: each.why for each in found.passed_over}
    assert "is not likely to be the 15%" in whys[RungName.EIGHT_BIT_CACHE]
    rules = SETTINGS.model_copy(update={"ladder": LadderRules(strategy=Strategy.RULES)})
    step = climb(situation(full=full, settings=rules)).step
    assert step is not None
    assert step.rung.name is RungName.EIGHT_BIT_CACHE


def test_what_nobody_here_can_do_is_recommended_and_the_ladder_goes_on() -> None:
    seen = situation(states=(runtime(prefix_caching=False),))
    found = climb(seen)
    assert found.advice is not None
    assert found.advice.rung.name is RungName.PREFIX_CACHING
    assert found.step is not None
    assert found.step.rung.name is RungName.EIGHT_BIT_CACHE
    whys = {each.rung: each.why for each in found.passed_over}
    assert "recommended" in whys[RungName.PREFIX_CACHING]


def test_a_knob_that_is_not_allowed_is_passed_over() -> None:
    settings = SETTINGS.model_copy(update={"abilities": {}})
    found = climb(situation(settings=settings))
    assert (found.step, found.advice) == (None, None)
    assert "not among the allowed knobs" in found.passed_over[-1].why


def test_a_restart_gives_way_to_a_live_change_that_has_passed_and_gains_as_much() -> None:
    full = window(running=8, waiting=20, usage=0.97, preemptions=30, prompt_tokens=5000)
    passed = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="", judged=Judged.PASSED,
        at=NOW - 9, until=NOW + 99,
    )  # fmt: skip
    before = climb(situation(full=full))
    assert before.advice is not None
    assert before.advice.rung.name is RungName.WATERMARK
    after = climb(situation(full=full, state=TunerState(tried=(passed,))))
    assert after.advice is None
    whys = {each.rung: each.why for each in after.passed_over}
    assert "fp8_e4m3 needs no restart, has passed" in whys[RungName.WATERMARK]


def test_the_case_tells_what_a_start_takes() -> None:
    seen = situation(states=(runtime(prefix_caching=False, live=["bfloat16"]),))
    assert climb(seen).advice is not None
    never = climb(seen).advice
    assert never is not None
    assert never.case(seen).start_seconds is None
    seen = replace(seen, engines=(replace(seen.engines[0], away_seconds=75.0),))
    again = climb(seen).advice
    assert again is not None
    assert again.case(seen).start_seconds == 75.0
    live = climb(situation()).step
    assert live is not None
    assert live.case(situation()).start_seconds == 0.0


def test_lengths_of_prompts_do_not_matter_to_the_ladder_when_unknown() -> None:
    full = window(running=8, waiting=20, usage=0.95, prompts=lengths(200))
    assert "mean prompt of 200 tokens" in candidate(RungName.EVICTION, situation(full=full)).message


def test_the_hosts_memory_is_recommended_where_reuse_is_lost() -> None:
    load = Fingerprint(rate=1, prompt_tokens=100, answer_tokens=100, hit_ratio=0.6)
    here = Regime(name="load-1", load=load, windows=9, seen_at=NOW)
    state = TunerState(loads=Loads(regimes=(here,), current="load-1"))
    full = window(running=8, usage=0.9, prefix=(5000, 500), tokens=5000)
    found = candidate(RungName.OFFLOAD, situation(DiagnosisKind.PREFIX_THRASH, full, state=state))
    assert found.advice
    assert found.forecast is not None
    # Half of the prompt tokens, which are half of all tokens.
    assert found.forecast.high == pytest.approx(0.25 / 0.75)
