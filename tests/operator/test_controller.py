"""The whole look, from a spec to children, status and live changes, on a cluster in memory."""

import json
from typing import Any

import pytest

from kvserving_operator.errors import ApiUnavailable, LeaseLost
from kvserving_operator.kinds import Kind
from kvserving_operator.render.names import PREFLIGHT_CONTAINER
from kvserving_operator.settings import Settings
from operatorkit.specs import NAME, NAMESPACE, engine_spec
from operatorkit.world import World, set_condition

REFUSAL = json.dumps(
    {"ok": False, "field": "extraArgs", "reason": "UnknownFlag", "message": "no --such-flag"}
)


def revision(world: World) -> str:
    label: str = world.deployment["spec"]["template"]["metadata"]["labels"][
        "kvserving.dev/revision"
    ]
    return label


async def test_a_new_serving_gets_its_children_and_becomes_ready(world: World) -> None:
    world.put()
    await world.settle()
    assert {NAME} == set(world.cluster.of(Kind.Deployment))
    assert {NAME, f"{NAME}-engines"} == set(world.cluster.of(Kind.Service))
    assert {f"{NAME}-token"} == set(world.cluster.of(Kind.Secret))
    for kind in (Kind.ServiceAccount, Kind.PodDisruptionBudget, Kind.NetworkPolicy):
        assert {NAME} == set(world.cluster.of(kind))
    assert {} == world.checks()
    assert "True" == world.condition("Ready")["status"]
    assert ("False", "RolloutComplete") == (
        world.condition("Progressing")["status"],
        world.condition("Progressing")["reason"],
    )
    assert "False" == world.condition("Degraded")["status"]
    assert "bfloat16" == world.status["effective"]["kvCacheDtype"]
    assert 16 == world.status["effective"]["maxActiveSeqs"]
    assert 1 == world.status["readyReplicas"]


async def test_every_child_goes_with_its_serving(world: World) -> None:
    world.put()
    await world.tick()
    for (kind, _, _), child in world.cluster.objects.items():
        if kind is not Kind.KVServing:
            assert "serving-uid" == child["metadata"]["ownerReferences"][0]["uid"]
            assert NAME == child["metadata"]["labels"]["kvserving.dev/serving"]


@pytest.mark.parametrize(
    ("replicas", "rollout", "expected"),
    [
        (1, {}, "no engine answers from when the old pods leave"),
        (1, {"maxSurge": 1, "maxUnavailable": 0}, "at least 1 of 1 engines answer"),
        (3, {}, "at least 2 of 3 engines answer"),
    ],
)
async def test_what_users_are_to_expect_is_said_before_a_pod_is_replaced(
    world: World, replicas: int, rollout: dict[str, int], expected: str
) -> None:
    world.put(replicas=replicas, rollout=rollout)
    await world.settle()
    before = revision(world)
    world.put(replicas=replicas, rollout=rollout, engine=engine_spec(maxNumSeqs=8))
    await world.tick()
    assert before == revision(world)
    assert "PreflightRunning" == world.condition("Progressing")["reason"]
    assert expected in world.condition("Progressing")["message"]


async def test_the_check_comes_before_the_first_pod(world: World) -> None:
    world.put()
    await world.tick()
    assert 1 == len(world.checks())
    assert {} == world.cluster.of(Kind.Deployment)
    # Nobody is served yet who could be told what to expect.
    assert "answer" not in world.condition("Progressing")["message"]
    assert "PreflightRunning" == world.condition("Progressing")["reason"]


async def test_a_slow_check_does_not_hold_the_first_pod_up(world: World) -> None:
    world.put()
    await world.tick()
    await world.tick(16)
    await world.tick()
    assert {NAME} == set(world.cluster.of(Kind.Deployment))
    assert 1 == len(world.checks())
    world.finish_check(0)
    await world.tick()
    assert {} == world.checks()
    assert "Passed" == world.status["preflight"]["state"]


async def test_a_late_refusal_of_the_first_template_stops_its_pods(world: World) -> None:
    world.put()
    await world.tick()
    await world.tick(16)
    world.finish_check(2, REFUSAL, "Error")
    await world.tick()
    assert 0 == world.deployment["spec"]["replicas"]
    assert "PreflightFailed" == world.condition("Degraded")["reason"]
    assert "--such-flag" in world.condition("Degraded")["message"]
    assert "False" == world.condition("Ready")["status"]


