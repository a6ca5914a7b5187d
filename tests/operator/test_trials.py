"""Edits of `spec.kvCache` under a policy, and KVTrials that people make, from begin to end."""

import json
from typing import Any

import httpx
import pytest

from kvserving_operator.kinds import Kind
from kvserving_tuner.remembered import Judged
from kvserving_tuner.trials.plan import Gain
from operatorkit.engines import HISTOGRAMS
from operatorkit.specs import engine_spec
from operatorkit.trials import (
    GUARDED,
    POLICY,
    only_trial,
    put_policy,
    put_probes,
    put_trial,
    reach,
    ready,
    serve,
    trials,
)
from operatorkit.world import World


def dtypes(world: World) -> list[str]:
    return [world.engines.dtypes.get(f"10.0.0.{n}", "bfloat16") for n in (1, 2)]


async def test_a_good_format_goes_from_probes_to_some_pods_to_all(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Screening")
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    assert "TrialRunning" == world.condition("QualityGate")["reason"]
    await reach(world, "Running")
    assert ["int8", "bfloat16"] == dtypes(world)
    await serve(world, 120)
    status = only_trial(world)
    assert ("Finished", "Promoted") == (status["state"], status["verdict"])
    assert ["int8", "int8"] == dtypes(world)
    assert "int8" == world.status["effective"]["kvCacheDtype"]
    assert ("True", "Passed") == (
        world.condition("QualityGate")["status"],
        world.condition("QualityGate")["reason"],
    )
    assert "False" == world.condition("RolledBack")["status"]
    evidence = {each["name"]: each for each in status["evidence"]}
    assert "Passed" == evidence["ServedLikelihoodShort"]["outcome"]
    assert world.said("TrialStarted")
    assert world.said("TrialPromoted")


async def test_a_model_of_32_bits_is_compared_with_its_own_dtype(world: World) -> None:
    world.engines.model_dtype = "float32"
    world.engines.offers = ("auto", "int8")
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 120)
    status = only_trial(world)
    assert ("Finished", "Promoted") == (status["state"], status.get("verdict")), status


