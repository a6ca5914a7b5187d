"""Under a policy no pod starts with what no trial has passed, whatever else is edited with it."""

from typing import Any

import pytest

from kvserving_operator.kinds import Kind
from kvserving_operator.settings import Settings
from operatorkit.specs import IMAGE, NAME, NAMESPACE, engine_spec
from operatorkit.trials import (
    GUARDED,
    only_trial,
    put_policy,
    put_trial,
    reach,
    ready,
    serve,
    trials,
)
from operatorkit.world import World

STREAMING = {"policy": "StreamingLLM", "sinkTokens": 64, "windowTokens": 512}
INT8: dict[str, Any] = {"kvCache": {"dtype": "int8"}}
FEWER: dict[str, Any] = {"engine": engine_spec(maxNumSeqs=12)}
"""An edit that needs new pods."""
NEW = "--max-num-seqs=12"
"""An argument of these."""


def edit(world: World, **spec: Any) -> None:
    """Make an edit under the policy."""
    world.put(replicas=2, **GUARDED, **spec)


async def roll_out(world: World) -> None:
    """Let a check pass and new pods come up, and no trial go on."""
    await world.settle(3)


async def renew(world: World, looks: int = 150) -> None:
    """Let pods of an edit come up, tried before where they decide about answers."""
    for _ in range(looks):
        world.engines.finished += 2
        await serve(world)
        world.finish_check(code=0)
        world.roll()
        for pod in world.engine_pods().values():
            world.come_up(pod)
        if world.condition("Progressing")["reason"] == "RolloutComplete":
            return
    raise AssertionError(f"not through: {world.status['conditions']}")


def formats(world: World) -> list[dict[str, Any]]:
    """Status of each trial of a format."""
    found = [trial.get("status", {}) for trial in trials(world).values()]
    return [each for each in found if str(each.get("summary")).startswith("KVCacheDType")]


def fleet(world: World, *started_with: str) -> list[str]:
    """Format of each engine that was started with these arguments."""
    hosts = [
        pod["status"]["podIP"]
        for pod in world.engine_pods().values()
        if {*started_with} <= {*pod["spec"]["containers"][0]["args"]}
    ]
    return [world.engines.dtypes.get(host, "bfloat16") for host in hosts]


def args(world: World) -> tuple[str, ...]:
    """Arguments that new pods start with."""
    return tuple(world.deployment["spec"]["template"]["spec"]["containers"][0]["args"])


def sent(world: World) -> list[str]:
    """Formats that engines were told to take."""
    return [body["kv_cache_dtype"] for _, body in world.engines.patches if "kv_cache_dtype" in body]


def by_verdict(world: World) -> dict[str, dict[str, Any]]:
    """Status of each trial by its verdict; of one that has none by its state."""
    found = [trial["status"] for trial in trials(world).values()]
    return {status.get("verdict", status["state"]): status for status in found}


async def finish(world: World, looks: int = 100) -> dict[str, Any]:
    """Serve until the newest trial has ended."""
    for _ in range(looks):
        await serve(world)
        found = [trial["status"] for trial in trials(world).values()]
        if found and all(status["state"] == "Finished" for status in found):
            last: dict[str, Any] = found[-1]
            return last
    raise AssertionError(f"not finished: {trials(world)}")


async def test_an_edit_of_format_and_start_up_settings_tries_the_format_on_the_new_pods(
    world: World,
) -> None:
    await ready(world)
    old = set(world.engine_pods())
    edit(world, **INT8, **FEWER)
    await roll_out(world)
    assert not old & set(world.engine_pods())
    assert NEW in args(world)
    assert not any("int8" in each for each in args(world))
    assert (fleet(world), sent(world)) == (["bfloat16", "bfloat16"], [])
    await reach(world, "Running")
    assert sorted(fleet(world)) == ["bfloat16", "int8"]
    assert (await finish(world))["verdict"] == "Promoted"
    assert fleet(world) == ["int8", "int8"]
    assert len(trials(world)) == 1
    assert not old & set(world.engine_pods())