async def test_a_refused_edit_leaves_the_pods_alone(world: World) -> None:
    world.put()
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    world.put(engine=engine_spec(extraArgs=["--such-flag"]))
    await world.tick()
    world.finish_check(2, REFUSAL, "Error")
    await world.tick()
    await world.tick()
    assert pods == set(world.engine_pods())
    assert before == revision(world)
    assert {} == world.checks()
    degraded = world.condition("Degraded")
    assert ("True", "PreflightFailed") == (degraded["status"], degraded["reason"])
    assert "extraArgs: no --such-flag" == degraded["message"]
    ready = world.condition("Ready")
    assert ("True", 1) == (ready["status"], ready["observedGeneration"])
    assert ["extraArgs: no --such-flag"] == world.said("PreflightFailed")

    # Back to the former spec: nothing rolls, nothing is checked again.
    world.put()
    await world.tick()
    await world.tick()
    assert pods == set(world.engine_pods())
    assert "False" == world.condition("Degraded")["status"]
    assert 3 == world.condition("Ready")["observedGeneration"]


async def test_an_edit_to_a_claim_that_does_not_exist_waits_and_leaves_the_pods_alone(
    world: World,
) -> None:
    world.put()
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    world.put(model={"name": "m", "uri": "pvc://modelz/tiny"})
    await world.tick()
    (check,) = world.checks().values()
    missing = '0/1 nodes are available: persistentvolumeclaim "modelz" not found. not found'
    set_condition(check, "PodScheduled", "False", reason="Unschedulable", message=missing)
    for seconds in (5, 30, 600, 7200):
        await world.tick(seconds)
        assert pods == set(world.engine_pods())
        assert before == revision(world)
        degraded = world.condition("Degraded")
        assert ("True", "Unschedulable") == (degraded["status"], degraded["reason"])
        assert '"modelz" not found' in degraded["message"]
        assert "True" == world.condition("Ready")["status"]

    # The claim is made, the check is scheduled and passes.
    world.finish_check(0)
    await world.tick()
    await world.tick()
    assert before != revision(world)


@pytest.mark.parametrize("plugin", ["Enabled", "Disabled"])
async def test_an_edit_to_a_compile_cache_that_does_not_exist_waits_too(
    world: World, plugin: str
) -> None:
    # No check pod mounts it, so that only the operator can notice.
    world.put(engine=engine_spec(plugin=plugin))
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    world.put(engine=engine_spec(plugin=plugin, compileCache={"claimName": "kernelz"}))
    for _ in range(4):
        await world.settle()
    assert pods == set(world.engine_pods())
    assert before == revision(world)
    degraded = world.condition("Degraded")
    assert ("True", "Unschedulable") == (degraded["status"], degraded["reason"])
    assert (
        "spec.engine.compileCache.claimName: PersistentVolumeClaim kernelz" in (degraded["message"])
    )
    assert 1 == len(world.said("Unschedulable"))

    world.cluster.objects[(Kind.PersistentVolumeClaim, NAMESPACE, "kernelz")] = {}
    await world.settle()
    assert before != revision(world)
    assert "False" == world.condition("Degraded")["status"]


async def test_an_edit_that_names_a_secret_that_does_not_exist_is_refused(world: World) -> None:
    world.put()
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    world.put(engine=engine_spec(extraArgs=["--seed=1"]))
    await world.tick()
    (check,) = world.checks().values()
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
    check["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": PREFLIGHT_CONTAINER, "state": {"waiting": waiting}}],
    }
    await world.tick(30)
    await world.tick(600)
    assert pods == set(world.engine_pods())
    assert before == revision(world)
    degraded = world.condition("Degraded")
    assert ("True", "PreflightFailed") == (degraded["status"], degraded["reason"])
    assert 'secret "hub" not found' in degraded["message"]


