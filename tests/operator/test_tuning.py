"""Live changes: carried out on every engine, kept for new ones, undone where all refuse."""

import json
from typing import Any

import httpx
import pytest

from kvserving_operator.kinds import Kind
from kvserving_operator.memory import Memory
from kvserving_operator.render.names import SETTINGS_GATE
from kvserving_operator.tuner_settings import tuning_settings
from kvserving_tuner.decision import DiagnosisKind, Knob, Reason, RungName
from kvserving_tuner.remembered import Account, Drift, Due, Fingerprint, Loads, Regime, Sample
from kvserving_tuner.rules import Ability
from kvserving_tuner.settings import Bounds, Mode
from kvserving_tuner.state import TunerState
from operatorkit.specs import NAME, NAMESPACE, engine_spec, spec_of
from operatorkit.world import World


def gate_of(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        c for c in pod["status"].get("conditions", []) if c["type"] == SETTINGS_GATE
    )
    return found


async def lowered(world: World, replicas: int = 2, cap: int = 9) -> None:
    """Bring a serving up and let the tuner lower its cap."""
    world.put(replicas=replicas)
    await world.settle()
    world.judge.next_cap = cap
    await world.tick()


async def test_a_change_reaches_every_engine_and_is_read_back(world: World) -> None:
    await lowered(world)
    assert {9} == set(world.engines.caps.values())
    assert 9 == world.status["effective"]["maxActiveSeqs"]
    promoted = world.status["promoted"]
    assert ["MaxActiveSeqs", "9", 1] == [
        promoted[0][k] for k in ("field", "value", "specGeneration")
    ]
    decision = world.status["lastDecision"]
    assert ["Change", "Applied", "16", "9", "Live"] == [
        decision[k] for k in ("action", "outcome", "fromValue", "toValue", "costClass")
    ]
    assert {"name": "kv_usage_p95", "value": "0.987654"} in decision["numbers"]
    assert any("PreemptionStorm" in message for message in world.said("SettingChanged"))


async def test_a_change_never_touches_the_template(world: World) -> None:
    world.put()
    await world.settle()
    before = world.deployment["spec"]
    world.judge.next_cap = 9
    await world.settle()
    assert before == world.deployment["spec"]


async def test_one_change_is_asked_of_each_engine_once(world: World) -> None:
    await lowered(world)
    await world.settle(10)
    assert 2 == len(world.engines.patches)
    assert 1 == len({body["change_id"] for _, body in world.engines.patches})


async def test_a_new_pod_gets_the_promoted_value_before_it_is_ready(world: World) -> None:
    await lowered(world, replicas=1)
    world.put(replicas=2)
    await world.tick()
    world.roll()
    new = world.engine_pods()[f"{NAME}-2"]
    await world.tick()
    assert "False" == gate_of(new)["status"]
    world.come_up(new)
    await world.tick()
    assert 9 == world.engines.caps[new["status"]["podIP"]]
    assert "True" == gate_of(new)["status"]


async def test_a_restarted_container_gets_it_again(world: World) -> None:
    await lowered(world, replicas=1)
    await world.tick()
    (pod,) = world.engine_pods().values()
    assert "True" == gate_of(pod)["status"]
    address = pod["status"]["podIP"]
    world.engines.down.add(address)
    pod["status"]["containerStatuses"][0] |= {
        "ready": False, "restartCount": 1, "containerID": "containerd://a-new-container",
    }  # fmt: skip
    await world.tick()
    assert "False" == gate_of(pod)["status"]
    world.engines.down.clear()
    world.engines.caps[address] = 16
    await world.tick()
    assert 9 == world.engines.caps[address]
    assert "True" == gate_of(pod)["status"]


async def test_an_engine_that_is_only_slow_keeps_its_gate(world: World) -> None:
    await lowered(world, replicas=1)
    await world.tick()
    (pod,) = world.engine_pods().values()
    world.engines.down.add(pod["status"]["podIP"])
    before = world.cluster.count("patch_status", Kind.Pod)
    await world.tick()
    assert "True" == gate_of(pod)["status"]
    assert before == world.cluster.count("patch_status", Kind.Pod)