async def test_a_bad_format_never_reaches_a_pod(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int2"})
    await serve(world, 40)
    status = only_trial(world)
    assert ("RolledBack", "QualityDrop") == (status["verdict"], status["reason"])
    assert "int2" not in [body.get("kv_cache_dtype") for _, body in world.engines.patches]
    rolled_back = world.condition("RolledBack")
    assert ("True", "TrialRolledBack") == (rolled_back["status"], rolled_back["reason"])
    assert "Failed" == world.condition("QualityGate")["reason"]
    (said,) = world.said("TrialRolledBack")
    assert "ScreenedLikelihoodShort" in said
    assert "at most 2.00 % accepted" in said
    # Not tried again, whatever is edited in between.
    world.put(replicas=2, **GUARDED)
    await serve(world, 3)
    assert "False" == world.condition("RolledBack")["status"]
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int2"})
    await serve(world, 10)
    assert 1 == len(trials(world))
    assert "True" == world.condition("RolledBack")["status"]


async def test_without_screening_the_gate_in_service_catches_a_bad_format(world: World) -> None:
    await ready(world)
    put_policy(world, quality={"minSamples": 5, "screening": "Disabled"})
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int2"})
    await serve(world, 40)
    status = only_trial(world)
    assert ("RolledBack", "QualityDrop") == (status["verdict"], status["reason"])
    evidence = {each["name"]: each for each in status["evidence"]}
    assert "Failed" == evidence["ServedLikelihoodShort"]["outcome"]
    assert not any(name.startswith("Screened") for name in evidence)
    assert "int2" in [body.get("kv_cache_dtype") for _, body in world.engines.patches]
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    assert "True" == world.condition("RolledBack")["status"]


async def test_a_format_that_fails_in_service_sends_all_to_the_fallback(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    assert ["int8", "bfloat16"] == dtypes(world)
    world.engines.worse["int8"] = 0.4
    await serve(world, 40)
    status = only_trial(world)
    assert ("RolledBack", "QualityDrop") == (status["verdict"], status["reason"])
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    assert "ServedLikelihoodShort" in status["message"]


async def test_a_format_that_fails_in_service_goes_though_no_metric_can_be_read(
    world: World,
) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    world.engines.hidden = {"vllm:request_success_total", *HISTOGRAMS}
    await serve(world, 3)
    assert "holds" in only_trial(world)["message"]
    world.engines.worse["int8"] = 0.4
    await serve(world, 40)
    status = only_trial(world)
    assert ("RolledBack", "QualityDrop") == (status["verdict"], status["reason"])
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_a_rollback_reaches_all_engines_at_one_look(world: World) -> None:
    await ready(world, replicas=4)
    put_trial(world, policy={**POLICY, "ab": {**POLICY["ab"], "steps": [75]}})
    for _ in range(20):
        await serve(world, 1)
        if 3 == list(world.engines.dtypes.values()).count("int8"):
            break
    assert "Running" == only_trial(world)["state"]
    put_trial(world, policy={**POLICY, "ab": {**POLICY["ab"], "steps": [75]}}, control="RollBack")
    await world.tick()
    assert 0 == list(world.engines.dtypes.values()).count("int8")


async def test_a_promoted_format_whose_quality_falls_goes_back_to_16_bits(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 120)
    assert ["int8", "int8"] == dtypes(world)
    world.new_controller()
    await serve(world, 30)
    assert ["int8", "int8"] == dtypes(world)
    # As other weights under the same name would do it.
    world.engines.worse["int8"] = 0.4
    await serve(world, 400)
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    (said,) = world.said("QualityRegressed")
    assert "WatchedLikelihoodShort" in said
    assert "True" == world.condition("RolledBack")["status"]
    assert "Failed" == world.condition("QualityGate")["reason"]
    assert 1 == len(trials(world))
    # It is remembered as what a trial has rejected.
    world.put(replicas=2, **GUARDED)
    await serve(world, 3)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 5)
    assert 1 == len(trials(world))
    assert "True" == world.condition("RolledBack")["status"]


async def test_an_edit_without_a_policy_needs_no_trial(world: World) -> None:
    world.put()
    await world.settle()
    world.put(kvCache={"dtype": "int2"})
    await serve(world, 3)
    assert {} == trials(world)
    assert "int2" == world.engines.dtypes["10.0.0.1"]


async def test_the_way_back_to_16_bits_needs_no_trial(world: World) -> None:
    await ready(world, kvCache={"dtype": "int4"})
    world.engines.dtypes |= {"10.0.0.1": "int4", "10.0.0.2": "int4"}
    await serve(world, 1)
    world.put(replicas=2, **GUARDED)
    await serve(world, 3)
    assert {} == trials(world)
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_what_engines_started_with_is_tried_like_anything_else(world: World) -> None:
    await ready(world, kvCache={"dtype": "int2"})
    world.engines.dtypes |= {"10.0.0.1": "int2", "10.0.0.2": "int2"}
    await serve(world, 1)
    world.put(replicas=2, **GUARDED)
    await serve(world, 4)
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int2"})
    await serve(world, 20)
    assert "RolledBack" == only_trial(world)["verdict"]
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_a_missing_policy_blocks_the_edit_and_says_so(world: World) -> None:
    world.put(replicas=2, **GUARDED)
    await world.settle()
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 5)
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    assert "PolicyNotFound" == world.condition("QualityGate")["reason"]
    put_policy(world)
    await reach(world, "Screening")


async def test_a_newer_edit_supersedes_and_is_not_held_up(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 9)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int4"})
    await serve(world, 5)
    verdicts = {t["spec"]["change"]["kvCacheDtype"]: t["status"] for t in trials(world).values()}
    assert ("Void", "Superseded") == (verdicts["int8"]["verdict"], verdicts["int8"]["reason"])
    assert "Screening" == verdicts["int4"]["state"]
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_an_edit_that_needs_new_pods_voids_it(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 4)
    assert "Running" == only_trial(world)["state"]
    engine = engine_spec(maxNumSeqs=12)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"}, engine=engine)
    for _ in range(4):
        await world.settle()
    (first, *_) = [t["status"] for t in trials(world).values() if "verdict" in t["status"]]
    assert ("Void", "Superseded") == (first["verdict"], first["reason"])