async def test_a_refused_spec_is_judged_again_when_the_user_asks(world: World) -> None:
    world.put()
    await world.settle()
    world.put(engine=engine_spec(extraArgs=["--such-flag"]))
    await world.tick()
    world.finish_check(2, REFUSAL, "Error")
    await world.tick()
    await world.tick()
    assert {} == world.checks()
    world.put(
        engine=engine_spec(extraArgs=["--such-flag"]), annotations={"kvserving.dev/retry": "1"}
    )
    await world.tick()
    assert 1 == len(world.checks())
    await world.settle()
    assert "--such-flag" in world.deployment["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    "change",
    [
        {"engine": engine_spec(maxNumSeqs=12)},
        {"engine": engine_spec(extraArgs=["--seed=7"])},
        {"kvCache": {"dtype": "fp8_e4m3"}},
        {"slo": {"ttftMilliseconds": 800}},
    ],
    ids=["max-num-seqs", "extra-arg", "dtype", "slo"],
)
async def test_an_edit_of_the_pod_rolls_exactly_once(world: World, change: dict[str, Any]) -> None:
    world.put(replicas=2)
    await world.settle()
    before = world.deployment["metadata"]["generation"]
    world.put(replicas=2, **change)
    await world.settle()
    await world.settle()
    assert before + 1 == world.deployment["metadata"]["generation"]
    assert "RolloutComplete" == world.condition("Progressing")["reason"]


@pytest.mark.parametrize(
    "change",
    [
        {"tuning": {"mode": "Recommend"}},
        {"tuning": {"mode": "Auto", "cooldown": {"liveSeconds": 30}}},
        {"monitoring": {"scrapeIntervalSeconds": 10}},
        {"kvCache": {"dtype": "auto"}},
        {"slo": {"percentile": 90}},
    ],
    ids=["mode", "cooldown", "monitoring", "default-spelled-out", "percentile"],
)
async def test_other_edits_roll_nothing(world: World, change: dict[str, Any]) -> None:
    world.put()
    await world.settle()
    before = world.deployment["spec"]
    world.put(**change)
    await world.settle()
    assert before == world.deployment["spec"]


async def test_scaling_changes_replicas_and_no_template(world: World) -> None:
    world.put()
    await world.settle()
    before = world.deployment["spec"]["template"]
    world.put(replicas=3)
    await world.settle()
    assert 3 == world.deployment["spec"]["replicas"]
    assert before == world.deployment["spec"]["template"]
    assert 3 == world.status["readyReplicas"]


async def test_another_operator_version_rolls_nothing(world: World) -> None:
    world.put()
    await world.settle()
    before = world.deployment["spec"]
    # Its defaults differ in everything that shapes a pod: images, drain delay, shared memory.
    newer = Settings(
        engine_image_cpu="ghcr.io/kvserving/engine-cpu:0.40.0",
        engine_version="0.40.0",
        endpoint_propagation_seconds=40,
        shm_size="9Gi",
    )
    world.new_controller(newer)
    await world.settle()
    assert before == world.deployment["spec"]

    # A later edit keeps the image that is in use; only naming one changes it.
    world.put(engine=engine_spec(maxNumSeqs=8))
    await world.settle()
    container = world.deployment["spec"]["template"]["spec"]["containers"][0]
    assert "ghcr.io/kvserving/engine-cpu:0.32.0" == container["image"]
    world.put(engine=engine_spec(maxNumSeqs=8, image="example.com/engine:0.40.0"))
    await world.settle()
    container = world.deployment["spec"]["template"]["spec"]["containers"][0]
    assert "example.com/engine:0.40.0" == container["image"]


async def test_a_lost_memory_rolls_nothing(world: World) -> None:
    world.put()
    await world.settle()
    before = world.deployment["spec"]["template"]
    del world.cluster.objects[(Kind.ConfigMap, NAMESPACE, f"{NAME}-state")]
    world.new_controller(Settings(shm_size="9Gi"))
    await world.settle()
    assert before == world.deployment["spec"]["template"]
    assert f"{NAME}-state" in world.cluster.of(Kind.ConfigMap)


@pytest.mark.parametrize("looks_before_kill", range(6))
async def test_a_killed_operator_reaches_the_same_end(world: World, looks_before_kill: int) -> None:
    world.put()
    await world.settle(looks_before_kill)
    world.new_controller()
    await world.settle(8)
    assert "True" == world.condition("Ready")["status"]
    assert 1 == world.cluster.count("create", Kind.Secret)
    assert 1 == world.cluster.count("create", Kind.Pod)
    assert 1 == world.deployment["metadata"]["generation"]
    assert {} == world.checks()


