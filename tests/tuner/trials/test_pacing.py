"""When engines with a change are probed, and when they are left alone to be compared."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_tuner.trials.alternation import SETTLING_SECONDS, Alternation
from kvserving_tuner.trials.arm import Arm
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.likelihoods import PROMPTS_AT_ONCE, next_prompts, scored
from kvserving_tuner.trials.machine import advance
from kvserving_tuner.trials.pacing import (
    MOST_AT_ONCE,
    MOST_BLOCKED,
    MOST_FOR_SURE,
    MOST_SETTLING,
    MOST_WAITING,
    PROBING_SECONDS,
    STUCK_SECONDS,
)
from kvserving_tuner.trials.plan import Gain, Guard, Plan
from kvserving_tuner.trials.progress import SERVED, Progress, State
from kvserving_tuner.trials.schedule import Schedule, Stretch

PODS = ("a", "b")
PLAN = Plan(
    steps=(50,), min_requests=10, min_seconds=100_000, min_samples=5, stall_seconds=1e9,
    guards={Guard.TTFT: 10.0},
)  # fmt: skip
PROBING, SETTLING, QUIET = Stretch.PROBING, Stretch.SETTLING, Stretch.QUIET
TASK = "ServedNeedleShort"


class Trial:
    """A trial in service, whose engines do as they are told, and a block in each quiet minute."""

    def __init__(self, plan: Plan = PLAN, pods: Sequence[str] = PODS, **progress: Any) -> None:
        self.plan, self.pods, self.now = plan, tuple(pods), 1000.0
        self.progress = Progress(state=State.RUNNING, candidates=("a",), **progress)
        self.stretches: list[Stretch] = []

    @property
    def schedule(self) -> Schedule:
        """Of its stretches."""
        return self.progress.schedule

    def facts(self, **more: Any) -> Facts:
        """What is seen, with what a test says is different."""
        known = {
            "ready": self.pods, "changed": frozenset(self.progress.candidates), "settled": True,
            "prompts": 400, "finished": 5.0, **more,
        }  # fmt: skip
        return Facts(self.now, **known)

    def look(self, seconds: float = 5.0, **more: Any) -> Stretch:
        """One look, and what is done from then on."""
        self.now += seconds
        if self.schedule.is_quiet and self.now - self.schedule.since >= 60:
            self.block()
        self.progress = advance(self.plan, self.progress, self.facts(**more))
        self.stretches.append(self.schedule.stretch)
        return self.schedule.stretch

    def block(self) -> None:
        """End a quiet block."""
        update: dict[str, Any] = {"schedule": self.schedule.with_quiet_block(self.now)}
        if self.progress.alternation is not None:
            update["alternation"], _ = self.progress.alternation.measured(Arm(load=1.0))
        self.progress = self.progress.model_copy(update=update)

    def score(self, rises: Sequence[float]) -> None:
        """Give the trial likelihoods."""
        self.progress = scored(self.plan, self.progress, SERVED, "Short", rises)

    def guard(self, numbers: Sequence[float]) -> None:
        """Give the trial blocks of a guard."""
        self.progress = self.progress.compared(self.plan.guard(Guard.TTFT), numbers)

    def run(self, looks: int, **more: Any) -> list[tuple[Stretch, float]]:
        """Look some times; the stretches that came, with their seconds."""
        del self.stretches[:]
        for _ in range(looks):
            self.look(**more)
        return [(kind, 5.0 * len(list(each))) for kind, each in groupby(self.stretches)]


def heard(rise: float = 0.0, plan: Plan = PLAN, **more: Any) -> Trial:
    """A trial with a first likelihood, which speaks for the change where it does not rise."""
    trial = Trial(plan, **more)
    trial.score([rise])
    return trial


def test_quality_goes_first_and_then_stretches_alternate() -> None:
    trial = heard()
    first, *later = trial.run(400)
    assert first == (PROBING, PROBING_SECONDS)
    kinds = [kind for kind, _ in later]
    assert kinds[:6] == [SETTLING, QUIET, PROBING] * 2
    assert dict(later[:6]) == {
        SETTLING: SETTLING_SECONDS + 5,
        QUIET: 60.0,
        PROBING: PROBING_SECONDS,
    }


def test_prompts_are_asked_in_stretches_of_probing_alone() -> None:
    trial = heard()
    for _ in range(200):
        asked = next_prompts(PLAN, trial.progress, trial.facts())
        assert (asked == (SERVED, range(1, 1 + PROMPTS_AT_ONCE))) == (
            trial.schedule.stretch is PROBING
        )
        trial.look()


def settling(**more: Any) -> Trial:
    """A trial that has just stopped to ask."""
    trial = heard()
    while trial.look(**more) is not SETTLING:
        pass
    return trial


def test_a_quiet_stretch_begins_after_the_last_answer() -> None:
    trial = settling()
    for _ in range(20):
        assert trial.look(probing=True) is SETTLING
    answered = trial.now
    while trial.look() is SETTLING:
        pass
    assert trial.schedule.since == trial.now
    assert trial.schedule.since - answered >= SETTLING_SECONDS


def test_what_probes_held_up_is_done_first() -> None:
    trial = settling()
    for _ in range(10):
        # 40 requests were there, and 5 of them end at each look.
        assert trial.look(in_flight=40.0) is SETTLING or trial.schedule.is_quiet
    assert trial.schedule.is_quiet
    assert trial.now - trial.schedule.since <= 10
    quick = settling()
    while quick.look(in_flight=5.0) is SETTLING:
        pass
    assert quick.now < trial.schedule.since


@pytest.mark.parametrize(
    ("before", "others", "left", "goes_on"),
    [
        (4.0, 0.0, 4.0, False),
        (None, 0.0, 0.4, True),
        # As many wait at the others: that is the load.
        (None, 4.0, 4.0, True),
        # An only engine has its own past.
        (4.0, None, 4.0, True),
        (1.0, None, 4.0, False),
        (None, None, None, True),
    ],
)
def test_a_queue_that_probes_have_left_is_waited_for(
    before: float | None, others: float | None, left: float | None, goes_on: bool
) -> None:
    trial = settling(queue=before)
    for _ in range(10):
        trial.look(queue=left, others_queue=others)
    assert trial.schedule.is_quiet == goes_on
    for _ in range(int(STUCK_SECONDS // 5) - 8):
        assert trial.schedule.is_quiet == goes_on or goes_on
        trial.look(queue=left, others_queue=others)
    # What does not get shorter is the change's own.
    assert trial.schedule.is_quiet or goes_on


def test_a_queue_that_gets_shorter_is_waited_for_longer() -> None:
    trial = settling()
    queue = 40.0
    while trial.look(queue=queue, others_queue=1.0) is SETTLING:
        queue = max(1.0, queue - 0.5)
    assert queue == 1.0
    endless = settling()
    began, queue = endless.now, 1e9
    while endless.look(queue=queue, others_queue=1.0) is SETTLING:
        queue *= 0.9
    assert MOST_SETTLING <= endless.now - began <= MOST_SETTLING + 15


def test_once_quality_is_shown_nothing_is_probed() -> None:
    trial = heard()
    trial.score([0.0] * 200)
    kinds = [kind for kind, _ in trial.run(600)]
    assert kinds == [SETTLING, QUIET]
    # So it is where the set has no prompt left.
    used_up = heard()
    assert [kind for kind, _ in used_up.run(600, prompts=1)] == [SETTLING, QUIET]


def test_where_quality_looks_bad_it_is_probed_without_a_break() -> None:
    bad = heard(0.05)
    first, *_ = bad.run(200)
    assert first == (PROBING, MOST_AT_ONCE)
    silent = Trial()
    assert silent.run(200)[0] == first
    worse = heard(0.2)
    worse.score([0.2] * 3)
    assert [kind for kind, _ in worse.run(400)] == [PROBING]


def test_quality_that_looks_bad_goes_before_a_guard_that_does() -> None:
    trial = heard(0.05)
    while trial.look() is not QUIET:
        pass
    trial.guard([0.3])
    first, second, *_ = trial.run(60)
    assert (first[0], second[0]) == (QUIET, PROBING)
    assert first[1] <= 60


def test_where_a_guard_looks_bad_it_is_watched_without_a_break() -> None:
    trial = heard()
    while trial.look() is not QUIET:
        pass
    trial.guard([0.3])
    first, second, *_ = trial.run(200)
    assert first[0] is QUIET
    assert MOST_AT_ONCE - 10 <= first[1] <= MOST_AT_ONCE
    assert second[0] is PROBING


def test_where_guards_are_shown_to_be_kept_most_of_the_time_is_for_quality() -> None:
    trial = heard()
    trial.guard([0.0] * 400)
    first, settled, quiet, *_ = trial.run(300)
    assert first == (PROBING, MOST_AT_ONCE)
    # A later step is another load: guards are looked at all the same.
    assert (settled[0], quiet[0]) == (SETTLING, QUIET)
    gaining = PLAN.model_copy(update={"gain": Gain.FASTER})
    waits = heard(plan=gaining)
    waits.guard([0.0] * 400)
    assert waits.run(300)[0] == (PROBING, PROBING_SECONDS)


@pytest.mark.parametrize("guards", [{}, {Guard.ERRORS: 0.1}])
def test_where_there_is_nothing_to_compare_it_is_probed_all_the_time(
    guards: dict[Guard, float],
) -> None:
    plan = PLAN.model_copy(update={"guards": guards})
    assert [kind for kind, _ in heard(plan=plan).run(400)] == [PROBING]
    # Nor is there where no engine without the change is left.
    assert [kind for kind, _ in heard(pods=("a",)).run(400)] == [PROBING]
    alone = heard()
    while alone.look() is not QUIET:
        pass
    alone.pods = ("a",)
    assert alone.look() is PROBING


def test_a_quiet_stretch_without_a_block_gives_way() -> None:
    trial = heard()
    while trial.look() is not QUIET:
        pass
    began = trial.now
    trial.block = lambda: None  # type: ignore[method-assign]
    while trial.look() is QUIET:
        pass
    assert trial.now - began == MOST_WAITING
    assert trial.schedule.stretch is PROBING


def test_a_stretch_stands_while_the_trial_holds_and_begins_anew_after_a_switch() -> None:
    trial = heard()
    trial.look()
    before = trial.schedule
    for _ in range(100):
        trial.look(wish=Wish.PAUSE)
        trial.look(blocked="metrics are stale")
        trial.look(changed=frozenset())
    assert trial.schedule == before
    while trial.look() is not QUIET:
        pass
    assert trial.look(changed=frozenset()) is SETTLING
    assert trial.look() is SETTLING


@pytest.mark.parametrize("stretch", [SETTLING, QUIET])
def test_where_metrics_stay_away_quality_is_measured(stretch: Stretch) -> None:
    trial = heard()
    while trial.look() is not stretch:
        pass
    for _ in range(int(MOST_BLOCKED // 5)):
        assert trial.look(blocked="metrics are stale") is stretch
    assert trial.look(blocked="metrics are stale") is PROBING
    assert next_prompts(PLAN, trial.progress, trial.facts(blocked="metrics are stale"))
    trial.score([0.4] * 80)
    trial.look(blocked="metrics are stale")
    assert trial.progress.state is State.ROLLING_BACK


def test_where_quality_is_shown_nothing_is_probed_though_metrics_stay_away() -> None:
    trial = heard()
    trial.score([0.0] * 150)
    while trial.look() is not QUIET:
        pass
    for _ in range(50):
        assert trial.look(blocked="metrics are stale") is QUIET


def turns_of(trial: Trial, looks: int) -> str:
    """What an engine that takes turns does: a block with the change or without it, or probes."""
    told = ""
    for _ in range(looks):
        before, pairs = trial.schedule, trial.progress.alternation
        assert pairs is not None
        trial.look()
        if trial.schedule.quiet > before.quiet:
            told += "C" if pairs.with_change else "S"
        if trial.schedule.stretch is PROBING and before.stretch is not PROBING:
            told += "p"
    return told


def test_turns_are_probed_where_two_with_the_change_meet() -> None:
    trial = heard(pods=("only",), alternation=Alternation())
    trial.progress = trial.progress.model_copy(update={"candidates": ("only",)})
    told = turns_of(trial, 600)
    # So those without the change are as near to those with it on either side.
    assert told.startswith("CSSCpCSSCpCSSCp")
    trial.score([0.0] * 200)
    assert "p" not in turns_of(trial, 600)


def test_a_turn_that_nobody_asks_is_used_for_probes() -> None:
    trial = heard(pods=("only",), alternation=Alternation())
    trial.progress = trial.progress.model_copy(update={"candidates": ("only",)})
    while trial.look(finished=0) is not QUIET:
        pass
    for _ in range(2):
        trial.block()
        trial.look()
    trial.block()
    trial.block = lambda: None  # type: ignore[method-assign]
    assert [kind for kind, _ in trial.run(80)][:2] == [QUIET, PROBING]


def with_tasks(falls: Sequence[float], gain: Gain | None = Gain.FASTER) -> Trial:
    """A trial whose likelihoods are good, with pairs of a task that nothing waits for."""
    trial = heard(plan=PLAN.model_copy(update={"gain": gain}))
    trial.score([0.0] * 200)
    trial.progress = trial.progress.compared(trial.plan.task(TASK), falls)
    return trial


def test_tasks_that_nothing_waits_for_hold_no_gain_up() -> None:
    enough = [0.0] * 5
    assert QUIET in with_tasks(enough).run(40, tasks_left=True)[-1]
    # They go on where nobody waits for a gain, where there are too few, and where they fare badly.
    for trial in (
        with_tasks(enough, gain=None),
        with_tasks(enough[:4]),
        with_tasks([0.0, 0.0, 0.0, 0.0, 1.0]),
    ):
        assert [kind for kind, _ in trial.run(30, tasks_left=True)] == [PROBING]
    asked = with_tasks(enough)
    assert [kind for kind, _ in asked.run(30, tasks_left=True, tasks=(TASK,))] == [PROBING]


def test_the_wait_for_a_gain_counts_quiet_time_alone() -> None:
    plan = PLAN.model_copy(update={"gain": Gain.FASTER, "gain_seconds": 600, "min_seconds": 10})
    trial = heard(plan=plan)
    trial.run(400)
    assert trial.progress.state is State.RUNNING
    assert trial.progress.step_seconds > 1900
    before = trial.progress.quiet_seconds
    assert 400 < before < 700
    trial.score([0.0] * 200)
    trial.run(200)
    assert trial.progress.conclusion is not None
    assert "no gain has shown in 60" in trial.progress.conclusion.message


looks = st.tuples(
    st.floats(0, 90),
    st.fixed_dictionaries(
        {
            "probing": st.booleans(),
            "in_flight": st.one_of(st.none(), st.floats(0, 1e4)),
            "queue": st.one_of(st.none(), st.floats(0, 100)),
            "others_queue": st.one_of(st.none(), st.floats(0, 100)),
            "finished": st.floats(0, 20),
            "tasks_left": st.booleans(),
            "blocked": st.sampled_from(["", "", "", "stale"]),
        }
    ),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(looks, max_size=60), st.booleans(), st.booleans(), st.floats(-0.1, 0.1))
def test_whatever_is_seen_both_kinds_of_stretches_come(
    seen: list[tuple[float, dict[str, Any]]], turns: bool, blocks: bool, number: float
) -> None:
    trial = Trial(alternation=Alternation() if turns else None, pods=PODS[: 1 if turns else 2])
    if not blocks:
        trial.block = lambda: None  # type: ignore[method-assign]
    for seconds, more in seen:
        trial.look(seconds, **more)
        if trial.schedule.stretch is PROBING and not turns:
            trial.score([number])
        if trial.schedule.is_quiet:
            trial.guard([number])
        if trial.progress.conclusion is not None:
            return
        assert Progress.model_validate_json(trial.progress.model_dump_json()) == trial.progress
    # Quality is open, so that from any state either kind is reached in a bounded time.
    if trial.progress.likelihood(SERVED) and number < 0:
        return
    bounded = MOST_FOR_SURE + MOST_SETTLING + MOST_AT_ONCE
    kinds = {kind for kind, _ in trial.run(math.ceil(bounded / 5))}
    assert kinds >= {PROBING, QUIET}