async def test_an_engine_that_missed_a_change_is_brought_to_it(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    missed = world.engine_pods()[f"{NAME}-2"]["status"]["podIP"]
    world.judge.next_cap = 9
    world.engines.down.add(missed)
    await world.tick()
    assert "Partial" == world.status["lastDecision"]["outcome"]
    world.engines.down.clear()
    await world.tick()
    assert {9} == set(world.engines.caps.values())


async def test_a_change_that_every_engine_refuses_is_undone(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.engines.refusing = set(world.engines.caps)
    world.judge.next_cap = 99
    await world.tick()
    assert {16} == set(world.engines.caps.values())
    assert [] == world.status["promoted"]
    assert "Rejected" == world.status["lastDecision"]["outcome"]
    assert "RuntimeRejected" == world.condition("TuningActive")["reason"]
    assert any("out of bounds" in message for message in world.said("RuntimeRejected"))
    patches = len(world.engines.patches)
    await world.tick()
    assert patches == len(world.engines.patches)


async def test_editing_the_field_ends_its_promoted_value(world: World) -> None:
    await lowered(world)
    assert world.status["promoted"]
    world.put(replicas=2, engine=engine_spec(maxNumSeqs=12))
    await world.settle()
    assert [] == world.status["promoted"]


async def test_losing_what_was_promoted_returns_every_engine_to_the_spec(world: World) -> None:
    await lowered(world)
    stored = world.cluster.of(Kind.KVServing)[NAME]
    stored["status"] = {**stored["status"], "promoted": []}
    world.new_controller()
    await world.tick()
    assert {16} == set(world.engines.caps.values())
    assert 16 == world.status["effective"]["maxActiveSeqs"]
    patches = len(world.engines.patches)
    await world.settle()
    assert patches == len(world.engines.patches)


async def test_editing_another_field_keeps_it(world: World) -> None:
    await lowered(world)
    world.put(replicas=2, engine=engine_spec(extraArgs=["--seed=1"]))
    await world.settle()
    assert "9" == world.status["promoted"][0]["value"]
    for pod in world.engine_pods().values():
        assert 9 == world.engines.caps[pod["status"]["podIP"]]


async def test_a_restarted_operator_keeps_what_was_promoted_and_remembered(world: World) -> None:
    await lowered(world)
    changed_at = world.judge.calls[-1][2].last_change_at
    world.new_controller()
    await world.tick()
    assert {9} == set(world.engines.caps.values())
    assert "9" == world.status["promoted"][0]["value"]
    assert changed_at != world.judge.calls[-1][2].last_change_at
    assert 9 == world.judge.calls[-1][2].cap


async def test_the_value_is_stored_before_any_engine_is_told(world: World) -> None:
    world.put()
    await world.settle()
    seen: list[str] = []
    answer = world.engines.__call__

    def watching(request: httpx.Request) -> httpx.Response:
        if request.method == "PATCH":
            seen.append(world.status["promoted"][0]["value"])
        return answer(request)

    world.http = httpx.AsyncClient(transport=httpx.MockTransport(watching), trust_env=False)
    world.new_controller()
    await world.tick()
    world.judge.next_cap = 7
    await world.tick()
    assert ["7"] == seen
    await world.http.aclose()


async def test_recommend_changes_nothing(world: World) -> None:
    world.put(tuning={"mode": "Recommend"})
    await world.settle()
    world.judge.next_cap = 9
    await world.tick()
    await world.tick()
    assert {16} == set(world.engines.caps.values())
    assert [] == world.engines.patches
    assert [] == world.status["promoted"]
    advice = world.status["recommendation"]
    assert ["MaxActiveSeqs", "16", "9"] == [advice[k] for k in ("knob", "fromValue", "toValue")]
    assert "RecommendOnly" == world.condition("TuningActive")["reason"]
    assert 1 == len(world.said("Recommended"))


async def test_holds_that_only_follow_from_a_change_leave_it_on_show(world: World) -> None:
    await lowered(world)
    world.judge.hold_reason = Reason.COOLDOWN
    await world.tick()
    assert "Change" == world.status["lastDecision"]["action"]
    assert "CoolingDown" == world.condition("TuningActive")["reason"]
    world.judge.hold_reason, world.judge.diagnosis = Reason.HEALTHY, DiagnosisKind.HEALTHY
    await world.tick()
    assert ["Hold", "Healthy"] == [world.status["lastDecision"][k] for k in ("action", "reason")]
    # The diagnosis is the reason: an Event names it once.
    assert world.said("Decided")[-1].startswith("Healthy: ")


async def test_equal_holds_are_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.put()
    with caplog.at_level("INFO", logger="kvserving.audit"):
        await world.settle(20)
    lines = [json.loads(r.message) for r in caplog.records if r.name == "kvserving.audit"]
    assert 1 == len(lines)
    assert ["Hold", f"{NAMESPACE}/{NAME}"] == [lines[0]["action"], lines[0]["serving"]]
    assert 1 == len(world.said("Decided"))


async def test_nothing_is_decided_while_pods_are_replaced(world: World) -> None:
    world.put()
    await world.settle()
    world.put(engine=engine_spec(extraArgs=["--seed=1"]))
    await world.tick()
    world.finish_check(0)
    await world.tick()
    world.roll()
    calls = len(world.judge.calls)
    await world.tick()
    assert calls == len(world.judge.calls)
    assert "WaitingForEngines" == world.condition("TuningActive")["reason"]


async def test_pods_that_differ_show_as_mixed(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    first = next(iter(world.engines.caps))
    world.engines.caps[first] = 3
    # Otherwise it would be brought back at once.
    world.engines.refusing = {first}
    await world.tick()
    assert "Mixed" == world.status["effective"]["maxActiveSeqs"]
    assert "bfloat16" == world.status["effective"]["kvCacheDtype"]


async def test_a_slower_interval_is_kept(world: World) -> None:
    world.put(monitoring={"scrapeIntervalSeconds": 6})
    await world.settle()
    before = len(world.judge.calls)
    for _ in range(12):
        await world.tick(2)
    assert before + 6 == len(world.judge.calls)


def test_the_tuner_gets_the_users_bounds() -> None:
    spec = spec_of(
        tuning={
            "mode": "Recommend",
            "knobs": [{"name": "MaxActiveSeqs", "minimum": 2, "maximum": 8}],
            "cooldown": {"liveSeconds": 30},
        },
        slo={"ttftMilliseconds": 900, "tpotMilliseconds": 80, "percentile": 90},
    )
    settings = tuning_settings(spec)
    assert Mode.RECOMMEND is settings.mode
    assert Bounds(minimum=2, maximum=8) == settings.max_active_seqs
    assert 30 == settings.cooldowns.live_seconds
    assert (900, 80, 90) == (settings.slo.ttft_ms, settings.slo.tpot_ms, settings.slo.percentile)


def test_formats_are_tried_under_a_policy_and_recommended_without_one() -> None:
    plain = tuning_settings(spec_of(tuning={"allowedDtypes": ["int8"]}))
    assert ("int8",) == plain.allowed_dtypes
    assert Ability.RECOMMEND is plain.ability(Knob.KV_CACHE_DTYPE)
    under = tuning_settings(
        spec_of(tuning={"allowedDtypes": ["int8"]}, rollbackPolicyRef={"name": "policy"})
    )
    assert Ability.TRIAL is under.ability(Knob.KV_CACHE_DTYPE)
    assert tuning_settings(spec_of()).ability(Knob.KV_CACHE_DTYPE) is None


def test_what_each_window_moves_is_not_worth_a_write() -> None:
    sample = Sample(
        at=1, goodput=1, missed=None, tokens_per_second=1, waiting=0, running=1,
        preemptions_per_second=0, finished=1,
    )  # fmt: skip
    load = Fingerprint(rate=1, prompt_tokens=1, answer_tokens=1)
    regime = Regime(name="load-1", load=load, windows=3, seen_at=1)
    before = Memory(tuner=TunerState(loads=Loads(regimes=(regime,), current="load-1")))
    later = regime.model_copy(update={"seen_at": 61.0, "windows": 4})
    loads = Loads(regimes=(later,), current="load-1", fed_at=61.0, drifts=(Drift(count=1),))
    due = Due(rung=RungName.EIGHT_BIT_CACHE, value="int8", since=1, last=6)
    moved = TunerState(loads=loads, samples=(sample,), due=due, account=Account(requests=9))
    assert not before.model_copy(update={"tuner": moved}).worth_storing(before)
    kept = later.model_copy(update={"cap": 7})
    learned = moved.model_copy(update={"loads": loads.model_copy(update={"regimes": (kept,)})})
    assert before.model_copy(update={"tuner": learned}).worth_storing(before)