async def test_a_template_that_crashes_is_taken_back(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    good = revision(world)
    world.put(replicas=2, engine=engine_spec(extraArgs=["--breaks"]))
    await world.tick()
    world.finish_check(0)
    await world.tick()
    bad = revision(world)
    assert good != bad
    world.roll()
    pod = next(iter(world.engine_pods().values()))
    world.crash(pod, 2, "ValueError: not yet")
    await world.tick()
    assert bad == revision(world)
    world.crash(pod, 3, "Traceback\nValueError: no kernel for this\nbye")
    await world.tick()
    assert good == revision(world)
    assert "RolloutFailed" == world.condition("Degraded")["reason"]
    assert "ValueError: no kernel for this" in world.condition("Degraded")["message"]
    await world.settle()
    assert good == revision(world)
    assert "True" == world.condition("Ready")["status"]
    assert "True" == world.condition("Degraded")["status"]

    # It stays taken back after a restart of a newer operator too.
    world.new_controller(Settings(shm_size="9Gi"))
    await world.settle()
    assert good == revision(world)


async def test_a_first_template_that_crashes_runs_no_pods(world: World) -> None:
    world.put()
    await world.tick()
    world.finish_check(0)
    await world.tick()
    world.roll()
    world.crash(next(iter(world.engine_pods().values())), 3, "RuntimeError: no such device")
    await world.tick()
    await world.tick()
    assert 0 == world.deployment["spec"]["replicas"]
    assert "EngineCrashed" == world.condition("Degraded")["reason"]
    assert "RuntimeError: no such device" in world.condition("Degraded")["message"]
    world.roll()
    world.put(engine=engine_spec(maxNumSeqs=4))
    await world.settle()
    assert 1 == world.deployment["spec"]["replicas"]
    assert "True" == world.condition("Ready")["status"]


async def test_a_first_template_that_crashed_is_tried_again_when_asked(world: World) -> None:
    world.put()
    await world.tick()
    world.finish_check(0)
    await world.tick()
    world.roll()
    world.crash(next(iter(world.engine_pods().values())), 3, "CUDA out of memory")
    await world.tick()
    world.roll()
    assert 0 == world.deployment["spec"]["replicas"]
    world.put(annotations={"kvserving.dev/retry": "again"})
    await world.settle()
    assert 1 == world.deployment["spec"]["replicas"]
    assert "True" == world.condition("Ready")["status"]


async def test_an_old_template_that_crashes_later_is_not_taken_back(world: World) -> None:
    world.put()
    await world.settle()
    before = revision(world)
    world.crash(next(iter(world.engine_pods().values())), 7, "RuntimeError: gone", "Error")
    await world.tick()
    assert before == revision(world)
    assert 1 == world.deployment["spec"]["replicas"]
    assert "EngineCrashed" == world.condition("Degraded")["reason"]


async def test_no_free_gpu_is_said_at_once(world: World) -> None:
    world.put(engine={"accelerator": "NVIDIA", "maxNumSeqs": 16})
    await world.tick()
    world.finish_check(0)
    await world.tick()
    world.roll()
    pod = next(iter(world.engine_pods().values()))
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    set_condition(pod, "PodScheduled", "False", reason="Unschedulable", message=message)
    await world.tick()
    degraded = world.condition("Degraded")
    assert ("True", "Unschedulable") == (degraded["status"], degraded["reason"])
    assert message in degraded["message"]


async def test_an_edit_by_hand_is_undone(world: World) -> None:
    world.put()
    await world.settle()
    template = world.deployment["spec"]["template"]
    edited = json.loads(json.dumps(world.deployment))
    edited["spec"]["template"]["spec"]["containers"][0]["args"] = ["--by-hand"]
    await world.cluster.apply(edited)
    await world.tick()
    assert template == world.deployment["spec"]["template"]
    del world.cluster.objects[(Kind.Service, NAMESPACE, NAME)]
    world.controller.touch(NAMESPACE, NAME)
    await world.tick()
    assert NAME in world.cluster.of(Kind.Service)


async def test_the_token_is_made_once(world: World) -> None:
    world.put()
    await world.settle()
    token = world.cluster.of(Kind.Secret)[f"{NAME}-token"]["data"]["token"]
    world.new_controller()
    await world.settle(20)
    assert token == world.cluster.of(Kind.Secret)[f"{NAME}-token"]["data"]["token"]
    assert 1 == len(world.engines.tokens)


async def test_nothing_secret_is_shown(world: World) -> None:
    world.put()
    await world.settle()
    token = next(iter(world.engines.tokens)).removeprefix("Bearer ")
    shown = json.dumps([world.status, [event.message for event in world.events]])
    assert token
    assert token not in shown
    memory = world.cluster.of(Kind.ConfigMap)[f"{NAME}-state"]["data"]
    assert token not in json.dumps(memory)


async def test_status_is_written_only_when_it_changes(world: World) -> None:
    world.put()
    await world.settle(10)
    before = world.cluster.count("status", Kind.KVServing)
    for _ in range(10):
        await world.tick()
    assert before == world.cluster.count("status", Kind.KVServing)


async def test_a_settled_serving_changes_nothing_between_resyncs(world: World) -> None:
    world.put()
    await world.settle(10)
    await world.tick(61)
    before = list(world.cluster.changes)
    for _ in range(10):
        await world.tick()
    assert before == world.cluster.changes


async def test_a_spec_that_breaks_a_rule_is_said_and_the_pods_go_on(world: World) -> None:
    world.put()
    await world.settle()
    before = world.deployment["spec"]
    world.put(engine=engine_spec(maxNumSeqs=0))
    await world.tick()
    assert "InvalidSpec" == world.condition("Degraded")["reason"]
    assert "spec.engine.maxNumSeqs" in world.condition("Degraded")["message"]
    assert "True" == world.condition("Ready")["status"]
    assert before == world.deployment["spec"]


async def test_a_missing_policy_is_named(world: World) -> None:
    world.put(rollbackPolicyRef={"name": "strict"})
    await world.settle()
    gate = world.condition("QualityGate")
    assert "PolicyNotFound" == gate["reason"]
    assert "strict" in gate["message"]
    assert "True" == world.condition("Ready")["status"]


async def test_without_the_lease_nothing_is_changed(world: World) -> None:
    world.put()
    world.fence = LeaseLost("another operator holds it")
    with pytest.raises(LeaseLost):
        await world.tick()
    assert [] == world.cluster.changes
    assert [] == world.engines.patches


async def test_liveness_ages_while_looks_fail(world: World) -> None:
    assert 0 == world.controller.seconds_since_success
    world.put()
    await world.tick()
    world.cluster.broken = True
    for _ in range(20):
        with pytest.raises(ApiUnavailable):
            await world.tick()
    assert 100 == world.controller.seconds_since_success
    world.cluster.broken = False
    await world.tick()
    assert 0 == world.controller.seconds_since_success


async def test_a_deleted_serving_is_forgotten(world: World) -> None:
    world.put()
    await world.settle()
    world.controller.forget(NAMESPACE, NAME)
    world.clock.advance(1000)
    assert 0 == world.controller.seconds_since_success
    names = {sample.name for metric in world.metrics.registry.collect() for sample in metric.samples
             if sample.labels.get("name") == NAME}  # fmt: skip
    assert set() == names


async def test_one_that_is_being_deleted_gets_nothing_more(world: World) -> None:
    world.put()
    body = world.cluster.of(Kind.KVServing)[NAME]
    body["metadata"]["deletionTimestamp"] = world.clock.timestamp
    await world.tick()
    assert [] == world.cluster.changes


async def test_a_stock_image_needs_no_check_and_has_no_gate(world: World) -> None:
    world.put(engine=engine_spec(plugin="Disabled", image="vllm/vllm-openai-cpu:v0.32.0"))
    await world.tick()
    assert {} == world.checks()
    await world.settle()
    template = world.deployment["spec"]["template"]["spec"]
    assert "readinessGates" not in template
    assert "True" == world.condition("Ready")["status"]
    assert "NoRuntimeAPI" == world.condition("TuningActive")["reason"]