@pytest.mark.parametrize("looks", range(2, 60, 6))
async def test_an_operator_killed_at_any_moment_goes_on(world: World, looks: int) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, looks)
    world.new_controller()
    await serve(world, 140)
    assert "Promoted" == only_trial(world)["verdict"]
    assert ["int8", "int8"] == dtypes(world)
    assert 1 == len(world.said("TrialPromoted"))


class KilledError(Exception):
    """The end of a process, where a test wants it."""


async def _ends(world: World, kill_at: int, rise: float) -> int:
    """Kill the operator at the n-th write of a trial's end; give how many there were."""
    ending, counted = False, 0

    def on_change(kind: Kind, found: dict[str, Any]) -> None:
        nonlocal ending, counted
        state = found.get("status", {}).get("state") if kind is Kind.KVTrial else ""
        ending |= state in ("Promoting", "RollingBack")
        counted += ending
        if ending and counted == kill_at:
            raise KilledError

    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    # Screened well, so that it is the served cache that falls.
    world.engines.worse["int8"] = rise
    world.cluster.on_change = on_change
    looks_left = 140
    while looks_left:
        looks_left -= 1
        try:
            await serve(world)
        except KilledError:
            world.new_controller()
        if only_trial(world).get("state") == "Finished":
            looks_left = min(looks_left, 4)
    return counted


@pytest.mark.parametrize(("rise", "verdict"), [(0.0, "Promoted"), (0.4, "RolledBack")])
async def test_killed_after_any_write_of_its_end_a_trial_has_one_verdict(
    settings: Any, rise: float, verdict: str
) -> None:
    kill_at, writes = 0, 1
    while kill_at <= writes:
        world = World(settings)
        writes = await _ends(world, kill_at, rise)
        await world.http.aclose()
        assert verdict == only_trial(world)["verdict"], kill_at
        found = [(each["value"], each["verdict"]) for each in world.status["verdicts"]]
        assert [("int8", verdict)] == found, kill_at
        assert "at" in world.status["verdicts"][0]
        kill_at += 1
    assert writes > 3


async def test_a_trial_by_hand_pauses_waits_for_approval_and_is_promoted(world: World) -> None:
    await ready(world)
    manual = {**POLICY, "ab": {**POLICY["ab"], "approval": "Manual"}}
    put_trial(world, policy=manual, control="Pause")
    await serve(world, 10)
    assert "Paused" == only_trial(world)["state"]
    put_trial(world, policy=manual)
    await serve(world, 120)
    assert "Approval" == only_trial(world)["state"]
    put_trial(world, policy=manual, control="Promote")
    await serve(world, 3)
    assert "Promoted" == only_trial(world)["verdict"]
    promoted = {each["field"]: each for each in world.status["promoted"]}
    assert ("int8", "by-hand") == (
        promoted["KVCacheDType"]["value"],
        promoted["KVCacheDType"]["trial"],
    )
    # An edit of the field ends the promoted value.
    world.put(replicas=2, kvCache={"dtype": "bfloat16"})
    await serve(world, 4)
    assert "KVCacheDType" not in [each["field"] for each in world.status.get("promoted", ())]
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_no_evidence_holds_and_the_policy_says_for_how_long(world: World) -> None:
    await ready(world)
    ab = {**POLICY["ab"], "stallTimeoutSeconds": 60}
    put_trial(world, policy={**POLICY, "ab": ab})
    put_trial(world, "second", policy={**POLICY, "ab": {**ab, "onStall": "Rollback"}})
    world.engines.probe_error = httpx.Response(503, json={"error": {"message": "no memory"}})
    await serve(world, 40)
    first = trials(world)["by-hand"]["status"]
    assert "Screening" == first["state"]
    assert "no usable evidence" in first["message"]
    assert "no memory" in first["message"]
    assert "verdict" not in first
    put_trial(world, policy={**POLICY, "ab": ab}, control="RollBack")
    await serve(world, 40)
    statuses = {name: trial["status"] for name, trial in trials(world).items()}
    assert ("RolledBack", "AskedFor") == (
        statuses["by-hand"]["verdict"],
        statuses["by-hand"]["reason"],
    )
    assert ("Inconclusive", "Stalled") == (
        statuses["second"]["verdict"],
        statuses["second"]["reason"],
    )


