"""What users read: conditions and their generations, reasons, pods, decisions."""

import json
from typing import Any

import httpx
import pytest

from kvserving_operator.api.reasons import Reason
from kvserving_operator.kinds import Kind
from kvserving_operator.status import parse_status
from operatorkit.specs import NAME, NAMESPACE, engine_spec
from operatorkit.world import World, set_condition

TYPES = {
    "Ready", "Progressing", "Degraded", "MetricsAvailable", "QualityGate", "TuningActive",
    "RolledBack", "Routed",
}  # fmt: skip


async def test_every_condition_is_there_from_the_first_look(world: World) -> None:
    world.put()
    await world.tick()
    assert TYPES == {c["type"] for c in world.status["conditions"]}
    known = {reason.value for reason in Reason}
    assert {c["reason"] for c in world.status["conditions"]} <= known


async def test_the_reason_column_says_what_to_know_first(world: World) -> None:
    world.put()
    await world.tick()
    assert "PreflightRunning" == world.status["reason"]
    await world.settle()
    assert "Serving" == world.status["reason"]
    world.put(engine=engine_spec(extraArgs=["--no-such-flag"]))
    await world.tick()
    refusal = {"ok": False, "field": "extraArgs", "reason": "UnknownFlag", "message": "unknown"}
    world.finish_check(2, json.dumps(refusal), "Error")
    await world.tick()
    assert ("True", "PreflightFailed") == (
        world.condition("Ready")["status"],
        world.status["reason"],
    )
    # A spec that breaks a rule, as an older API server would let through.
    world.put(engine=engine_spec(maxNumSeqs=0))
    await world.tick()
    assert "InvalidSpec" == world.status["reason"]


async def test_scale_reads_replicas_and_selector(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    assert (2, 2, 2) == tuple(
        world.status[key] for key in ("replicas", "readyReplicas", "updatedReplicas")
    )
    labels = next(iter(world.engine_pods().values()))["metadata"]["labels"]
    selector = dict(part.split("=") for part in world.status["selector"].split(","))
    assert selector.items() <= labels.items()
    assert f"http://{NAME}.{NAMESPACE}.svc:8000/v1" == world.status["endpoint"]


async def test_part_of_the_engines_is_still_a_service(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    set_condition(next(iter(world.engine_pods().values())), "Ready", "False")
    await world.tick()
    ready = world.condition("Ready")
    assert ("True", "PartiallyReady") == (ready["status"], ready["reason"])
    assert "1 of 2" in ready["message"]


async def test_zero_replicas_is_the_users_own_wish(world: World) -> None:
    world.put()
    await world.settle()
    world.put(replicas=0)
    await world.settle()
    assert "ScaledToZero" == world.condition("Ready")["reason"]
    assert "False" == world.condition("Degraded")["status"]
    assert "effective" not in world.status
    assert 0 == world.deployment["spec"]["replicas"]
    world.put(replicas=1)
    await world.settle()
    assert "True" == world.condition("Ready")["status"]


async def test_ready_speaks_of_the_generation_that_serves(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.put(replicas=2, engine=engine_spec(maxNumSeqs=8))
    await world.tick()
    assert (1, 2) == (
        world.condition("Ready")["observedGeneration"],
        world.condition("Progressing")["observedGeneration"],
    )
    await world.settle()
    assert 2 == world.condition("Ready")["observedGeneration"]


async def test_an_image_that_cannot_be_had_is_named(world: World) -> None:
    world.put(engine=engine_spec(plugin="Disabled", image="example.com/none:0.1"))
    await world.tick()
    world.roll()
    pod = next(iter(world.engine_pods().values()))
    pod["status"]["containerStatuses"] = [
        {"name": "engine", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    ]
    await world.tick()
    degraded = world.condition("Degraded")
    assert ("True", "ImagePullFailed") == (degraded["status"], degraded["reason"])
    assert "not found" in degraded["message"]
    assert "Failed" == world.status["pods"][0]["state"]


async def test_waiting_for_a_leaving_engines_gpu_is_no_fault(world: World) -> None:
    world.put()
    await world.settle()
    (old,) = world.engine_pods().values()
    old["metadata"]["deletionTimestamp"] = world.clock.timestamp
    set_condition(old, "Ready", "False")
    world.add_pod()
    new = list(world.engine_pods().values())[-1]
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    set_condition(new, "PodScheduled", "False", reason="Unschedulable", message=message)
    await world.tick(30)
    assert "False" == world.condition("Degraded")["status"]
    assert "leaving" in world.condition("Ready")["message"]
    world.remove(old["metadata"]["name"])
    await world.tick()
    assert "Unschedulable" == world.condition("Degraded")["reason"]
    for _ in range(3):
        await world.tick()
    assert 1 == len(world.said("Unschedulable"))
    assert message in world.said("Unschedulable")[0]


async def test_an_engine_without_the_runtime_api_is_said(world: World) -> None:
    world.put()
    await world.settle()

    def no_plugin(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"detail": "Not Found"})

    world.http = httpx.AsyncClient(transport=httpx.MockTransport(no_plugin), trust_env=False)
    world.new_controller()
    await world.tick()
    assert "NoRuntimeAPI" == world.condition("TuningActive")["reason"]
    await world.http.aclose()


@pytest.mark.parametrize("down", [False, True])
async def test_metrics_that_cannot_be_read_are_said(world: World, down: bool) -> None:
    world.put()
    await world.settle()
    assert "True" == world.condition("MetricsAvailable")["status"]
    if down:
        world.engines.down = set(world.engines.caps)
        await world.tick()
        found = world.condition("MetricsAvailable")
        assert ("False", "MetricsMissing") == (found["status"], found["reason"])
        assert NAME in found["message"]
        assert "WaitingForMetrics" == world.condition("TuningActive")["reason"]
        assert "bfloat16" == world.status["effective"]["kvCacheDtype"]


async def test_capacity_is_what_the_engine_reports(world: World) -> None:
    world.put()
    await world.settle()
    capacity: dict[str, Any] = world.status["capacity"]
    assert (8192, 128, 64, "2880.5", "8") == tuple(
        capacity[key]
        for key in ("kvCacheTokens", "blockSize", "blocks", "bytesPerToken", "maxConcurrency")
    )


async def test_every_status_written_follows_the_schema(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.judge.next_cap = 9
    await world.settle()
    body = world.cluster.of(Kind.KVServing)[NAME]
    assert body["status"] == parse_status(body).to_api()


def test_a_status_that_cannot_be_read_counts_as_lost() -> None:
    assert () == parse_status({"status": {"conditions": "nonsense"}}).conditions
    assert () == parse_status({}).conditions
