"""Trials of changes that pods are started for: steps, waiting, and what ends them."""

from dataclasses import replace
from typing import Any

import pytest

from kvserving_tuner.judge import Cause
from kvserving_tuner.trials.facts import Facts
from kvserving_tuner.trials.likelihoods import scored
from kvserving_tuner.trials.machine import advance
from kvserving_tuner.trials.plan import Guard, Plan
from kvserving_tuner.trials.progress import SERVED, End, Progress, State, Verdict

PODS = ("a", "b", "c", "d")
PLAN = Plan(
    steps=(25, 100), restarts=True, screened=False, min_requests=10, min_seconds=60, min_samples=5
)
BAD = [0.4] * 80


def facts(now: float = 1000.0, own: tuple[str, ...] = (), **more: Any) -> Facts:
    mine = frozenset(own)
    known: dict[str, Any] = {
        "ready": (*PODS, *own), "changed": mine, "own": mine, "replicas": 4, "settled": True,
        "prompts": 400, "finished": 5.0,
    }  # fmt: skip
    return Facts(now, **{**known, **more})


def running(plan: Plan = PLAN, own: tuple[str, ...] = (), looks: int = 2) -> Progress:
    """A trial that waits for its pods, or that they serve in."""
    progress = Progress()
    for number in range(looks):
        progress = advance(plan, progress, facts(1000.0 + 5 * number, own))
    assert progress.state is State.RUNNING
    return progress


@pytest.mark.parametrize(
    ("percent", "replicas", "pods"), [(25, 4, 1), (50, 4, 2), (100, 4, 3), (100, 2, 1), (1, 2, 1)]
)
def test_one_engine_without_the_change_stays(percent: int, replicas: int, pods: int) -> None:
    plan = Plan(steps=(percent,), restarts=True)
    found = facts(replicas=replicas)
    assert plan.pods(0, found.engines) == pods


def test_an_only_engine_has_a_candidate_beside_it_and_takes_no_turns() -> None:
    plan = PLAN.model_copy(update={"guards": {Guard.TTFT: 10.0}})
    progress = advance(plan, Progress(), facts(ready=("a",), replicas=1))
    assert progress.state is State.RUNNING
    assert progress.alternation is None
    assert progress.candidates == ()
    assert "beside the only one" in progress.note


def test_clocks_begin_with_the_last_pod_of_a_step() -> None:
    plan = PLAN.model_copy(update={"steps": (50,)})
    progress = running(plan)
    assert progress.started_at is None
    progress = advance(plan, progress, facts(1100, ("n1",)))
    assert progress.candidates == ("n1",)
    assert "1 of 2 answer" in progress.note
    assert progress.started_at == 1100
    assert progress.step_seconds == 0
    progress = advance(plan, progress, facts(1105, ("n1", "n2")))
    assert progress.step_seconds == 5


def test_waiting_for_pods_is_no_stall() -> None:
    progress = running()
    for number in range(1000):
        progress = advance(PLAN, progress, facts(2000.0 + 60 * number, finished=0.0))
    assert progress.state is State.RUNNING
    assert not progress.stalled_seconds


def test_what_the_first_pods_show_does_not_wait_for_the_others() -> None:
    plan = PLAN.model_copy(update={"steps": (50,)})
    progress = advance(plan, running(plan), facts(1100, ("n1",)))
    progress = scored(plan, progress, SERVED, "Medium", BAD)
    progress = advance(plan, progress, facts(1105, ("n1",)))
    assert progress.state is State.ROLLING_BACK
    assert progress.conclusion is not None
    assert progress.conclusion.reason is Cause.QUALITY_DROP


def test_pods_that_run_are_no_candidates() -> None:
    progress = advance(PLAN, running(), facts(1100, ("n1",), ready=("n1", "z")))
    assert progress.candidates == ("n1",)


def test_without_probes_that_tell_it_ends_undecided() -> None:
    plan = PLAN.model_copy(update={"likelihood": False})
    progress = running(PLAN)
    progress = advance(plan, progress, facts(1100, ("n1",)))
    conclusion = progress.conclusion
    assert conclusion is not None
    assert (conclusion.verdict, conclusion.reason) == (
        Verdict.INCONCLUSIVE,
        Cause.QUALITY_NOT_SHOWN,
    )


@pytest.mark.parametrize("state", [State.RUNNING, State.APPROVAL])
def test_a_start_that_fails_is_a_fault_of_the_change(state: State) -> None:
    progress = running().model_copy(update={"state": state})
    progress = advance(PLAN, progress, facts(1100, unstartable="pod n1: no such kernel"))
    conclusion = progress.conclusion
    assert conclusion is not None
    assert (conclusion.verdict, conclusion.reason) == (Verdict.FAILED, End.START_FAILED)
    assert conclusion.rejects
    assert not conclusion.untried


@pytest.mark.parametrize("single", [True, False])
def test_an_only_engine_without_room_follows_the_policy(single: bool) -> None:
    plan = PLAN.model_copy(update={"single_replica": single})
    found = facts(1100, no_room="there is one engine and no room", replicas=1)
    conclusion = advance(plan, running(plan), found).conclusion
    assert conclusion is not None
    assert conclusion.reason is End.SINGLE_REPLICA
    assert conclusion.untried is single
    assert not conclusion.rejects
    assert (conclusion.verdict is Verdict.FAILED) is not single


def test_a_pod_that_takes_the_change_live_is_judged_as_before() -> None:
    found = replace(facts(), own=None)
    assert found.engines == len(PODS)