async def test_a_bad_format_in_such_an_edit_reaches_no_pod(world: World) -> None:
    await ready(world)
    edit(world, kvCache={"dtype": "int2"}, **FEWER)
    await world.settle()
    status = await finish(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    assert "int2" not in sent(world)
    assert NEW in args(world)
    assert not any("int2" in each for each in args(world))
    assert world.condition("RolledBack")["status"] == "True"


async def test_an_eviction_in_such_an_edit_is_tried_too(world: World) -> None:
    put_policy(world, quality={"minSamples": 5, "probes": ["StructuredOutput"]})
    engine = engine_spec(maxModelLen=4096)
    edit(world, engine=engine)
    await world.settle()
    edit(world, engine=engine | {"maxNumSeqs": 12}, kvCache={"eviction": STREAMING})
    await world.settle()
    assert not any("StreamingLLM" in each for each in args(world))
    assert world.engines.evictions == {}
    assert only_trial(world)["summary"] == ("Eviction auto -> auto with StreamingLLM of 512 tokens")
    assert only_trial(world)["state"] in ("Pending", "Screening")


async def test_an_edit_that_needs_new_pods_moves_the_trial_to_them(world: World) -> None:
    await ready(world)
    edit(world, **INT8)
    await reach(world, "Running")
    assert fleet(world) == ["int8", "bfloat16"]
    edit(world, **INT8, **FEWER)
    await world.tick()
    world.finish_check(code=0)
    await world.tick()
    # Users are with the pods that are still to be replaced: what was tried on them goes.
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert world.condition("RolledBack")["status"] == "False"
    await roll_out(world)
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert not any("int8" in each for each in args(world))
    await finish(world)
    found = by_verdict(world)
    assert found["Void"]["reason"] == "Superseded"
    assert fleet(world) == ["int8", "int8"]
    assert len(trials(world)) == 2
    verdicts = [each["verdict"] for each in world.status["verdicts"]]
    assert verdicts == ["Void", "Promoted"]


@pytest.mark.parametrize("screening", ["Enabled", "Disabled"])
async def test_a_fleet_that_was_rolled_back_keeps_what_is_in_force(
    world: World, screening: str
) -> None:
    await ready(world)
    put_policy(world, quality={"minSamples": 5, "screening": screening})
    edit(world, kvCache={"dtype": "int2"})
    await finish(world)
    before = len(sent(world))
    edit(world, kvCache={"dtype": "int2"}, **FEWER)
    for _ in range(2):
        await world.settle()
        assert fleet(world) == ["bfloat16", "bfloat16"]
        assert world.condition("RolledBack")["status"] == "True"
    assert NEW in args(world)
    assert not any("int2" in each for each in args(world))
    assert (len(sent(world)), len(trials(world))) == (before, 1)


INT2: dict[str, Any] = {"kvCache": {"dtype": "int2"}}
NEWER = "ghcr.io/kvserving/engine-cpu:0.32.1"


@pytest.mark.parametrize(
    "other",
    [
        {"engine": engine_spec(image=NEWER)},
        {"engine": engine_spec(parallelism={"tensor": 2, "pipeline": 1})},
        {"engine": engine_spec(weightQuantization="fp8")},
        {"engine": engine_spec(extraArgs=["--attention-backend=TRITON_ATTN"])},
        {"model": {"name": "tiny", "uri": "pvc://models/tiny-llama-2"}},
    ],
    ids=["image", "parallelism", "weights", "backend", "model"],
)
async def test_a_verdict_holds_for_the_engines_that_it_is_of(
    world: World, other: dict[str, Any]
) -> None:
    await ready(world)
    edit(world, **INT2)
    assert (await finish(world))["verdict"] == "RolledBack"
    # Others may do well with what these did badly with.
    world.engines.worse["int2"] = 0.0
    edit(world, **INT2, **other)
    await renew(world)
    assert (await finish(world))["verdict"] == "Promoted"
    assert len(formats(world)) == 2
    assert fleet(world) == ["int2", "int2"]
    assert world.condition("RolledBack")["status"] == "False"


async def test_the_former_engines_are_not_tried_again(world: World) -> None:
    await ready(world)
    edit(world, **INT2)
    await finish(world)
    edit(world, **INT2, engine=engine_spec(image=NEWER))
    await renew(world)
    assert (await finish(world))["verdict"] == "RolledBack"
    assert len(formats(world)) == 2
    edit(world, **INT2, engine=engine_spec(image=IMAGE))
    await renew(world)
    await serve(world, 10)
    assert len(formats(world)) == 2
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert world.condition("RolledBack")["status"] == "True"


@pytest.mark.parametrize("by", ["control", "deletion"])
async def test_what_a_person_has_ended_is_not_tried_on_other_engines(world: World, by: str) -> None:
    await ready(world)
    edit(world, **INT8)
    await reach(world, "Running")
    (name,) = trials(world)
    if by == "control":
        world.cluster.objects[(Kind.KVTrial, NAMESPACE, name)]["spec"]["control"] = "RollBack"
    else:
        del world.cluster.objects[(Kind.KVTrial, NAMESPACE, name)]
    await serve(world, 5)
    edit(world, **INT8, engine=engine_spec(image=NEWER))
    await renew(world)
    await serve(world, 10)
    assert len(formats(world)) == int(by == "control")
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert world.condition("RolledBack")["status"] == "True"


async def test_new_pods_start_with_what_was_promoted(world: World) -> None:
    await ready(world)
    edit(world, **INT8)
    await finish(world)
    edit(world, **INT8, **FEWER)
    before = len(sent(world))
    await world.settle()
    await world.settle()
    assert fleet(world) == ["int8", "int8"]
    assert any("int8" in each for each in args(world))
    assert (len(sent(world)), len(trials(world))) == (before, 1)
    assert world.condition("QualityGate")["reason"] == "Passed"


async def test_a_policy_that_is_named_later_leaves_in_force_what_runs(world: World) -> None:
    await ready(world, **INT8)
    assert fleet(world) == ["int8", "int8"]
    edit(world, **INT8, **FEWER)
    await world.settle()
    assert any("int8" in each for each in args(world))
    # What comes on top of it is tried.
    edit(world, kvCache={"dtype": "int4"}, **FEWER, podTemplate={"nodeSelector": {"a": "b"}})
    await world.settle()
    assert any("int8" in each for each in args(world))
    assert fleet(world) == ["int8", "int8"]
    assert only_trial(world)["summary"] == "KVCacheDType int8 -> int4"


@pytest.mark.parametrize(
    ("dtype", "verdict", "runs"),
    [("int8", "Promoted", "int8"), ("int2", "RolledBack", "bfloat16")],
)
async def test_the_first_pods_start_in_16_bits_and_the_format_is_tried(
    world: World, dtype: str, verdict: str, runs: str
) -> None:
    put_policy(world)
    edit(world, kvCache={"dtype": dtype})
    await roll_out(world)
    await world.tick()
    assert not any(dtype in each for each in args(world))
    assert world.condition("Ready")["status"] == "True"
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert world.condition("QualityGate")["reason"] == "TrialRunning"
    assert (await finish(world))["verdict"] == verdict
    assert fleet(world) == [runs, runs]
    assert len(trials(world)) == 1


async def test_the_first_pods_keep_a_16_bit_dtype_that_is_asked_for(world: World) -> None:
    put_policy(world)
    edit(world, kvCache={"dtype": "bfloat16", "eviction": STREAMING})
    await world.settle()
    assert "--kv-cache-dtype=bfloat16" in args(world)
    assert not any("StreamingLLM" in each for each in args(world))


async def test_a_missing_policy_starts_the_first_pods_in_16_bits(world: World) -> None:
    edit(world, **INT8)
    await roll_out(world)
    await world.tick()
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("QualityGate")["reason"] == "PolicyNotFound"
    put_policy(world)
    await reach(world, "Screening")


@pytest.mark.parametrize(("dtype", "runs"), [("int4", "bfloat16"), ("k8v4", "k8v4")])
async def test_a_trial_by_hand_does_not_stand_for_that_of_the_spec(
    world: World, dtype: str, runs: str
) -> None:
    world.engines.offers = (*world.engines.offers, "k8v4")
    world.engines.worse["int4"] = 0.4
    edit(world, **INT8)
    await world.settle()
    put_trial(world, dtype=dtype)
    assert (await finish(world))["verdict"] == ("RolledBack" if runs == "bfloat16" else "Promoted")
    assert fleet(world) == [runs, runs]
    put_policy(world)
    await serve(world)
    summaries = [each["status"]["summary"] for each in trials(world).values()]
    before = "auto" if runs == "bfloat16" else runs
    assert summaries[-1] == f"KVCacheDType {before} -> int8"


async def test_what_engines_cannot_take_live_is_said_and_tried_on_pods_that_can(
    world: World,
) -> None:
    await ready(world)
    reason = "block size: int8 expects a multiple of 16 of at least 32 tokens, got 16"
    world.engines.unavailable["int8"] = reason
    edit(world, **INT8)
    status = await finish(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "NotOffered")
    assert reason in status["message"]
    assert reason in world.condition("RolledBack")["message"]
    assert fleet(world) == ["bfloat16", "bfloat16"]
    world.engines.unavailable.clear()
    edit(world, **INT8, engine=engine_spec(blockSize=64))
    await world.settle()
    assert not any("int8" in each for each in args(world))
    await finish(world)
    assert set(by_verdict(world)) == {"Failed", "Promoted"}
    assert fleet(world) == ["int8", "int8"]


async def test_a_format_that_takes_a_restart_is_not_given_to_everybody(world: World) -> None:
    world.engines.offers = ("auto", "int8")
    await ready(world)
    pods = set(world.engine_pods())
    edit(world, kvCache={"dtype": "fp8_e4m3"})
    status = await finish(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "NotOffered")
    assert "expected one of auto, int8, got fp8_e4m3" in status["message"]
    await world.settle()
    assert set(world.engine_pods()) == pods
    assert world.condition("RolledBack")["status"] == "True"
    # Who wants it without a trial leaves the policy out, and may name it again.
    world.put(replicas=2, kvCache={"dtype": "fp8_e4m3"})
    await world.settle()
    for policy in ({}, GUARDED):
        world.put(replicas=2, kvCache={"dtype": "fp8_e4m3"}, **policy)
        await world.settle()
        assert fleet(world) == ["fp8_e4m3", "fp8_e4m3"]
        assert world.condition("RolledBack")["status"] == "False"
    assert len(trials(world)) == 1


async def test_a_stock_image_under_a_policy_serves_in_16_bits_and_says_why(world: World) -> None:
    put_policy(world)
    stock = engine_spec(plugin="Disabled", image="vllm/vllm-openai-cpu:v0.32.0")
    edit(world, engine=stock, kvCache={"dtype": "fp8_e4m3"})
    await world.settle()
    assert not any("fp8" in each for each in args(world))
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "NotSupported")
    assert "spec.engine.plugin: expected Enabled" in world.condition("RolledBack")["message"]