PROMPTS = "\n".join(f'{{"prompt": "text {number}"}}' for number in range(100))


async def test_a_users_own_prompts_are_scored_and_faulty_ones_hold_the_trial(world: World) -> None:
    put_policy(world)
    spec: dict[str, Any] = {**GUARDED, "quality": {"probeSet": {"name": "probes"}}}
    world.put(replicas=2, **spec)
    await world.settle()
    world.put(replicas=2, **spec, kvCache={"dtype": "int8"})
    await serve(world, 10)
    assert "ConfigMap probes does not exist" in only_trial(world)["message"]
    put_probes(world, '{"prompt": "a"}\n{"prompt": 1}')
    await serve(world, 3)
    assert "line 2: prompt: expected a text" in only_trial(world)["message"]
    assert "Screening" == only_trial(world)["state"]
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    put_probes(world, PROMPTS)
    await serve(world, 120)
    assert "Promoted" == only_trial(world)["verdict"]
    assert "text 3" in world.engines.prompts


async def test_prompts_of_two_blocks_or_less_are_no_probe(world: World) -> None:
    await ready(world)
    world.engines.prompt_tokens = 256
    put_trial(world)
    await serve(world, 5)
    message = only_trial(world)["message"]
    assert "ProbeSetTooShort" in message
    assert "expected more than 2 blocks (256)" in message
    assert ["bfloat16", "bfloat16"] == dtypes(world)


@pytest.mark.parametrize(
    ("field", "value"),
    [("maxActiveSeqs", 4), ("engineImage", "engine:2"), ("modelRevision", "v2")],
)
async def test_what_trials_cannot_judge_is_refused_with_its_field(
    world: World, field: str, value: object
) -> None:
    await ready(world)
    put_trial(world, change={field: value, "kvCacheDtype": "int8"})
    await serve(world, 2)
    status = only_trial(world)
    assert ("Failed", "NotSupported") == (status["verdict"], status["reason"])
    assert f"spec.change.{field}: expected" in status["message"]
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_an_engine_that_cannot_take_the_change_ends_the_trial(world: World) -> None:
    await ready(world)
    world.engines.failing |= {"10.0.0.1": "out of memory"}
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 20)
    status = only_trial(world)
    assert ("Failed", "SettingsRefused") == (status["verdict"], status["reason"])
    assert "out of memory" in status["message"]
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_a_candidate_whose_engine_ends_is_rolled_back_at_once(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 9)
    pod = next(iter(world.engine_pods().values()))
    world.engines.dtypes.pop("10.0.0.1")
    world.come_up(pod, "c2")
    await serve(world, 3)
    status = only_trial(world)
    assert ("RolledBack", "HardStop") == (status["verdict"], status["reason"])
    assert ["bfloat16", "bfloat16"] == dtypes(world)


@pytest.mark.parametrize(
    ("asked", "gain"),
    [
        ({"requestedBy": "Tuner"}, Gain.FASTER),
        ({"requestedBy": "Tuner", "requiredGain": "Capacity"}, Gain.CAPACITY),
        ({"requestedBy": "User"}, None),
        ({"requestedBy": "User", "requiredGain": "Faster"}, Gain.FASTER),
    ],
)
async def test_what_nobody_asked_for_has_to_gain_something(
    world: World, asked: dict[str, Any], gain: Gain | None
) -> None:
    await ready(world)
    put_trial(world, **asked)
    await serve(world, 100)
    status = only_trial(world)
    # These engines are alike: what needs no gain is promoted, what needs one still waits.
    if gain is None:
        assert ("Finished", "Promoted") == (status["state"], status["verdict"])
        return
    assert "Running" == status["state"]
    assert "GoodputGain" in status["message"]
    threshold = "0" if gain is Gain.FASTER else "-1"
    (found,) = [each for each in status["evidence"] if each["name"] == "GoodputGain"]
    assert (threshold, "Inconclusive") == (found["threshold"], found["outcome"])
    assert found["samples"] > 0
    assert float(found["lower"]) <= float(found["value"]) <= float(found.get("upper", "inf"))


