"""What ends a trial without statistics, and what does not."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvserving_operator.api.v1alpha1 import EvictionSpec
from kvserving_operator.observe import PodView, pod_view
from kvserving_operator.trials.asking import Answer, Ask
from kvserving_operator.trials.probe_set import ProbeSet
from kvserving_operator.trials.record import Record
from kvserving_operator.trials.seen import Seen, facts_of
from kvserving_operator.trials.select import Wanted
from kvserving_operator.trials.stopping import (
    GARBAGE_IN_A_ROW,
    end_of,
    is_mute,
    with_garbage,
)
from kvserving_tuner.judge import HardStop
from kvserving_tuner.observation import Window
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.tasks import Cell
from operatorkit import trials
from operatorkit.engines import runtime_document
from operatorkit.trials import GUARDED, only_trial, put_policy, reach, ready, serve
from operatorkit.world import World
from tunerkit.build import NOT_MEASURED, NOW, engine, gauge, observation, window

WORKS = window()
MUTE = window(tokens=0, prompt_tokens=0, finished=0)


def record(block_from: float = NOW - 60) -> Record:
    begun = trials.record("a", plan=Plan())
    return begun.model_copy(update={"block_from": block_from})


def mute(one: Window, other: Window = WORKS, **more: Any) -> bool:
    """Whether `a`, on trial, says nothing, where `a` and `b` had these windows."""
    found = observation(engine(one), engine(other, name="b"))
    return is_mute(record(**more), found, {"a"})


def test_an_engine_that_gives_no_token_to_anybody_is_mute() -> None:
    assert mute(MUTE)


@pytest.mark.parametrize(
    "busy",
    [
        # Nobody asks, or somebody does for a part of the time alone.
        replace(MUTE, running=gauge(0)),
        replace(MUTE, running=replace(gauge(2), minimum=0)),
        replace(MUTE, running=NOT_MEASURED),
        # It reads a long prompt, answers, or does not tell.
        window(tokens=0, prompt_tokens=5000, finished=0),
        window(tokens=1, finished=0),
        window(tokens=0, finished=1),
        replace(MUTE, generation_tokens=NOT_MEASURED),
        replace(MUTE, prompt_tokens=NOT_MEASURED),
        replace(MUTE, finished=NOT_MEASURED),
        WORKS,
    ],
)
def test_an_engine_that_may_be_at_work_is_not(busy: Window) -> None:
    assert not mute(busy)


def test_where_no_other_engine_gives_any_it_is_not_the_change() -> None:
    assert not mute(MUTE, MUTE)
    assert not mute(MUTE, replace(WORKS, generation_tokens=NOT_MEASURED))
    assert not is_mute(record(), observation(engine(MUTE)), {"a"})
    assert not is_mute(record(), None, {"a"})


def test_what_was_before_the_switch_does_not_count() -> None:
    assert not mute(MUTE, block_from=NOW - 59)
    found = observation(engine(MUTE), engine(WORKS, name="b"))
    assert not is_mute(record(), found, set())
    # Engines without the change may be mute as they like.
    other = observation(engine(WORKS), engine(MUTE, name="b"), engine(WORKS, name="c"))
    assert not is_mute(record(), other, {"a"})


def pod(name: str, reason: str | None) -> PodView:
    ended = {"lastState": {"terminated": {"exitCode": 137, "reason": reason}}} if reason else {}
    containers = [{"name": "engine", "restartCount": 1, **ended}]
    return pod_view(
        {"metadata": {"name": name, "uid": name}, "status": {"containerStatuses": containers}}
    )


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("OOMKilled", HardStop.OUT_OF_MEMORY),
        ("Error", HardStop.CRASHED),
        (None, HardStop.CRASHED),
    ],
)
def test_an_engine_that_ends_says_why(reason: str | None, stop: HardStop) -> None:
    pods = (pod("a", reason), pod("b", "OOMKilled"))
    assert end_of(pods, ["a"]) is stop
    assert end_of(pods, []) is None


@pytest.mark.parametrize(("one", "stop"), [(MUTE, HardStop.NO_TOKENS), (WORKS, None)])
def test_a_mute_engine_is_a_fact_of_the_trial(one: Window, stop: HardStop | None) -> None:
    documents = {"a": runtime_document(16, "int8", ("auto", "int8")),
                 "b": runtime_document(16, "bfloat16", ("auto", "int8"))}  # fmt: skip
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    seen = Seen(
        pods=tuple(pod_view({"metadata": {"name": n, "uid": n}, "status": ready}) for n in "ab"),
        runtime={name: RuntimeState.of(name, each) for name, each in documents.items()},
        targets={}, refusals=(), observation=observation(engine(one), engine(WORKS, name="b")),
        pairs=(), answers=(), steady=True, probe_set=ProbeSet(), model="m", max_tokens=2048,
        now=NOW,
    )  # fmt: skip
    wanted = Wanted(
        name="chat", asked=trials.INT8, eviction=EvictionSpec(), in_force=trials.INT8,
        template="t", generation=1, has_policy=True, policy=None, slo=Slo(),
    )  # fmt: skip
    _, facts = facts_of(record(), wanted, None, seen, is_new=True)
    assert facts.hard_stop is stop


ASK = Ask("trial", 0, Cell(Probe.NEEDLE, 512), 0, "m", 32)


def test_garbage_counts_where_16_bits_get_something_right() -> None:
    garbage = Answer(ASK, 0.0, 1.0, is_garbage=True)
    count = 0
    for _ in range(GARBAGE_IN_A_ROW):
        count = with_garbage(count, garbage)
    assert count == GARBAGE_IN_A_ROW
    assert with_garbage(count, Answer(ASK, 0.0, 0.0, is_garbage=True)) == count
    assert with_garbage(count, Answer(ASK, 0.0, None, is_garbage=True)) == count
    # One that is as good as with 16 bits is an answer, whatever it looks like.
    assert with_garbage(count, Answer(ASK, 0.5, 0.5, is_garbage=True)) == 0
    # A wrong answer is one.
    assert with_garbage(count, Answer(ASK, 0.0, 1.0)) == 0


def task_policy(world: World) -> None:
    put_policy(
        world,
        ab={"steps": [50], "minRequests": 4, "minDurationSeconds": 900},
        guards={},
        quality={
            "minSamples": 50, "screening": "Disabled", "probes": ["Likelihood", "Needle"],
        },
    )  # fmt: skip


@pytest.mark.parametrize(("says", "stops"), [("", True), (" 1", False)])
async def test_a_candidate_that_answers_nothing_is_rolled_back(
    world: World, says: str, stops: bool
) -> None:
    await ready(world)
    task_policy(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running", looks=80, turns=400)
    world.engines.dumb = {"int8": says}
    await serve(world, 6, turns=400)
    status = only_trial(world)
    if not stops:
        assert status.get("reason") != "HardStop"
        return
    assert (status["verdict"], status["reason"]) == ("RolledBack", "HardStop")
    assert "Garbage" in status["message"]
    assert set(world.engines.dtypes.values()) == {"bfloat16"}


async def test_what_an_engine_fails_to_answer_is_no_garbage(world: World) -> None:
    await ready(world)
    task_policy(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running", looks=80, turns=400)
    world.engines.answer_error = httpx.Response(503, json={"error": {"message": "no memory"}})
    await serve(world, 10, turns=400)
    assert "verdict" not in only_trial(world)