async def test_new_pods_that_fail_leave_what_is_in_force_and_no_trial(world: World) -> None:
    await ready(world)
    old = set(world.engine_pods())
    edit(world, **INT8, **FEWER)
    await world.tick()
    world.finish_check(code=0)
    await world.tick()
    world.roll()
    for pod in world.engine_pods().values():
        world.crash(pod, times=3, message="no memory")
    await world.settle()
    await serve(world, 5)
    assert world.condition("Degraded")["status"] == "True"
    assert "--max-num-seqs=16" in args(world)
    assert not old & set(world.engine_pods())
    assert (fleet(world), sent(world)) == (["bfloat16", "bfloat16"], [])
    assert set(by_verdict(world)) == {"Void"}
    # The next edit goes its way.
    edit(world, **INT8, engine=engine_spec(maxNumSeqs=8))
    await world.settle()
    await finish(world)
    assert fleet(world) == ["int8", "int8"]


async def test_a_lost_memory_gives_nobody_what_was_not_promoted(world: World) -> None:
    await ready(world)
    edit(world, **INT8)
    await reach(world, "Running")
    del world.cluster.objects[(Kind.ConfigMap, NAMESPACE, f"{NAME}-state")]
    world.new_controller()
    pods = set(world.engine_pods())
    await world.tick()
    assert fleet(world) == ["bfloat16", "bfloat16"]
    assert (await finish(world))["verdict"] == "Promoted"
    assert fleet(world) == ["int8", "int8"]
    # What was promoted stays.
    del world.cluster.objects[(Kind.ConfigMap, NAMESPACE, f"{NAME}-state")]
    world.new_controller()
    for _ in range(3):
        await serve(world)
        assert fleet(world) == ["int8", "int8"]
    assert set(world.engine_pods()) == pods
    assert len(trials(world)) == 1


