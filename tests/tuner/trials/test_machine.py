"""The trial's states: what moves them on, and what holds whatever is seen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_tuner.judge import Cause, HardStop, Split
from kvserving_tuner.trials.alternation import Alternation
from kvserving_tuner.trials.arm import Arm
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.likelihoods import next_prompts, scored
from kvserving_tuner.trials.machine import MOST_SECONDS, advance
from kvserving_tuner.trials.plan import GOODPUT_GAIN, Gain, Guard, OnStall, Plan
from kvserving_tuner.trials.progress import (
    ACTIVE,
    SCREENED,
    SERVED,
    End,
    Progress,
    State,
    Verdict,
)
from kvserving_tuner.trials.waiting import NO_ANSWER

PODS = ("a", "b", "c", "d")
PLAN = Plan(steps=(25, 50), min_requests=10, min_seconds=60, min_samples=5, stall_seconds=300)
GOOD, BAD = [0.0005] * 80, [0.4] * 80


def facts(now: float = 1000.0, **more: Any) -> Facts:
    known: dict[str, Any] = {
        "ready": PODS, "changed": frozenset(), "settled": True, "prompts": 400, **more
    }  # fmt: skip
    return Facts(now, **known)


class Fleet:
    """Pods that take what they are to have at once, and users that send requests."""

    def __init__(self, plan: Plan, pods: Sequence[str] = PODS) -> None:
        self.plan, self.pods, self.now = plan, tuple(pods), 1000.0
        self.progress = Progress()
        self.seen = [State.PENDING]

    def look(self, seconds: float = 5.0, finished: float = 5.0, **more: Any) -> Progress:
        """One look, with what a test says is different from a fleet in order."""
        self.now += seconds
        promoting = self.progress.state is State.PROMOTING
        changed = frozenset(self.pods if promoting else self.progress.candidates)
        found = facts(
            self.now, **{"ready": self.pods, "changed": changed, "finished": finished, **more}
        )
        self.progress = advance(self.plan, self.progress, found)
        if self.seen[-1] is not self.progress.state:
            self.seen.append(self.progress.state)
        return self.progress

    def pods_on_trial(self) -> tuple[str, ...]:
        """Pods that are to have the change."""
        return self.progress.candidates

    def turn(self, load: float) -> None:
        """End a block of an engine that takes turns with itself."""
        alternation = self.progress.alternation
        assert alternation is not None
        alternation, _ = alternation.measured(Arm(load=load))
        self.progress = self.progress.model_copy(update={"alternation": alternation})

    def score(self, kind: str, rises: Sequence[float]) -> None:
        """Give the trial evidence on quality."""
        self.progress = scored(self.plan, self.progress, kind, "Medium", rises)

    def until(self, reached: Callable[[Progress], bool], looks: int = 100) -> Progress:
        """Look until something is reached."""
        for _ in range(looks):
            if reached(self.progress):
                return self.progress
            self.look()
        raise AssertionError(f"not reached: {self.progress.state}, {self.progress.note}")


def in_state(state: State) -> Callable[[Progress], bool]:
    return lambda progress: progress.state is state


def running(plan: Plan = PLAN, pods: Sequence[str] = PODS) -> Fleet:
    """A fleet whose trial has been screened and serves."""
    fleet = Fleet(plan, pods)
    fleet.until(in_state(State.SCREENING))
    fleet.score(SCREENED, GOOD[:10])
    fleet.until(in_state(State.RUNNING))
    return fleet


def test_a_change_that_keeps_quality_is_promoted_step_by_step() -> None:
    fleet = running()
    assert fleet.pods_on_trial() == ("a",)
    fleet.score(SERVED, GOOD)
    fleet.until(lambda progress: progress.step == 1)
    assert fleet.pods_on_trial() == ("a", "b")
    progress = fleet.until(in_state(State.FINISHED))
    assert progress.conclusion is not None
    assert progress.conclusion.verdict is Verdict.PROMOTED
    assert fleet.seen == [
        State.PENDING, State.SCREENING, State.RUNNING, State.PROMOTING, State.FINISHED
    ]  # fmt: skip


def test_screening_ends_a_bad_change_before_any_pod_has_it() -> None:
    fleet = Fleet(PLAN)
    fleet.until(in_state(State.SCREENING))
    fleet.score(SCREENED, BAD[:5])
    # Worse than the bound in the mean, though not yet shown: no pod takes it.
    assert fleet.look().state is State.SCREENING
    fleet.score(SCREENED, BAD)
    progress = fleet.until(in_state(State.FINISHED))
    assert progress.conclusion is not None
    assert (progress.conclusion.verdict, progress.conclusion.to_fallback) == (
        Verdict.ROLLED_BACK,
        False,
    )
    assert State.RUNNING not in fleet.seen


def test_a_fall_in_service_goes_to_the_fallback() -> None:
    fleet = running()
    fleet.score(SERVED, BAD)
    assert fleet.look().state is State.ROLLING_BACK
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.to_fallback
    assert fleet.progress.candidates == ()
    assert fleet.look(settled=False).state is State.ROLLING_BACK
    assert fleet.look().state is State.FINISHED


@pytest.mark.parametrize(
    "seen",
    [
        {"blocked": "metrics are stale"},
        {"changed": frozenset()},
        {"finished": 0.0},
        {"unanswered_seconds": 60.0},
        {"steady": False},
    ],
    ids=lambda seen: next(iter(seen)),
)
@pytest.mark.parametrize("pods", [PODS, ("only",)])
def test_a_fall_in_service_waits_for_nothing(seen: dict[str, Any], pods: Sequence[str]) -> None:
    fleet = running(pods=pods)
    assert fleet.look(**seen).state is State.RUNNING
    fleet.score(SERVED, BAD)
    assert fleet.look(**seen).state is State.ROLLING_BACK
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.to_fallback


def test_a_guard_rolls_back_to_what_was_in_force() -> None:
    fleet = running(PLAN.model_copy(update={"guards": {Guard.TTFT: 10}}))
    criterion = fleet.plan.guard(Guard.TTFT)
    fleet.progress = fleet.progress.compared(criterion, [0.5] * 40)
    assert fleet.look().conclusion is not None
    assert fleet.progress.conclusion is not None
    assert not fleet.progress.conclusion.to_fallback
    assert "TTFT" in fleet.progress.conclusion.message


@pytest.mark.parametrize("name", ["TTFTTarget", "Errors"])
def test_a_missed_target_and_failed_requests_are_violations_too(name: str) -> None:
    plan = PLAN.model_copy(update={"guards": {Guard.TTFT: 10.0, Guard.ERRORS: 0.1}})
    fleet = running(plan)
    criterion = plan.of_blocks(name)
    assert criterion is not None
    fleet.progress = fleet.progress.compared(criterion, [criterion.high] * 5)
    assert fleet.look().state is State.RUNNING
    fleet.progress = fleet.progress.compared(criterion, [criterion.high] * 15)
    fleet.look()
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.reason is Cause.GUARD_VIOLATED
    assert name in fleet.progress.conclusion.message
    assert not fleet.progress.conclusion.to_fallback


WRONG, RIGHT = Split(500, 500, 0.05), Split(50, 950, 0.05)


def test_a_share_that_is_not_the_promised_one_holds_the_trial() -> None:
    fleet = running(PLAN.model_copy(update={"gain": Gain.FASTER, "stall_seconds": 10_000}))
    fleet.score(SERVED, GOOD)
    gain = fleet.plan.goodput()
    assert gain is not None
    fleet.progress = fleet.progress.compared(gain, [-0.4] * 100)
    before = fleet.progress.step_seconds
    for _ in range(30):
        assert fleet.look(30, split=WRONG).state is State.RUNNING
    assert fleet.progress.note.startswith("holds: traffic is not what was promised")
    assert "50 % of the requests instead of 5 %" in fleet.progress.note
    assert (fleet.progress.step, fleet.progress.step_seconds) == (0, before)
    # What it seemed to gain is not believed, and quality is.
    assert GOODPUT_GAIN not in fleet.progress.evidence
    assert fleet.progress.quality(SERVED)
    fleet.look(30, split=RIGHT)
    assert not fleet.progress.note.startswith("holds")
    assert fleet.progress.stalled_seconds == 0


@pytest.mark.parametrize(
    ("on_stall", "state"), [(OnStall.HOLD, State.RUNNING), (OnStall.ROLLBACK, State.FINISHED)]
)
def test_for_how_long_it_holds_is_up_to_the_policy(on_stall: OnStall, state: State) -> None:
    fleet = running(PLAN.model_copy(update={"on_stall": on_stall, "stall_seconds": 100}))
    for _ in range(5):
        fleet.look(30, split=WRONG)
    assert fleet.progress.state is state
    if fleet.progress.conclusion is not None:
        assert fleet.progress.conclusion.verdict is Verdict.INCONCLUSIVE
        assert fleet.progress.conclusion.reason is End.STALLED


def test_a_wrong_share_excuses_no_drop_in_quality() -> None:
    fleet = running()
    fleet.score(SERVED, BAD)
    assert fleet.look(split=WRONG).state is State.ROLLING_BACK


@pytest.mark.parametrize("seconds", [50.0, 3600.0])
def test_a_step_needs_its_requests_and_its_time(seconds: float) -> None:
    fleet = running()
    fleet.score(SERVED, GOOD)
    fleet.look(seconds, finished=9)
    assert fleet.progress.step == 0
    # Time that nobody looked at does not count as a whole.
    assert fleet.progress.step_seconds <= MOST_SECONDS
    fleet.look(1, finished=1)
    assert fleet.progress.step == int(seconds >= MOST_SECONDS)


def test_clocks_stand_while_a_person_pauses_and_while_pods_switch() -> None:
    fleet = running(PLAN.model_copy(update={"min_requests": 1000}))
    fleet.look(30)
    before = fleet.progress.step_seconds
    for _ in range(5):
        fleet.look(30, wish=Wish.PAUSE)
    fleet.look(30, changed=frozenset())
    assert fleet.progress.step_seconds == before
    assert fleet.progress.stalled_seconds == 0
    fleet.look(30)
    assert fleet.progress.step_seconds == before + 30


def test_one_engine_is_switched_in_place_in_a_single_step() -> None:
    fleet = running(pods=("only",))
    assert fleet.progress.candidates == ("only",)
    fleet.score(SERVED, GOOD)
    fleet.until(in_state(State.PROMOTING))
    assert fleet.progress.step == 0


GUARDED = PLAN.model_copy(update={"guards": {Guard.TTFT: 10}})


def test_one_engine_takes_turns_with_itself_where_guards_want_a_comparison() -> None:
    fleet = running(GUARDED, pods=("only",))
    assert fleet.progress.alternation == Alternation()
    assert fleet.progress.candidates == ("only",)
    fleet.look(30)
    seconds = fleet.progress.step_seconds
    fleet.turn(0.2)
    # Without the change its clock stands, and nothing is scored.
    assert fleet.look(30, finished=0).candidates == ()
    assert fleet.progress.step_seconds == seconds
    assert next_prompts(GUARDED, fleet.progress, facts(ready=("only",))) is None
    fleet.turn(0.2)
    # The next pair begins as the last one ended.
    assert fleet.look(30, finished=0).candidates == ()
    fleet.turn(0.2)
    assert fleet.look(30).candidates == ("only",)
    fleet.score(SERVED, GOOD)
    fleet.until(in_state(State.PROMOTING))


def test_turns_that_show_a_cost_roll_back_in_either_arm() -> None:
    fleet = running(GUARDED, pods=("only",))
    fleet.turn(0.2)
    fleet.look()
    fleet.progress = fleet.progress.compared(GUARDED.guard(Guard.TTFT), [0.5] * 40)
    assert fleet.look(blocked="metrics are stale").state is State.RUNNING
    assert fleet.progress.held == "metrics are stale"
    assert fleet.look().state is State.ROLLING_BACK
    assert "TTFT" in fleet.progress.conclusion.message  # type: ignore[union-attr]


@pytest.mark.parametrize("with_change", [True, False])
def test_turns_stall_in_either_arm(with_change: bool) -> None:
    fleet = running(GUARDED.model_copy(update={"on_stall": OnStall.ROLLBACK}), pods=("only",))
    if not with_change:
        fleet.turn(0.2)
    for _ in range(int(PLAN.stall_seconds // 30)):
        assert fleet.progress.conclusion is None
        fleet.look(30, blocked="metrics are stale")
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.reason is End.STALLED
    assert "metrics are stale" in fleet.progress.conclusion.message


def test_a_second_engine_ends_the_turns() -> None:
    fleet = running(GUARDED, pods=("only",))
    fleet.look(ready=("only", "other"), changed=frozenset({"only"}))
    assert fleet.progress.alternation is None
    assert fleet.progress.candidates == ("only",)


def test_what_passed_stays_in_force_while_a_person_decides() -> None:
    fleet = running(GUARDED.model_copy(update={"manual": True}), pods=("only",))
    fleet.score(SERVED, GOOD)
    fleet.until(in_state(State.APPROVAL))
    assert fleet.progress.alternation is None
    assert fleet.look(60).candidates == ("only",)


def test_one_engine_is_left_alone_where_the_policy_says_so() -> None:
    fleet = Fleet(PLAN.model_copy(update={"single_replica": False}), ("only",))
    fleet.look()
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.reason is End.SINGLE_REPLICA


def test_what_engines_do_not_take_live_ends_with_their_reason() -> None:
    fleet = Fleet(PLAN)
    fleet.look(offered=False, unoffered="int4: block size: got 16")
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.reason is End.NOT_OFFERED
    assert fleet.progress.conclusion.message.endswith(": int4: block size: got 16")


def test_a_manual_policy_waits_for_a_person_and_goes_on_watching() -> None:
    plan = PLAN.model_copy(update={"manual": True})
    fleet = running(plan)
    fleet.score(SERVED, GOOD)
    fleet.until(in_state(State.APPROVAL))
    for _ in range(100):
        assert fleet.look(60, finished=0).state is State.APPROVAL
    bad = fleet.progress
    assert fleet.look(wish=Wish.PROMOTE).state is State.PROMOTING
    fleet.progress = bad
    fleet.score(SERVED, BAD * 10)
    assert fleet.look().state is State.ROLLING_BACK


@pytest.mark.parametrize(("on_stall", "ends"), [(OnStall.HOLD, False), (OnStall.ROLLBACK, True)])
@pytest.mark.parametrize("why", [{"blocked": "metrics are stale"}, {"finished": 0.0}])
def test_without_evidence_the_policy_decides(
    on_stall: OnStall, ends: bool, why: dict[str, Any]
) -> None:
    fleet = running(PLAN.model_copy(update={"on_stall": on_stall}))
    for _ in range(int(PLAN.stall_seconds // 30) - 1):
        assert fleet.look(30, **{"finished": 0.0, **why}).state is State.RUNNING
    assert fleet.look(30, **{"finished": 0.0, **why}).conclusion is None or ends
    assert (fleet.progress.state is State.ROLLING_BACK) == ends
    if ends:
        assert fleet.progress.conclusion is not None
        assert fleet.progress.conclusion.verdict is Verdict.INCONCLUSIVE
    else:
        assert "no usable evidence" in fleet.progress.note


@pytest.mark.parametrize(("on_stall", "ends"), [(OnStall.HOLD, False), (OnStall.ROLLBACK, True)])
@pytest.mark.parametrize("begun", [State.SCREENING, State.RUNNING])
def test_a_probe_without_an_answer_is_no_evidence_whatever_users_do(
    on_stall: OnStall, ends: bool, begun: State
) -> None:
    fleet = Fleet(PLAN.model_copy(update={"on_stall": on_stall}))
    fleet.until(in_state(State.SCREENING))
    if begun is State.RUNNING:
        fleet.score(SCREENED, GOOD[:10])
        fleet.until(in_state(State.RUNNING))
    fleet.look(5, unanswered_seconds=5)
    assert not fleet.progress.held
    fleet.look(5, unanswered_seconds=PLAN.stall_seconds - 1)
    assert fleet.progress.held == NO_ANSWER
    assert NO_ANSWER in fleet.progress.note
    fleet.look(5, unanswered_seconds=PLAN.stall_seconds)
    assert "no usable evidence" in (fleet.progress.note or str(fleet.progress.conclusion))
    assert (fleet.progress.state is State.ROLLING_BACK) == ends
    if not ends:
        assert not fleet.look(5).held


@pytest.mark.parametrize("step", [0, 1])
def test_what_holds_a_trial_holds_its_steps_its_clock_and_its_end(step: int) -> None:
    fleet = running()
    fleet.score(SERVED, GOOD)
    fleet.until(lambda progress: progress.step == step)
    before = fleet.progress
    for _ in range(20):
        fleet.look(30, finished=50, blocked="metrics are stale")
    assert fleet.progress.state is State.RUNNING
    assert (fleet.progress.step, fleet.progress.step_seconds) == (step, before.step_seconds)
    fleet.until(in_state(State.PROMOTING))


def test_what_holds_a_trial_is_the_same_news_from_look_to_look() -> None:
    fleet = running()
    seen = {fleet.look(blocked=f"newest sample is {age} s old").held for age in (30, 35, 40)}
    assert seen == {"newest sample is a while old"}
    assert "40 s old" in fleet.progress.note


@pytest.mark.parametrize("screened", [True, False])
def test_no_pod_takes_a_change_while_nobody_could_see_what_it_does(screened: bool) -> None:
    fleet = Fleet(PLAN.model_copy(update={"screened": screened}))
    for _ in range(5):
        fleet.look(blocked="metrics are stale")
        fleet.score(SCREENED, GOOD[:10])
    assert not fleet.progress.candidates
    assert fleet.progress.held == "metrics are stale"
    assert fleet.progress.state in (State.PENDING, State.SCREENING)
    fleet.until(in_state(State.RUNNING))
    assert not fleet.progress.held


def test_users_are_told_what_to_expect_before_a_pod_takes_the_change() -> None:
    fleet = Fleet(PLAN, ("only",))
    fleet.until(in_state(State.SCREENING))
    assert "then the only engine takes it" in fleet.look().note
    fleet.score(SCREENED, GOOD[:10])
    fleet.until(in_state(State.RUNNING))
    assert "the only engine takes it" in fleet.progress.note
    several = running()
    assert "1 of 4 engines take it" in several.progress.note


@pytest.mark.parametrize(
    ("seen", "verdict", "reason"),
    [
        ({"superseded": "spec was edited"}, Verdict.VOID, "Superseded"),
        ({"wish": Wish.ROLL_BACK}, Verdict.ROLLED_BACK, "AskedFor"),
        ({"refused": "out of memory"}, Verdict.FAILED, "SettingsRefused"),
        ({"hard_stop": HardStop.CRASHED}, Verdict.ROLLED_BACK, "HardStop"),
    ],
)
@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_what_comes_from_outside_ends_a_trial_in_any_state(
    state: State, seen: dict[str, Any], verdict: Verdict, reason: str
) -> None:
    before = Progress(state=state, candidates=("a",))
    after = advance(PLAN, before, facts(**seen))
    assert after.state is State.ROLLING_BACK
    assert after.conclusion is not None
    assert (after.conclusion.verdict, after.conclusion.reason.value) == (verdict, reason)
    assert after.candidates == ()


def test_pods_that_refuse_while_all_are_switched_send_everybody_back() -> None:
    fleet = running()
    fleet.score(SERVED, GOOD)
    fleet.until(in_state(State.PROMOTING))
    fleet.look(refused="pod c: out of memory")
    assert fleet.progress.state is State.ROLLING_BACK
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.verdict is Verdict.FAILED


def test_a_set_without_enough_prompts_is_said_to_be_too_small() -> None:
    fleet = Fleet(PLAN)
    fleet.look(prompts=3)
    fleet.score(SCREENED, GOOD[:3])
    fleet.look(prompts=3)
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.reason is End.SET_EXHAUSTED


def test_candidates_stay_and_gone_ones_are_replaced() -> None:
    fleet = running()
    fleet.look(ready=("b", "c", "d"), changed=frozenset())
    assert fleet.progress.candidates == ("b",)
    fleet.look(ready=("a", "b", "c", "d"), changed=frozenset({"b"}))
    assert fleet.progress.candidates == ("b",)


def test_prompts_are_asked_for_in_their_order_and_not_twice() -> None:
    fleet = Fleet(PLAN)
    fleet.look()
    asked = next_prompts(PLAN, fleet.progress, facts())
    assert asked is not None
    assert (asked[0], asked[1][0]) == (SCREENED, 0)
    fleet.score(SCREENED, GOOD[:7])
    asked = next_prompts(PLAN, fleet.progress, facts())
    assert asked is not None
    assert asked[1][0] == 7
    assert next_prompts(PLAN, fleet.progress, facts(wish=Wish.PAUSE)) is None
    assert next_prompts(PLAN, fleet.progress, facts(prompts=7)) is None


def gaining(gain: Gain = Gain.FASTER, **more: Any) -> Fleet:
    """A fleet in its last step, quality shown, that has to gain something."""
    fleet = running(PLAN.model_copy(update={"gain": gain, **more}))
    fleet.score(SERVED, GOOD)
    fleet.until(lambda progress: progress.step == 1)
    return fleet


def blocks(fleet: Fleet, numbers: Sequence[float]) -> None:
    criterion = fleet.plan.goodput()
    assert criterion is not None
    fleet.progress = fleet.progress.compared(criterion, numbers)


def test_a_change_that_nobody_asked_for_waits_for_its_gain() -> None:
    fleet = gaining()
    for _ in range(30):
        assert fleet.look(30).state is State.RUNNING
    assert "GoodputGain" in fleet.progress.note
    blocks(fleet, [-0.1] * 120)
    assert fleet.look().state is State.PROMOTING
    assert fleet.progress.conclusion is not None
    assert "GoodputGain: +22.22 %" in fleet.progress.conclusion.message


@pytest.mark.parametrize("numbers", [[], [0.02, -0.02] * 40])
def test_without_a_gain_it_ends_undecided_and_goes_back(numbers: list[float]) -> None:
    fleet = gaining(gain_seconds=600)
    blocks(fleet, numbers)
    progress = fleet.until(lambda progress: progress.state is not State.RUNNING, 200)
    assert progress.state is State.ROLLING_BACK
    assert progress.conclusion is not None
    assert progress.conclusion.verdict is Verdict.INCONCLUSIVE
    assert progress.conclusion.reason.value == "NoGain"
    assert "no gain has shown in 600 s" in progress.conclusion.message
    # It was not found wanting: nothing is remembered against it, and the fallback is not needed.
    assert not progress.conclusion.rejects
    assert not progress.conclusion.to_fallback


def test_a_change_that_is_slower_is_given_up_at_once() -> None:
    fleet = gaining()
    blocks(fleet, [0.3] * 60)
    progress = fleet.until(lambda progress: progress.state is not State.RUNNING, 20)
    assert progress.conclusion is not None
    assert progress.conclusion.reason.value == "NoGain"


def test_a_move_for_capacity_needs_no_more_goodput() -> None:
    for gain, ends in ((Gain.CAPACITY, State.PROMOTING), (Gain.FASTER, State.RUNNING)):
        fleet = gaining(gain)
        blocks(fleet, [0.0] * 3000)
        for _ in range(20):
            state = fleet.look().state
            if state is not State.RUNNING:
                break
        assert state is ends


def test_engines_without_the_change_stay_until_the_gain_has_shown() -> None:
    fleet = running(PLAN.model_copy(update={"gain": Gain.FASTER, "steps": (25, 100)}))
    fleet.score(SERVED, GOOD)
    for _ in range(60):
        assert fleet.look().step == 0
    blocks(fleet, [-0.1] * 120)
    fleet.look()
    assert fleet.progress.step == 1
    assert fleet.pods_on_trial() == PODS


TASK = "ServedNeedleShort"
TASKS = PLAN.model_copy(update={"likelihood": False, "screened": False, "max_drop_percent": 10})


def asked(fleet: Fleet, falls: Sequence[float]) -> None:
    """Give the trial pairs of a task."""
    fleet.progress = fleet.progress.compared(fleet.plan.task(TASK), falls)


def test_tasks_are_answered_in_16_bits_before_any_pod_has_the_change() -> None:
    fleet = Fleet(TASKS)
    waits: dict[str, Any] = {"tasks": (TASK,), "tasks_left": True, "recorded": False}
    for _ in range(3):
        assert fleet.look(**waits).state in (State.PENDING, State.SCREENING)
    assert "without the change" in fleet.progress.note
    assert fleet.look(**{**waits, "recorded": True}).state is State.RUNNING
    assert fleet.pods_on_trial() == ("a",)


def test_without_any_probe_that_counts_no_pod_gets_the_change() -> None:
    fleet = Fleet(TASKS)
    fleet.look(tasks=())
    progress = fleet.look(tasks=())
    assert progress.conclusion is not None
    assert progress.conclusion.verdict is Verdict.INCONCLUSIVE
    assert State.RUNNING not in fleet.seen


def test_tasks_alone_decide_where_likelihoods_say_nothing() -> None:
    seen: dict[str, Any] = {"tasks": (TASK,), "tasks_left": True, "recorded": True}
    fleet = Fleet(TASKS)
    asked(fleet, [])
    for _ in range(80):
        fleet.look(**seen)
    assert fleet.progress.state is State.RUNNING
    assert next_prompts(TASKS, fleet.progress, facts(changed=frozenset("ab"))) is None
    before = fleet.progress
    asked(fleet, [0.0] * 60)
    assert fleet.look(**seen).state is State.PROMOTING
    fleet.progress = before
    asked(fleet, [1.0] * 60)
    assert fleet.look(**seen).state is State.ROLLING_BACK
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.to_fallback
    fleet.progress = before
    asked(fleet, [0.0] * 20)
    ended = fleet.look(**{**seen, "tasks_left": False}).conclusion
    assert ended is not None
    assert ended.reason is End.SET_EXHAUSTED


def test_likelihoods_that_are_good_do_not_go_before_tasks_that_are_open() -> None:
    plan = PLAN.model_copy(update={"max_drop_percent": 10})
    seen: dict[str, Any] = {"tasks": (TASK,), "tasks_left": True}
    fleet = running(plan)
    asked(fleet, [])
    fleet.score(SERVED, GOOD * 10)
    for _ in range(60):
        fleet.look(**seen)
    assert fleet.progress.state is State.RUNNING
    asked(fleet, [0.0] * 60)
    assert fleet.look(**seen).state is State.PROMOTING


def test_a_task_that_need_not_be_shown_holds_nothing_up_but_rolls_back() -> None:
    fleet = running(PLAN.model_copy(update={"max_drop_percent": 10}))
    fleet.score(SERVED, GOOD * 10)
    before = fleet.progress
    asked(fleet, [0.0] * 4)
    for _ in range(40):
        # Each has to be asked as often as the policy wants of any probe.
        assert fleet.look(tasks_left=True).state is State.RUNNING
    assert "4 of 5 pairs" in fleet.progress.note
    asked(fleet, [0.0])
    fleet.until(in_state(State.PROMOTING))
    fleet.progress = before
    asked(fleet, [1.0] * 60)
    assert fleet.look().state is State.ROLLING_BACK
    assert fleet.progress.conclusion is not None
    assert fleet.progress.conclusion.to_fallback


def test_tasks_that_are_good_do_not_go_before_likelihoods() -> None:
    plan = PLAN.model_copy(update={"max_drop_percent": 10})
    fleet = running(plan)
    asked(fleet, [0.0] * 60)
    for _ in range(60):
        fleet.look(tasks=(TASK,), tasks_left=False)
    assert fleet.progress.state is State.RUNNING
    fleet.score(SERVED, GOOD * 10)
    assert fleet.look(tasks=(TASK,), tasks_left=False).state is State.PROMOTING


def test_a_step_that_takes_all_pods_waits_for_tasks() -> None:
    plan = TASKS.model_copy(update={"steps": (50, 100)})
    seen: dict[str, Any] = {"tasks": (TASK,), "tasks_left": True, "recorded": True}
    fleet = Fleet(plan)
    asked(fleet, [])
    for _ in range(60):
        fleet.look(**seen)
    assert (fleet.progress.step, len(fleet.pods_on_trial())) == (0, 2)
    assert "waits for what tasks show" in fleet.progress.note
    asked(fleet, [0.0] * 60)
    fleet.look(**{**seen, "tasks_left": False})
    assert fleet.progress.step == 1


seconds = st.floats(0, 600)
looks = st.builds(
    lambda passed, ready, has, **more: (passed, ready, has, more),
    passed=seconds,
    ready=st.sets(st.sampled_from(PODS)),
    has=st.sets(st.sampled_from(PODS)),
    settled=st.booleans(),
    offered=st.sampled_from([True, True, True, False]),
    finished=st.floats(0, 50),
    blocked=st.sampled_from(["", "", "stale"]),
    refused=st.sampled_from(["", "", "", "no memory"]),
    hard_stop=st.sampled_from([None, None, None, HardStop.CRASHED]),
    superseded=st.sampled_from(["", "", "", "edited"]),
    wish=st.sampled_from(list(Wish)),
)
ORDER = (
    State.PENDING, State.SCREENING, State.RUNNING, State.APPROVAL, State.PROMOTING,
    State.ROLLING_BACK, State.FINISHED,
)  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(st.tuples(looks, st.sampled_from([0.0, 0.001, 0.05, 0.3])), max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_whatever_is_seen_a_trial_ends_once_and_never_in_silence(
    steps: list[tuple[Any, float]], manual: bool, guarded: bool
) -> None:
    plan = (GUARDED if guarded else PLAN).model_copy(update={"manual": manual})
    progress, now = Progress(), 0.0
    for (passed, ready, has, more), rise in steps:
        now += passed
        names = tuple(sorted(ready))
        found = replace(facts(now), ready=names, changed=frozenset(has & ready), **more)
        asked = next_prompts(plan, progress, found)
        if asked is not None and rise:
            progress = scored(plan, progress, asked[0], "Medium", [rise] * 5)
        if progress.alternation is not None and progress.state is State.RUNNING:
            turns, _ = progress.alternation.measured(Arm(load=1.0))
            progress = progress.model_copy(update={"alternation": turns})
        before, progress = progress, advance(plan, progress, found)
        # Never backwards, and what is decided stays decided, but for a promotion that fails.
        assert ORDER.index(progress.state) >= ORDER.index(before.state)
        if before.conclusion is not None and before.state is not State.PROMOTING:
            assert progress.conclusion == before.conclusion
        # Nothing is promoted but by evidence on quality in service.
        if progress.state is State.PROMOTING and before.state is not State.PROMOTING:
            served = progress.quality(SERVED).values()
            assert served
            assert all(c.is_safe(plan.rules.false_promotion) for c in served)
        assert (progress.conclusion is None) == (progress.state in ACTIVE)
        assert Progress.model_validate_json(progress.model_dump_json()) == progress


@settings(max_examples=60)
@given(
    min_samples=st.integers(1, 150),
    bound=st.sampled_from([0.5, 1.0, 2.0, 10.0]),
    screened=st.booleans(),
    steps=st.sampled_from([(50,), (5, 25, 50), (25, 100)]),
    pods=st.integers(2, 4),
    guards=st.sampled_from([{}, {Guard.TTFT: 10.0}]),
)
def test_a_good_change_never_waits_for_what_nobody_asks(
    min_samples: int,
    bound: float,
    screened: bool,
    steps: tuple[int, ...],
    pods: int,
    guards: dict[Guard, float],
) -> None:
    plan = Plan(
        steps=steps, min_requests=5, min_seconds=15, min_samples=min_samples,
        max_drop_percent=bound, screened=screened, guards=guards,
    )  # fmt: skip
    fleet = Fleet(plan, PODS[:pods])
    for _ in range(400):
        progress = fleet.look()
        if progress.state is State.FINISHED:
            break
        changed = frozenset(progress.candidates)
        wanted = next_prompts(plan, progress, facts(fleet.now, ready=fleet.pods, changed=changed))
        if wanted is not None:
            kind, numbers = wanted
            fleet.score(kind, [-0.0003] * len(numbers))
    assert progress.state is State.FINISHED, progress.note
    assert progress.conclusion is not None
    assert progress.conclusion.verdict in (Verdict.PROMOTED, Verdict.INCONCLUSIVE)
    assert progress.conclusion.verdict is Verdict.PROMOTED or progress.served >= 400
