"""What was promoted stays watched: likelihoods, tasks and floors, of formats and of eviction."""

import asyncio
from typing import Any

import httpx
import pytest

from kvserving_operator.kinds import Kind
from kvserving_operator.memory import TUNING_KEY, recall
from kvserving_operator.trials.watch import TASK_SECONDS_BETWEEN, TASK_SHARE, Watch
from operatorkit.specs import engine_spec
from operatorkit.trials import GUARDED, POLICY, only_trial, put_policy, reach, serve, trials
from operatorkit.world import World

STREAMING = {"policy": "StreamingLLM", "sinkTokens": 64, "windowTokens": 512}
EVICTION: dict[str, Any] = {"kvCache": {"eviction": STREAMING}}
FORMAT: dict[str, Any] = {"kvCache": {"dtype": "int8"}}
ASKED = ["Likelihood", "StructuredOutput"]
"""Eviction keeps what stands in the last message."""


def asks(*probes: str, **quality: Any) -> dict[str, Any]:
    """Spec of a policy that asks these probes."""
    asked = {"minSamples": 5, "maxDropPercent": 10, "probes": list(probes or ASKED), **quality}
    return {**POLICY, "ab": {**POLICY["ab"], "steps": [50]}, "quality": asked}


async def promote(
    world: World, change: dict[str, Any], policy: dict[str, Any] | None = None, **serving: Any
) -> dict[str, Any]:
    """Two engines to which a trial has given a change; the spec to edit."""
    put_policy(world, **(policy or asks()))
    serving = {"replicas": 2, **GUARDED, "engine": engine_spec(maxModelLen=4096), **serving}
    world.put(**serving)
    await world.settle()
    serving |= change
    world.put(**serving)
    await reach(world, "Finished", 150, 400)
    assert only_trial(world)["verdict"] == "Promoted"
    return serving


async def pass_by(world: World, looks: int, seconds: float = 120.0) -> None:
    """Looks at which a task is due each time, until something has happened to what was promoted."""
    for _ in range(looks):
        await world.tick(seconds)
        for _ in range(8):
            await asyncio.sleep(0)
        if world.said("QualityRegressed"):
            # One more for engines to be read back.
            await world.tick()
            return


def memory(world: World) -> Watch | None:
    """What is stored of the watch."""
    (found,) = [
        each
        for each in world.cluster.of(Kind.ConfigMap).values()
        if TUNING_KEY in each.get("data", {})
    ]
    return recall(found, None).trials.watch


def watch(world: World) -> Watch:
    """The same where there is one."""
    found = memory(world)
    assert found is not None
    return found


def count(world: World, ending: str) -> int:
    """Numbers of the only criterion whose name ends so."""
    (found,) = [run for name, run in watch(world).watched.runs.items() if name.endswith(ending)]
    return found.count


def in_force(world: World) -> tuple[list[str], list[Any]]:
    """Formats and windows of both engines."""
    hosts = ["10.0.0.1", "10.0.0.2"]
    evictions = [world.engines.evictions.get(host, {}) for host in hosts]
    return (
        [world.engines.dtypes.get(host, "bfloat16") for host in hosts],
        [each.get("window_tokens") for each in evictions],
    )


PLAIN = (["bfloat16", "bfloat16"], [None, None])
CHANGED = {
    "format": (FORMAT, (["int8", "int8"], [None, None])),
    "eviction": (EVICTION, (["bfloat16", "bfloat16"], [512, 512])),
}


@pytest.mark.parametrize("change", ["format", "eviction"])
async def test_tasks_that_fail_after_a_promotion_send_all_to_the_fallback(
    world: World, change: str
) -> None:
    spec, expected = CHANGED[change]
    serving = await promote(world, spec)
    await pass_by(world, 15)
    assert in_force(world) == expected
    world.engines.clueless = True
    await pass_by(world, 60)
    assert in_force(world) == PLAIN
    (said,) = world.said("QualityRegressed")
    assert "after its promotion WatchedStructuredOutput" in said
    assert world.condition("RolledBack")["status"] == "True"
    assert world.condition("QualityGate")["reason"] == "Failed"
    # It is remembered: taken back and asked for again, it is not tried.
    world.put(**{**serving, "kvCache": {}})
    await pass_by(world, 3)
    world.put(**serving)
    await pass_by(world, 3)
    assert len(trials(world)) == 1
    assert "not tried again" in world.condition("RolledBack")["message"]


