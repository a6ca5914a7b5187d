"""What holds a change back that is due, and what a change that was made is held to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvserving_tuner.committing import refused, remember_request, remember_step
from kvserving_tuner.decision import (
    Case,
    Change,
    CostClass,
    Forecast,
    Knob,
    Reason,
    Risk,
    RungName,
)
from kvserving_tuner.guardrails import cooldown_seconds, held_back
from kvserving_tuner.ladder.climb import LADDER, Step
from kvserving_tuner.ladder.rung import Candidate
from kvserving_tuner.proposal import Proposal
from kvserving_tuner.remembered import Account, Judged, Sample, Tried, Watch
from kvserving_tuner.rules import DAY_SECONDS, Guardrails, MaintenanceWindow, Weekday
from kvserving_tuner.samples import charged
from kvserving_tuner.settings import Mode, Slo, TuningSettings
from kvserving_tuner.state import TunerState
from kvserving_tuner.verdicts import with_verdict
from kvserving_tuner.watching import Finding, look

NOW = 1_789_997_600.0
"""A Monday, 13:33 UTC."""
AUTO = TuningSettings(mode=Mode.AUTO)
TO_FP8 = Change(Knob.KV_CACHE_DTYPE, "bfloat16", "fp8_e4m3")


def sample(
    goodput: float = 1.0, waiting: float = 5.0, tokens: float = 100.0, **more: float
) -> Sample:
    return Sample(
        at=more.get("at", NOW), goodput=goodput, missed=more.get("missed"),
        tokens_per_second=tokens, waiting=waiting, running=8, preemptions_per_second=0,
        finished=60,
    )  # fmt: skip


SAMPLES = tuple(sample() for _ in range(5))
READY = TunerState(samples=SAMPLES)


def step(knob: Knob = Knob.KV_CACHE_DTYPE, cost: CostClass = CostClass.LIVE) -> Step:
    names = {
        Knob.KV_CACHE_DTYPE: RungName.EIGHT_BIT_CACHE,
        Knob.MAX_SCHEDULED_TOKENS: RungName.ACTIVE_CAP,
    }
    rung = next(each for each in LADDER if each.name is names[knob])
    forecast = Forecast(0.5, 0.3, 0.7, "")
    return Step(rung, Candidate(knob, "a", "b", cost, Reason.KV_BINDS, "due", forecast))


def reason(
    state: TunerState, guardrails: Guardrails | None = None, **more: object
) -> Reason | None:
    settings = AUTO.model_copy(update={"guardrails": guardrails or Guardrails(), **more})
    held = held_back(settings, state, step(), NOW)
    return None if held is None else held.reason


def test_nothing_holds_back_what_is_due_after_a_quiet_time() -> None:
    assert reason(READY) is None
    assert reason(READY.model_copy(update={"last_step_at": NOW - 601})) is None


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"last_change_at": NOW - 59}, Reason.COOLDOWN),
        ({"last_step_at": NOW - 599}, Reason.COOLDOWN),
        ({"last_step_at": NOW - 601, "rollbacks": 1}, Reason.COOLDOWN),
        ({"last_step_at": NOW - 1201, "rollbacks": 1}, None),
        ({"samples": SAMPLES[:4]}, Reason.WARMING_UP),
        ({"switched_at": (NOW - 1000,) * 4}, Reason.CHANGE_BUDGET_SPENT),
        ({"switched_at": (NOW - DAY_SECONDS - 1,) * 4}, None),
        ({"account": Account(requests=1000, missed=10, explored=5)}, Reason.ERROR_BUDGET_SPENT),
        ({"account": Account(requests=1000, missed=10, explored=3)}, None),
        ({"account": Account(requests=1000, missed=99, explored=0)}, None),
    ],
)
def test_each_guardrail_says_which_it_is(changes: dict[str, object], held: Reason | None) -> None:
    assert reason(READY.model_copy(update=changes)) is held


def test_a_number_of_changes_for_a_day() -> None:
    state = READY.model_copy(update={"changed_at": (NOW - 5000, NOW - 9000)})
    assert reason(state, Guardrails(changes_per_day=2)) is Reason.CHANGE_BUDGET_SPENT
    assert reason(state, Guardrails(changes_per_day=3)) is None
    assert reason(state) is None


@given(st.integers(0, 200), st.sampled_from([0.0, 60.0, 600.0]))
def test_the_cooldown_doubles_with_each_rollback_up_to_a_day(rollbacks: int, base: float) -> None:
    settings = AUTO.model_copy(
        update={"cooldowns": AUTO.cooldowns.model_copy(update={"dtype_seconds": base})}
    )
    state = TunerState(rollbacks=rollbacks)
    found = cooldown_seconds(settings, state, step())
    wanted = base if not rollbacks else max(base, 1.0) * 2.0**rollbacks
    assert found == min(wanted, DAY_SECONDS)


def test_each_kind_of_change_has_its_own_cooldown() -> None:
    state = TunerState()
    assert cooldown_seconds(AUTO, state, step(Knob.MAX_SCHEDULED_TOKENS)) == 60
    assert cooldown_seconds(AUTO, state, step()) == 600
    assert cooldown_seconds(AUTO, state, step(cost=CostClass.RESTART)) == 1800


def test_answers_are_touched_in_maintenance_windows_only() -> None:
    open_now = MaintenanceWindow(start="13:00", minutes=60)
    closed = MaintenanceWindow(start="02:00", minutes=60)
    assert reason(READY, Guardrails(windows=(closed,))) is Reason.OUTSIDE_WINDOW
    assert reason(READY, Guardrails(windows=(closed, open_now))) is None
    settings = AUTO.model_copy(update={"guardrails": Guardrails(windows=(closed,))})
    # The cap on a step's tokens touches no answer and restarts nothing.
    assert held_back(settings, READY, step(Knob.MAX_SCHEDULED_TOKENS), NOW) is None


@pytest.mark.parametrize(
    ("start", "minutes", "days", "is_open"),
    [
        ("13:00", 60, tuple(Weekday), True),
        ("13:00", 33, tuple(Weekday), False),
        ("13:00", 60, (Weekday.MONDAY,), True),
        ("13:00", 60, (Weekday.TUESDAY,), False),
        ("23:00", 15 * 60, (Weekday.SUNDAY,), True),
        ("23:00", 14 * 60, (Weekday.SUNDAY,), False),
        ("14:00", 10_080, (Weekday.MONDAY,), True),
    ],
)
def test_windows_begin_on_a_day_and_may_last_beyond_it(
    start: str, minutes: int, days: tuple[Weekday, ...], is_open: bool
) -> None:
    assert MaintenanceWindow(start=start, minutes=minutes, days=days).is_open(NOW) is is_open


@pytest.mark.parametrize("start", ["24:00", "1:00", "12:60", "noon", ""])
def test_a_time_that_is_none_is_refused(start: str) -> None:
    with pytest.raises(ValidationError, match="expected HH:MM"):
        MaintenanceWindow(start=start, minutes=1)


def watch(before: list[Sample], after: list[Sample], at: float = NOW) -> Watch:
    return Watch(
        rung=RungName.EIGHT_BIT_CACHE, knob=Knob.KV_CACHE_DTYPE, from_value="bfloat16",
        to_value="fp8_e4m3", at=at, regime="load-1", before=tuple(before), after=tuple(after),
    )  # fmt: skip


TARGETS = Slo(ttft_ms=1000)


@pytest.mark.parametrize(
    ("before", "after", "slo", "finding"),
    [
        # As much as before, and more.
        ([sample()] * 5, [sample()] * 5, Slo(), Finding.PASSED),
        ([sample()] * 5, [sample(tokens=150)] * 5, Slo(), Finding.PASSED),
        # Fewer tokens while requests wait.
        ([sample()] * 5, [sample(tokens=90)] * 5, Slo(), Finding.HARMFUL),
        ([sample()] * 5, [sample(tokens=96)] * 5, Slo(), Finding.PASSED),
        # There was less to do.
        ([sample()] * 5, [sample(tokens=50, waiting=0)] * 5, Slo(), Finding.PASSED),
        # Noise: one window of five was slow.
        (
            [sample(tokens=t) for t in (80, 100, 120, 90, 110)],
            [sample(tokens=t) for t in (95, 100, 110, 75, 90)],
            Slo(), Finding.PASSED,
        ),
        # Collapse needs no fifth window.
        ([sample()] * 5, [sample(tokens=40)] * 2, Slo(), Finding.HARMFUL),
        ([sample()] * 5, [sample(tokens=80)] * 2, Slo(), Finding.GOES_ON),
        # Targets: goodput counts, and more of it makes up for fewer tokens.
        ([sample(missed=0.0)] * 5, [sample(goodput=0.8, missed=0.0)] * 5, TARGETS, Finding.HARMFUL),
        (
            [sample(missed=0.0)] * 5, [sample(goodput=1.3, tokens=80, missed=0.0)] * 5, TARGETS,
            Finding.PASSED,
        ),
        ([sample(missed=0.0)] * 5, [sample(missed=0.2, waiting=0)] * 5, TARGETS, Finding.HARMFUL),
        # Nothing was within the targets before either: tokens tell.
        (
            [sample(goodput=0, missed=1.0)] * 5, [sample(goodput=0, missed=1.0, tokens=60)] * 5,
            TARGETS, Finding.HARMFUL,
        ),
    ],
)  # fmt: skip
def test_harm_is_a_loss_beyond_noise_while_there_is_something_to_serve(
    before: list[Sample], after: list[Sample], slo: Slo, finding: Finding
) -> None:
    assert look(watch(before, after), Guardrails(), slo, NOW + 600).finding is finding


@pytest.mark.parametrize(
    ("after", "finding"),
    [
        (sample(missed=0.4), Finding.HARMFUL),
        (sample(missed=0.2), Finding.PASSED),
        (sample(missed=0.4, goodput=1.2), Finding.PASSED),
        (sample(missed=0.5), Finding.HARMFUL),
    ],
)
def test_a_step_of_the_token_budget_has_to_gain_something(after: Sample, finding: Finding) -> None:
    seen = watch([sample(missed=0.4)] * 5, [after] * 5)
    seen = seen.model_copy(
        update={"knob": Knob.MAX_SCHEDULED_TOKENS, "from_value": 512, "to_value": 409}
    )
    assert look(seen, Guardrails(), TARGETS, NOW + 600).finding is finding


def test_what_cannot_be_judged_in_time_is_not_kept() -> None:
    rules = Guardrails()
    assert look(watch([sample()] * 5, []), rules, Slo(), NOW + 1800).finding is Finding.GOES_ON
    assert look(watch([sample()] * 5, []), rules, Slo(), NOW + 1801).finding is Finding.NOT_KNOWN


def changed(state: TunerState, change: Change, reason: Reason, now: float = NOW) -> TunerState:
    case = Case(RungName.EIGHT_BIT_CACHE, Risk.QUALITY, None, 0.0)
    return remember_step(AUTO, state, Proposal(change, reason, "why", case=case), now)


def test_a_change_of_the_ladder_is_watched_and_counted() -> None:
    state = changed(READY, TO_FP8, Reason.KV_BINDS)
    assert state.watch is not None
    assert (state.watch.from_value, state.watch.to_value) == ("bfloat16", "fp8_e4m3")
    assert state.watch.before == SAMPLES
    assert (state.changed_at, state.switched_at, state.samples) == ((NOW,), (NOW,), ())
    assert state.set_kv_cache_dtype == "fp8_e4m3"


def test_a_rollback_is_tabu_under_its_load_and_doubles_the_cooldown() -> None:
    state = changed(READY, TO_FP8, Reason.KV_BINDS)
    back = Change(Knob.KV_CACHE_DTYPE, "fp8_e4m3", "bfloat16")
    state = changed(state, back, Reason.ROLLED_BACK, NOW + 600)
    assert (state.watch, state.rollbacks, state.last_step_at) == (None, 1, NOW + 600)
    (tried,) = state.tried
    assert (tried.value, tried.judged) == ("fp8_e4m3", Judged.ROLLED_BACK)
    assert tried.until == NOW + 600 + 7 * DAY_SECONDS
    # Going back spends no budget.
    assert len(state.switched_at) == 1


def test_a_load_that_changes_judges_nothing() -> None:
    state = changed(READY, TO_FP8, Reason.KV_BINDS)
    back = Change(Knob.KV_CACHE_DTYPE, "fp8_e4m3", "bfloat16")
    state = changed(state, back, Reason.LOAD_CHANGED, NOW + 600)
    assert (state.watch, state.rollbacks, state.tried) == (None, 0, ())


def test_storms_cost_no_budget_and_raises_do() -> None:
    lower = Proposal(Change(Knob.MAX_ACTIVE_SEQS, 64, 8), Reason.PREEMPTION_STORM, "")
    higher = Proposal(Change(Knob.MAX_ACTIVE_SEQS, 8, 10), Reason.SEQUENCES_WAIT_KV_FREE, "")
    assert remember_step(AUTO, READY, lower, NOW).changed_at == ()
    assert remember_step(AUTO, READY, higher, NOW).changed_at == (NOW,)


def test_a_pass_ends_the_doubling() -> None:
    tried = Tried(
        knob=Knob.KV_CACHE_DTYPE, value="fp8_e4m3", regime="load-1", judged=Judged.PASSED, at=NOW,
        until=NOW + 9,
    )  # fmt: skip
    state = with_verdict(READY.model_copy(update={"rollbacks": 3}), tried)
    assert (state.rollbacks, state.tried) == (0, (tried,))


def test_what_was_asked_for_is_awaited_until_its_verdict() -> None:
    state = remember_request(AUTO, READY, Proposal(TO_FP8, Reason.KV_BINDS, ""), NOW)
    assert state.asked is not None
    assert state.asked.until == NOW + DAY_SECONDS
    state = refused(AUTO, state, Knob.KV_CACHE_DTYPE, "fp8_e4m3", "worse answers", NOW + 60)
    assert state.asked is None
    assert [(each.value, each.judged) for each in state.tried] == [("fp8_e4m3", Judged.FAILED)]


def test_verdicts_replace_those_before_and_are_bounded() -> None:
    state = TunerState()
    for number in range(200):
        tried = Tried(
            knob=Knob.KV_CACHE_DTYPE, value=f"f{number % 150}", regime="", judged=Judged.FAILED,
            at=NOW + number, until=NOW + 9999,
        )  # fmt: skip
        state = with_verdict(state, tried)
    assert len(state.tried) == 64
    assert len({each.value for each in state.tried}) == 64


def test_the_cost_of_trying_is_what_is_missed_beyond_before() -> None:
    seen = charged(Account(), sample(missed=0.1), None, NOW)
    assert (seen.requests, seen.explored) == (60, 0)
    assert seen.missed == pytest.approx(6)
    watched = watch([sample(missed=0.1)] * 5, [])
    seen = charged(seen, sample(missed=0.4), watched, NOW)
    assert seen.explored == pytest.approx(0.3 * 60)
    tomorrow = charged(seen, sample(missed=0.0), None, NOW + DAY_SECONDS)
    assert (tomorrow.requests, tomorrow.explored) == (60, 0)


def test_without_targets_trying_costs_nothing_of_them() -> None:
    assert charged(Account(), sample(), watch([sample()], []), NOW).explored == 0


def test_what_an_engine_refuses_needs_no_pause() -> None:
    state = refused(AUTO, READY, Knob.KV_CACHE_DTYPE, "fp8_e4m3", "not offered", NOW)
    assert (state.rollbacks, state.last_step_at) == (0, None)
