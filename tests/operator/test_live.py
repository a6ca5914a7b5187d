"""Edits of `spec.kvCache` reach engines that run, pod by pod, without a roll-out."""

from typing import Any

import pytest

from kvserving_operator.kinds import Kind
from kvserving_operator.live import KVSettings, Refusal, offered, why_not_offered
from kvserving_operator.render.names import SETTINGS_GATE
from operatorkit.specs import NAME, NAMESPACE, engine_spec
from operatorkit.world import World

INT4 = {"dtype": "int4"}


def revision(world: World) -> str:
    labels: dict[str, str] = world.deployment["spec"]["template"]["metadata"]["labels"]
    return labels["kvserving.dev/revision"]


def gate(pod: dict[str, Any]) -> dict[str, str]:
    found: list[dict[str, str]] = pod["status"].get("conditions", [])
    return next(c for c in found if c["type"] == SETTINGS_GATE)


def asked(world: World) -> list[tuple[str, str]]:
    """Engines that were told to switch, and to what."""
    patches = world.engines.patches
    return [(host, body["kv_cache_dtype"]) for host, body in patches if "kv_cache_dtype" in body]


def restart(world: World, pod: dict[str, Any], container: str) -> None:
    """Let a pod's container end and another one load the model."""
    world.engines.dtypes.pop(pod["status"]["podIP"], None)
    world.come_up(pod, container)


async def test_an_edit_of_the_dtype_changes_engines_and_no_pod(world: World) -> None:
    world.put()
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    world.put(kvCache=INT4)
    await world.settle()
    assert (pods, before) == (set(world.engine_pods()), revision(world))
    assert [("10.0.0.1", "int4")] == asked(world)
    assert "int4" == world.status["effective"]["kvCacheDtype"]
    assert 29184 == world.status["capacity"]["kvCacheTokens"]
    assert ("False", "RolloutComplete") == (
        world.condition("Progressing")["status"],
        world.condition("Progressing")["reason"],
    )
    assert 2 == world.condition("Ready")["observedGeneration"]
    (said,) = world.said("SettingChanged")
    assert "bfloat16 -> int4, room for 8192 -> 29184 tokens" in said

    world.put()
    await world.settle()
    assert (pods, before) == (set(world.engine_pods()), revision(world))
    assert [("10.0.0.1", "int4"), ("10.0.0.1", "auto")] == asked(world)
    assert "bfloat16" == world.status["effective"]["kvCacheDtype"]


async def test_no_pod_leaves_the_service_for_it(world: World) -> None:
    world.put()
    await world.settle()
    world.put(kvCache=INT4)
    for _ in range(4):
        await world.tick()
        assert {"True"} == {gate(pod)["status"] for pod in world.engine_pods().values()}


async def test_serving_pods_change_one_at_a_time(world: World) -> None:
    world.put(replicas=3)
    await world.settle()
    world.put(replicas=3, kvCache=INT4)
    for done in (1, 2):
        await world.tick()
        assert done == len(asked(world))
        assert "Mixed" == world.status["effective"]["kvCacheDtype"]
        progressing = world.condition("Progressing")
        assert ("True", "ApplyingSettings") == (progressing["status"], progressing["reason"])
        assert f"{done} of 3 engines run with int4" == progressing["message"]
    await world.tick()
    await world.tick()
    assert 3 == len(asked(world))
    assert "int4" == world.status["effective"]["kvCacheDtype"]
    assert "False" == world.condition("Progressing")["status"]


async def test_a_container_that_starts_anew_gets_the_settings_before_it_is_ready(
    world: World,
) -> None:
    world.put()
    await world.settle()
    world.put(kvCache=INT4)
    await world.settle()
    (pod,) = world.engine_pods().values()
    world.engines.down.add("10.0.0.1")
    restart(world, pod, "c2")
    await world.tick()
    assert "False" == gate(pod)["status"]
    assert "kvCache=int4 has not been applied yet" == gate(pod)["message"]
    world.engines.down.clear()
    await world.tick()
    assert "int4" == world.engines.dtypes["10.0.0.1"]
    assert "True" == gate(pod)["status"]

    # The same for a pod that takes another's place.
    world.remove(pod["metadata"]["name"])
    world.roll()
    (new,) = world.engine_pods().values()
    await world.tick()
    assert "False" == gate(new)["status"]
    world.come_up(new)
    await world.tick()
    assert ("int4", "True") == (world.engines.dtypes["10.0.0.2"], gate(new)["status"])