async def test_a_fall_is_found_where_grades_of_16_bits_are_used_up(world: World) -> None:
    await promote(world, EVICTION)
    await pass_by(world, 80)
    assert not any(each.unused for each in watch(world).watched.baselines.values())
    assert count(world, "Level") > 60
    world.engines.clueless = True
    await pass_by(world, 60)
    assert in_force(world) == PLAIN
    assert "Level: " in world.said("QualityRegressed")[0]


async def test_a_floor_is_watched_and_an_edit_of_it_counts(world: World) -> None:
    """A model whose cells are too weak to be compared may still break a floor."""
    world.engines.clueless = True
    serving = await promote(world, FORMAT)
    await pass_by(world, 15)
    assert in_force(world)[0] == ["int8", "int8"]
    floors = {"floors": [{"probe": "StructuredOutput", "minimumPercent": 50}]}
    world.put(**serving, quality=floors)
    await pass_by(world, 60)
    assert in_force(world) == PLAIN
    assert "WatchedStructuredOutputFloor: 100.00 % missed" in world.said("QualityRegressed")[0]


async def test_likelihoods_are_watched_beside_tasks(world: World) -> None:
    await promote(world, FORMAT)
    world.engines.worse["int8"] = 0.4
    await pass_by(world, 60)
    assert in_force(world) == PLAIN
    assert "WatchedLikelihoodShort" in world.said("QualityRegressed")[0]


async def test_eviction_is_watched_by_tasks_alone(world: World) -> None:
    await promote(world, EVICTION)
    world.engines.worse["bfloat16"] = 0.4
    await pass_by(world, 20)
    assert watch(world).number == 0
    assert count(world, "Level") > 10


@pytest.mark.parametrize(
    ("seconds", "pause"), [(0.5, TASK_SECONDS_BETWEEN), (12.0, 12 / TASK_SHARE)]
)
async def test_tasks_are_few_and_fewer_of_a_slow_engine(
    world: World, seconds: float, pause: float
) -> None:
    await promote(world, EVICTION)
    await pass_by(world, 5)
    world.engines.seconds_per_answer = seconds
    # Of the first one it is not known yet how long it takes.
    await pass_by(world, 3)
    world.engines.asked.clear()
    began = world.clock()
    await pass_by(world, 90, 30)
    passed = world.clock() - began
    assert 0 < len(world.engines.asked) <= passed / pause + 1
    assert len(world.engines.asked) >= passed / (pause + 90) - 1


async def test_no_answer_is_cached(world: World) -> None:
    await promote(world, EVICTION)
    world.engines.asked.clear()
    await pass_by(world, 20)
    salts = [body["cache_salt"] for _, body in world.engines.asked]
    assert len(set(salts)) == len(salts) > 10
    assert {host for host, _ in world.engines.asked} == {"10.0.0.1", "10.0.0.2"}


async def test_probes_that_fail_hold_the_watch_and_say_why(world: World) -> None:
    await promote(world, FORMAT)
    await pass_by(world, 5)
    world.engines.answer_error = httpx.Response(503, json={"error": {"message": "too busy"}})
    # What was under way is heard first.
    await pass_by(world, 2)
    before = watch(world)
    await pass_by(world, 40)
    assert in_force(world)[0] == ["int8", "int8"]
    gate = world.condition("QualityGate")
    assert (gate["status"], gate["reason"]) == ("True", "Passed")
    assert "; since then: holds: probe: " in gate["message"]
    assert "too busy" in gate["message"]
    assert watch(world).watched.task == before.watched.task
    # The other kind of probe goes on.
    assert watch(world).number > before.number + 30
    world.engines.answer_error = None
    await pass_by(world, 5)
    assert watch(world).watched.task > before.watched.task
    assert "since then" not in world.condition("QualityGate")["message"]


async def test_prompts_that_fail_hold_as_well(world: World) -> None:
    await promote(world, FORMAT)
    before = watch(world).watched.task
    world.engines.probe_error = httpx.Response(503, json={"error": {"message": "not now"}})
    await pass_by(world, 15)
    assert "not now" in world.condition("QualityGate")["message"]
    assert watch(world).number == 0
    assert watch(world).watched.task > before + 10


async def test_engines_that_do_not_answer_hold_the_watch(world: World) -> None:
    await promote(world, EVICTION)
    before = watch(world).watched
    for pod in world.engine_pods().values():
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    await pass_by(world, 10)
    assert watch(world).watched == before
    assert "holds: no engine that answers reports" in watch(world).note
    assert not world.said("QualityRegressed")


