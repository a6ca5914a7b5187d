"""Tracks, weights and the steps between them, without a cluster."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest

from kvserving_operator.observe import PodView, pod_view
from kvserving_operator.traffic.arms import Wish, wish
from kvserving_operator.traffic.stages import WAIT, Stage, Standing, next_stage
from kvserving_operator.trials.record import Record
from kvserving_tuner.judge import Cause
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import Conclusion, State, Verdict
from operatorkit import trials
from operatorkit.engines import runtime_document

OFFERS = ("auto", "bfloat16", "int8", "int4")


def pod(name: str, *, candidate: bool = False, ready: bool = True) -> PodView:
    track = "candidate" if candidate else "stable"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return pod_view(
        {
            "metadata": {"name": name, "uid": name, "labels": {"kvserving.dev/track": track}},
            "status": {"conditions": conditions},
        }
    )


def runtime(**dtypes: str) -> dict[str, RuntimeState]:
    return {
        name: RuntimeState.model_validate({"target": name, **runtime_document(16, dtype, OFFERS)})
        for name, dtype in dtypes.items()
    }


def record(*candidates: str, **more: Any) -> Record:
    return trials.record(*candidates, plan=Plan(steps=(5, 25, 50)), **more)


def test_all_pods_are_stable_without_a_trial() -> None:
    pods = [pod("a", candidate=True), pod("b")]
    assert wish(None, pods, runtime(a="int8", b="bfloat16"), 0.1) == Wish()


def test_a_candidate_leaves_the_others_before_it_takes_the_change() -> None:
    found = wish(record("a"), [pod("a"), pod("b")], runtime(a="bfloat16", b="bfloat16"), 0.1)
    assert (frozenset("a"), False, 5) == (found.candidates, found.takes, found.asked)


def test_with_the_change_it_gets_the_steps_share() -> None:
    seen = runtime(a="int8", b="bfloat16")
    found = wish(record("a", step=1), [pod("a", candidate=True), pod("b")], seen, 0.1)
    assert (25, True, False) == (found.weight, found.takes, found.raised)


def test_one_that_cannot_be_read_gets_no_more() -> None:
    assert not wish(record("a"), [pod("a"), pod("b")], runtime(b="bfloat16"), 0.1).takes


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([pod("a")], id="one pod"),
        pytest.param([pod("a"), pod("b", ready=False)], id="the others do not answer"),
        pytest.param([pod("a", ready=False), pod("b")], id="the candidate does not"),
    ],
)
def test_without_two_arms_there_is_no_choice(pods: list[PodView]) -> None:
    assert wish(record("a"), pods, runtime(a="int8", b="bfloat16"), 0.1) == Wish()


def test_a_step_with_all_pods_is_no_split() -> None:
    pods = [pod("a", candidate=True), pod("b")]
    found = wish(record("a", "b"), pods, runtime(a="int8", b="int8"), 0.1)
    assert Wish() == found


def test_a_rolled_back_pod_stays_out_until_it_has_given_the_change_up() -> None:
    conclusion = Conclusion(
        verdict=Verdict.ROLLED_BACK, reason=Cause.QUALITY_DROP, message="", to_fallback=True
    )
    ending = record(state=State.ROLLING_BACK, conclusion=conclusion)
    pods = [pod("a", candidate=True), pod("b")]
    still = wish(ending, pods, runtime(a="int8", b="bfloat16"), 0.1)
    assert (frozenset("a"), 0) == (still.candidates, still.weight)
    assert Wish() == wish(ending, pods, runtime(a="bfloat16", b="bfloat16"), 0.1)


def test_nor_is_it_kept_out_where_nobody_else_answers() -> None:
    ending = record(state=State.ROLLING_BACK)
    pods = [pod("a", candidate=True), pod("b", ready=False)]
    assert Wish() == wish(ending, pods, runtime(a="int8"), 0.1)


def test_a_promoted_pod_joins_the_others_at_once() -> None:
    conclusion = Conclusion(verdict=Verdict.PROMOTED, reason=Cause.WITHIN_BOUNDS, message="")
    ending = record("a", state=State.PROMOTING, conclusion=conclusion)
    pods = [pod("a", candidate=True), pod("b")]
    assert Wish() == wish(ending, pods, runtime(a="int8", b="bfloat16"), 0.1)


A, B, C = frozenset("a"), frozenset("b"), frozenset("c")
ALL = A | B | C
SPLIT = Standing(A, A, B | C, 5)


@pytest.mark.parametrize(
    ("at", "wanted", "stage"),
    [
        pytest.param(Standing(), Wish(), None, id="nothing to do"),
        pytest.param(SPLIT, Wish(A, 5), None, id="all as wished"),
        pytest.param(
            Standing(stable_ready=ALL), Wish(A, 5), Stage(to_candidate=A), id="labels first"
        ),
        pytest.param(
            Standing(A, frozenset(), B | C), Wish(A, 5), WAIT, id="no weight for no endpoint"
        ),
        pytest.param(
            Standing(A, A, B | C), Wish(A, 5, takes=False), None, id="none before the change"
        ),
        pytest.param(Standing(A, A, B | C), Wish(A, 5), Stage(weight=5), id="then the weight"),
        pytest.param(SPLIT, Wish(A, 25), Stage(weight=25), id="more for the same"),
        pytest.param(SPLIT, Wish(A | B, 25), Stage(to_candidate=B), id="more pods first"),
        pytest.param(
            Standing(A | B, A, C, 5), Wish(A | B, 25), WAIT, id="and all of their endpoints"
        ),
        pytest.param(
            Standing(A | B, A | B, C, 5),
            Wish(A | B, 25, takes=False),
            None,
            id="the share stands while one of them takes the change",
        ),
        pytest.param(SPLIT, Wish(), Stage(weight=0), id="the weight goes first"),
        pytest.param(
            replace(SPLIT, weight=0), Wish(), Stage(to_stable=A), id="and labels after it"
        ),
        pytest.param(
            replace(SPLIT, weight=0, acknowledged=False), Wish(), WAIT, id="not before it is in"
        ),
        pytest.param(
            Standing(A, frozenset(), B | C, 25),
            Wish(A, 25),
            Stage(weight=0),
            id="an arm without endpoints has no share",
        ),
        pytest.param(Standing(A | B, A | B, C, 50), Wish(A, 25), Stage(weight=25), id="less first"),
        pytest.param(
            Standing(A | B, A | B, C, 25), Wish(A, 25), Stage(to_stable=B), id="fewer pods then"
        ),
        pytest.param(
            Standing(A, A, B | C, 5), Wish(B, 5), Stage(weight=0), id="another pod: out first"
        ),
        pytest.param(
            Standing(A, A, frozenset(), 5),
            Wish(),
            Stage(to_stable=A, weight=0),
            id="nobody else answers: all at once",
        ),
        pytest.param(
            Standing(stable_ready=A), Wish(A, 5), WAIT, id="the stable arm is not emptied"
        ),
    ],
)
def test_one_cluster(at: Standing, wanted: Wish, stage: Stage | None) -> None:
    assert stage == next_stage(at, wanted)


@pytest.mark.parametrize(
    ("weight", "wanted", "then"), [(0, 5, 1), (1, 5, 5), (25, 0, 1), (1, 0, 0), (0, 1, 1)]
)
def test_clusters_come_and_go_through_1_percent(weight: int, wanted: int, then: int) -> None:
    at = replace(SPLIT, weight=weight, clusters=True)
    stage = next_stage(at, Wish(A if wanted else frozenset(), wanted))
    assert stage is not None
    assert then == stage.weight


def test_but_not_for_an_arm_that_is_gone() -> None:
    at = Standing(A, frozenset(), B, 50, clusters=True)
    stage = next_stage(at, Wish(A, 50))
    assert stage is not None
    assert 0 == stage.weight


def subsets(pods: frozenset[str]) -> Iterator[frozenset[str]]:
    sizes = range(len(pods) + 1)
    yield from map(frozenset, chain.from_iterable(combinations(sorted(pods), n) for n in sizes))


@pytest.mark.parametrize("clusters", [False, True])
def test_from_everywhere_every_wish_is_reached_without_a_fault(clusters: bool) -> None:
    """As after a kill at any point: two pods that answer at least, in any tracks."""
    starts = 0
    for labelled in subsets(ALL):
        for weight in (0, 1, 5, 50, 99):
            for chosen in subsets(ALL):
                if chosen == ALL:
                    continue
                wanted = Wish(chosen, 25 if chosen else 0)
                starts += 1
                _converges(labelled, weight, wanted, clusters)
    assert 280 == starts


def _converges(labelled: frozenset[str], weight: int, wanted: Wish, clusters: bool) -> None:
    sound = bool(labelled or not weight) and labelled != ALL
    for _ in range(12):
        at = Standing(labelled, labelled, ALL - labelled, weight, clusters)
        stage = next_stage(at, wanted)
        if stage is None:
            break
        assert not stage.waits, (at, wanted)
        labelled = (labelled | stage.to_candidate) - stage.to_stable
        before = weight
        weight = weight if stage.weight is None else stage.weight
        if sound:
            assert labelled or not weight, (at, wanted, stage)
            assert labelled != ALL, (at, wanted, stage)
            if clusters and before != weight and 0 in (before, weight):
                assert 1 == max(before, weight), (at, wanted, stage)
    assert (labelled, weight) == (wanted.candidates, wanted.weight)