async def test_an_engine_that_cannot_is_asked_once_and_serves_on(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.engines.failing["10.0.0.1"] = "int4: no memory; bfloat16 is in force again"
    world.put(replicas=2, kvCache=INT4)
    await world.settle(12)
    assert [("10.0.0.1", "int4")] == asked(world)
    degraded = world.condition("Degraded")
    assert ("True", "SettingsRefused") == (degraded["status"], degraded["reason"])
    assert "spec.kvCache: int4: pod chat-1: int4: no memory" in degraded["message"]
    assert 1 == len(world.said("SettingsRefused"))
    assert "bfloat16" == world.status["effective"]["kvCacheDtype"]
    assert "True" == world.condition("Ready")["status"]
    assert {"True"} == {gate(pod)["status"] for pod in world.engine_pods().values()}

    # Neither is it by another operator process, but when a user asks for it.
    world.new_controller()
    await world.settle()
    assert 1 == len(asked(world))
    world.engines.failing.clear()
    world.put(replicas=2, kvCache=INT4, annotations={"kvserving.dev/retry": "1"})
    await world.settle()
    assert "int4" == world.status["effective"]["kvCacheDtype"]
    assert "False" == world.condition("Degraded")["status"]


async def test_a_former_value_ends_the_complaint(world: World) -> None:
    world.put()
    await world.settle()
    world.engines.failing["10.0.0.1"] = "no memory"
    world.put(kvCache=INT4)
    await world.settle()
    assert "True" == world.condition("Degraded")["status"]
    world.put()
    await world.settle()
    assert "False" == world.condition("Degraded")["status"]
    assert 1 == len(asked(world))


async def test_an_engine_that_ends_over_it_does_not_crash_over_and_over(world: World) -> None:
    world.put()
    await world.settle()
    (pod,) = world.engine_pods().values()
    world.engines.dying.add("10.0.0.1")
    world.put(kvCache=INT4)
    await world.tick()
    for container in ("c2", "c2", "c3", "c3"):
        restart(world, pod, container)
        await world.tick()
    assert [("10.0.0.1", "int4")] == asked(world)
    assert "its engine ended" in world.condition("Degraded")["message"]
    assert "True" == gate(pod)["status"]


async def test_a_lost_answer_is_no_refusal(world: World) -> None:
    world.put()
    await world.settle()
    world.engines.dying.add("10.0.0.1")
    world.put(kvCache=INT4)
    await world.tick()
    assert "False" == world.condition("Degraded")["status"]
    world.engines.dying.clear()
    await world.settle()
    assert "int4" == world.status["effective"]["kvCacheDtype"]


@pytest.mark.parametrize(
    ("name", "kv_cache"),
    [
        ("int4", INT4),
        ("StreamingLLM", {"eviction": {"policy": "StreamingLLM", "windowTokens": 512}}),
    ],
)
async def test_what_engines_say_they_cannot_have_rolls_no_pod_and_is_told_with_the_reason(
    world: World, name: str, kv_cache: dict[str, Any]
) -> None:
    # Another engine started with it would end at once.
    world.engines.unavailable[name] = "no room for one request"
    world.put(replicas=2)
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    world.put(replicas=2, kvCache=kv_cache)
    await world.settle(12)
    assert (pods, before) == (set(world.engine_pods()), revision(world))
    assert {} == world.checks()
    degraded = world.condition("Degraded")
    assert ("True", "SettingsRefused") == (degraded["status"], degraded["reason"])
    assert f"{name}: no room for one request" in degraded["message"]
    assert "True" == world.condition("Ready")["status"]
    # One engine is asked, once.
    patches = [
        body for _, body in world.engines.patches if body.keys() & {"kv_cache_dtype", "eviction"}
    ]
    assert 1 == len(patches)


async def test_what_an_engine_does_not_take_live_rolls_pods(world: World) -> None:
    world.engines.offers = ()
    world.put()
    await world.settle()
    before = revision(world)
    world.put(kvCache=INT4)
    await world.settle()
    assert before != revision(world)
    assert [] == asked(world)


async def test_the_next_roll_out_starts_with_what_is_in_force(world: World) -> None:
    world.put()
    await world.settle()
    world.put(kvCache=INT4)
    await world.settle()
    world.put(kvCache=INT4, engine=engine_spec(maxNumSeqs=8))
    await world.tick()
    world.finish_check(0)
    await world.tick()
    args = world.deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert any("int4" in arg for arg in args)


async def test_losing_the_memory_rolls_no_pod(world: World) -> None:
    world.put()
    await world.settle()
    world.put(kvCache=INT4)
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    del world.cluster.objects[(Kind.ConfigMap, NAMESPACE, f"{NAME}-state")]
    world.new_controller()
    await world.settle()
    assert (pods, before) == (set(world.engine_pods()), revision(world))
    assert {} == world.checks()
    assert 1 == len(asked(world))
    (pod,) = world.engine_pods().values()
    restart(world, pod, "c2")
    await world.settle()
    assert "int4" == world.engines.dtypes["10.0.0.1"]


async def test_a_refused_edit_leaves_the_settings_in_force(world: World) -> None:
    world.put()
    await world.settle()
    world.put(kvCache=INT4)
    await world.settle()
    world.put(kvCache={"dtype": "int8"}, engine=engine_spec(extraArgs=["--such-flag"]))
    await world.tick()
    world.finish_check(2, '{"ok": false, "field": "extraArgs", "message": "no"}', "Error")
    await world.settle()
    assert [("10.0.0.1", "int4")] == asked(world)
    (pod,) = world.engine_pods().values()
    restart(world, pod, "c2")
    await world.settle()
    assert "int4" == world.engines.dtypes["10.0.0.1"]
    assert "PreflightFailed" == world.condition("Degraded")["reason"]


async def test_pods_that_never_worked_do_not_hold_an_edit_up(world: World) -> None:
    world.put()
    await world.tick()
    world.finish_check(0)
    await world.tick()
    world.roll()
    before = revision(world)
    world.put(kvCache=INT4)
    await world.tick()
    world.finish_check(0)
    await world.tick()
    assert before != revision(world)


async def test_an_eviction_reaches_engines_that_run(world: World) -> None:
    world.put()
    await world.settle()
    pods, before = set(world.engine_pods()), revision(world)
    eviction = {"policy": "StreamingLLM", "sinkTokens": 64, "windowTokens": 512}
    world.put(kvCache={"dtype": "int4", "eviction": eviction})
    await world.settle()
    assert (pods, before) == (set(world.engine_pods()), revision(world))
    sent = {"policy": "StreamingLLM", "sink_tokens": 64, "window_tokens": 512}
    ((_, body),) = [(h, b) for h, b in world.engines.patches if "eviction" in b]
    # Format and eviction in one change: the cache is laid out anew once.
    assert ("int4", sent) == (body["kv_cache_dtype"], body["eviction"])
    assert "StreamingLLM" == world.status["effective"]["eviction"]
    (said,) = world.said("SettingChanged")
    assert "bfloat16 -> int4 with StreamingLLM" in said
    world.put()
    await world.settle()
    assert "None" == world.status["effective"]["eviction"]
    assert before == revision(world)


@pytest.mark.parametrize(
    "eviction",
    [
        {"policy": "StreamingLLM", "windowTokens": 64},
        {"policy": "StreamingLLM", "windowTokens": 2048},
        {"policy": "H2O", "budgetPercent": 50},
    ],
)
async def test_an_eviction_that_engines_do_not_take_live_goes_to_the_check(
    world: World, eviction: dict[str, Any]
) -> None:
    world.put()
    await world.settle()
    world.put(kvCache={"eviction": eviction})
    await world.tick()
    (check,) = world.checks().values()
    (argument,) = [a for a in check["spec"]["containers"][0]["args"] if "eviction" in a]
    assert eviction["policy"] in argument
    assert [] == [b for _, b in world.engines.patches if "eviction" in b]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (KVSettings(kv_cache_dtype="int4"), "int4: no room"),
        (KVSettings(kv_cache_dtype="fp8_e4m3"), "expected one of auto, int8, got fp8_e4m3"),
        (KVSettings(eviction={"policy": "H2O"}), "expected one of None, StreamingLLM, got H2O"),
        (
            KVSettings(eviction={"policy": "StreamingLLM", "window_tokens": 8}),
            "auto with StreamingLLM of 8 tokens: out of the bounds that they offer",
        ),
    ],
)
def test_what_is_not_offered_has_a_reason(settings: KVSettings, reason: str) -> None:
    offers = {
        "kv_cache_dtype": {"values": ["auto", "int8"], "unavailable": {"int4": "no room"}},
        "eviction": {
            "values": ["None", "StreamingLLM"],
            "window_tokens": {"minimum": 128, "maximum": 1024},
        },
    }
    assert not offered(settings, offers)
    assert why_not_offered(settings, offers) == reason


def test_a_note_of_an_attempt_survives_storage() -> None:
    note = Refusal(pod="a", container="b", key="c", message="d", ended=True)
    assert note == Refusal.model_validate_json(note.model_dump_json())