async def test_a_lost_memory_promotes_no_change_that_all_engines_only_try(world: World) -> None:
    await ready(world)
    put_policy(world, ab={"steps": [100], "minRequests": 4, "minDurationSeconds": 900})
    edit(world, **INT8)
    await reach(world, "Running")
    await serve(world, 2)
    assert fleet(world) == ["int8", "int8"]
    del world.cluster.objects[(Kind.ConfigMap, NAMESPACE, f"{NAME}-state")]
    world.new_controller()
    before = len(sent(world))
    await world.tick()
    assert only_trial(world)["state"] == "Screening"
    assert sent(world)[before:] == ["auto"]


async def test_without_a_policy_new_pods_start_with_the_format(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.put(replicas=2, **INT8, **FEWER)
    await world.settle()
    assert any("int8" in each for each in args(world))
    assert (fleet(world), trials(world)) == (["int8", "int8"], {})


async def test_an_edit_back_to_16_bits_waits_for_no_trial(world: World) -> None:
    await ready(world, **INT8)
    edit(world, **FEWER)
    await world.settle()
    assert not any("int8" in each for each in args(world))
    assert (fleet(world), trials(world)) == (["bfloat16", "bfloat16"], {})


class KilledError(Exception):
    """The end of a process, where a test wants it."""


async def _edit(world: World, before: str) -> None:
    """Ask for a format and other start-up settings, where this is under way already."""
    if before == "Nothing":
        put_policy(world)
    else:
        await ready(world)
    if before == "Trial":
        edit(world, **INT8)
        await reach(world, "Running")
    edit(world, **INT8, **FEWER)


async def _killed(world: World, before: str, kill_at: int) -> int:
    """Make an edit and kill the operator at its n-th write; give how many there were."""
    count = 0

    def on_change(kind: Kind, found: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if kind is Kind.Deployment:
            assert "int8" not in str(found["spec"]["template"])
        if count == kill_at:
            raise KilledError

    await _edit(world, before)
    world.cluster.on_change = on_change
    for _ in range(80):
        try:
            await world.settle(1)
            await serve(world)
        except KilledError:
            world.new_controller()
        found = [trial.get("status", {}) for trial in trials(world).values()]
        states = {status.get("state") for status in found}
        if states == {"Finished"} and found[-1]["verdict"] == "Promoted":
            break
        assert states & {"Running", "Promoting"} or "int8" not in fleet(world, NEW), kill_at
    return count


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("before", ["Nothing", "Engines", "Trial"])
async def test_killed_at_any_write_there_is_one_outcome(
    settings: Settings, before: str, part: int
) -> None:
    kill_at, writes = part, part
    while kill_at <= writes:
        world = World(settings)
        writes = await _killed(world, before, kill_at)
        await world.http.aclose()
        verdicts = [trial["status"]["verdict"] for trial in trials(world).values()]
        assert verdicts == (["Void", "Promoted"] if before == "Trial" else ["Promoted"]), kill_at
        assert fleet(world) == ["int8", "int8"], kill_at
        assert NEW in args(world), kill_at
        assert len(world.said("TrialPromoted")) <= 1, kill_at
        kill_at += 4
    assert writes > 30