async def test_a_faulty_probe_set_holds_the_watch(world: World) -> None:
    serving = await promote(world, FORMAT)
    before = watch(world)
    world.put(**serving, quality={"probeSet": {"name": "gone"}})
    await pass_by(world, 10)
    assert "holds: spec.quality.probeSet: ConfigMap gone does not exist" in watch(world).note
    assert (watch(world).number, watch(world).watched) == (before.number, before.watched)


async def test_pods_of_another_template_are_not_compared_and_floors_go_on(world: World) -> None:
    serving = await promote(world, EVICTION)
    await pass_by(world, 10)
    other = {**serving, "engine": engine_spec(maxModelLen=3072)}
    world.put(**other)
    await world.settle(12)
    done = watch(world).watched.task
    await pass_by(world, 10)
    assert watch(world).watched.task == done
    assert "not compared with 16 bits any more" in world.condition("QualityGate")["message"]
    floors = {"floors": [{"probe": "StructuredOutput", "minimumPercent": 50}]}
    world.put(**other, quality=floors)
    await pass_by(world, 5)
    assert watch(world).watched.task > done
    world.engines.clueless = True
    await pass_by(world, 40)
    assert "WatchedStructuredOutputFloor" in world.said("QualityRegressed")[0]


async def test_a_restarted_operator_loses_no_answer_and_counts_none_twice(world: World) -> None:
    await promote(world, EVICTION)
    before = dict.fromkeys(watch(world).watched.runs, 0)
    for _ in range(12):
        world.new_controller()
        await pass_by(world, 3)
        runs = watch(world).watched.runs
        # Nothing starts over.
        assert all(run.count >= before[name] for name, run in runs.items())
        before = {name: run.count for name, run in runs.items()}
    # Every task counts once for its level, and every grade of 16 bits once for its pair.
    watched = watch(world).watched
    assert 12 < watched.task == count(world, "Level")
    (trial,) = trials(world).values()
    kept = {each["name"]: each["samples"] for each in trial["status"]["evidence"]}
    (baseline,) = watched.baselines.values()
    used = kept["ServedStructuredOutputMedium"] - len(baseline.unused)
    (pairs,) = [run for name, run in watched.runs.items() if not name.endswith("Level")]
    assert pairs.count == used == watched.task


@pytest.mark.parametrize("looks", range(0, 12, 3))
async def test_an_operator_killed_on_the_way_to_a_rollback_gives_one(
    world: World, looks: int
) -> None:
    await promote(world, EVICTION)
    world.engines.clueless = True
    await pass_by(world, looks)
    world.new_controller()
    await pass_by(world, 60)
    await pass_by(world, 5)
    assert in_force(world) == PLAIN
    assert len(world.said("QualityRegressed")) == 1


async def test_a_trial_that_fails_leaves_the_watch_of_what_stays(world: World) -> None:
    serving = await promote(world, FORMAT)
    await pass_by(world, 10)
    before = watch(world)
    assert before.watched.task > 5
    world.put(**{**serving, "kvCache": {"dtype": "int2"}})
    await pass_by(world, 30, 5)
    assert sorted(each["status"]["verdict"] for each in trials(world).values()) == [
        "Promoted", "RolledBack",
    ]  # fmt: skip
    assert in_force(world)[0] == ["int8", "int8"]
    now = watch(world)
    assert now.trial == before.trial
    assert now.watched.task >= before.watched.task
    await pass_by(world, 5)
    assert watch(world).watched.task > now.watched.task


async def test_grades_of_16_bits_go_on_to_a_format_that_is_promoted_beside_eviction(
    world: World,
) -> None:
    serving = await promote(world, EVICTION)
    await pass_by(world, 10)
    before = watch(world)
    world.put(**{**serving, "kvCache": {"dtype": "int8", "eviction": STREAMING}})
    for _ in range(60):
        await serve(world)
        if in_force(world) == (["int8", "int8"], [512, 512]):
            break
    await pass_by(world, 10)
    now = watch(world)
    assert now.trial != before.trial
    ((key, baseline),) = now.watched.baselines.items()
    assert baseline.shown_percent == before.watched.baselines[key].shown_percent > 0
    assert len(baseline.unused) < len(before.watched.baselines[key].unused)
    world.engines.confused.add("int8")
    await pass_by(world, 60)
    assert in_force(world) == PLAIN
    assert "WatchedStructuredOutput" in world.said("QualityRegressed")[0]