async def test_each_step_of_a_trial_is_a_line_of_the_audit_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kvserving.audit")
    await ready(world)
    put_policy(world, quality={"minSamples": 5, "screening": "Disabled"})
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int2"})
    await serve(world, 40)
    lines = [json.loads(each.message) for each in caplog.records if '"trial"' in each.message]
    assert only_trial(world)["verdict"] == "RolledBack"
    states = [line["state"] for line in lines]
    assert states[-3:] == ["Running", "RollingBack", "Finished"]
    verdict = lines[-2]
    assert ("RolledBack", "QualityDrop") == (verdict["verdict"], verdict["reason"])
    (served,) = [e for e in verdict["evidence"] if e["name"] == "ServedLikelihoodShort"]
    assert "Failed" == served["outcome"]
    assert verdict["remains"].startswith("auto")
    # The newest number that the verdict rests on is not younger than the verdict.
    assert lines[-3]["time"] <= verdict["evidence_at"] <= verdict["time"]


@pytest.mark.parametrize("looks_between", [2, 400])
async def test_a_candidate_that_fails_requests_is_rolled_back(
    world: World, looks_between: int
) -> None:
    await ready(world)
    put_policy(
        world,
        ab={"steps": [50], "minRequests": 4, "minDurationSeconds": 900},
        guards={"errorRateMaxIncreaseBasisPoints": 10},
    )
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    for look in range(250):
        await serve(world, 1, finishes=10)
        if "int8" in world.engines.dtypes.values() and look % looks_between == 1:
            world.engines.errors["10.0.0.1"] = world.engines.errors.get("10.0.0.1", 0) + 1
        if only_trial(world)["state"] == "Finished":
            break
    status = only_trial(world)
    found = {each["name"]: each for each in status["evidence"]}["Errors"]
    if looks_between == 400:
        # One of thousands is no verdict.
        assert ("Promoted", "0.1") == (status["verdict"], found["threshold"])
        return
    assert ("RolledBack", "GuardViolated") == (status["verdict"], status["reason"])
    assert "Errors" in status["message"]
    assert float(found["lower"]) < float(found["value"]) < float(found["upper"])
    assert ("Failed", "0.1") == (found["outcome"], found["threshold"])
    assert found["samples"] >= 8
    assert ["bfloat16", "bfloat16"] == dtypes(world)


async def test_engines_that_count_no_failures_are_told_of(world: World) -> None:
    world.engines.counts_errors = False
    await ready(world)
    put_policy(world, guards={}, ab={"steps": [50], "minDurationSeconds": 300})
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    await serve(world, 30)
    (told,) = [each for each in only_trial(world)["evidence"] if each["name"] == "Errors"]
    assert ("LeftOut", "NotCounted") == (told["outcome"], told["reason"])
    assert "http_requests_total" in only_trial(world)["message"]


async def test_a_format_that_the_tuner_wants_is_tried_and_the_verdict_is_learned(
    world: World,
) -> None:
    await ready(world)
    world.judge.next_dtype = "int2"
    await serve(world, 1)
    ((name, trial),) = trials(world).items()
    assert name.startswith("chat-")
    assert ("Tuner", {"kvCacheDtype": "int2"}) == (
        trial["spec"]["requestedBy"],
        trial["spec"]["change"],
    )
    decision = world.status["lastDecision"]
    assert ("Trial", "KVCacheDtype", "int2") == tuple(
        decision[key] for key in ("action", "knob", "toValue")
    )
    await serve(world, 40)
    assert "RolledBack" == only_trial(world)["verdict"]
    assert ["bfloat16", "bfloat16"] == dtypes(world)
    state = world.judge.calls[-1][2]
    assert state.asked is None
    assert [("int2", Judged.ROLLED_BACK, "load-1")] == [
        (each.value, each.judged, each.regime) for each in state.tried
    ]
    # The spec was never asked for anything else.
    assert "False" == world.condition("RolledBack")["status"]


async def test_without_a_policy_the_tuner_gets_no_trial(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.judge.next_dtype = "int8"
    await serve(world, 3)
    assert {} == trials(world)
