"""Trials that task probes judge: of eviction, of formats, and of floors."""

import json
from typing import Any

import httpx
import pytest

from kvserving_operator.trials.asking import SHARE
from operatorkit.specs import engine_spec
from operatorkit.trials import (
    GUARDED,
    POLICY,
    begin,
    evidence,
    only_trial,
    put_policy,
    put_probes,
    put_trial,
    reach,
    serve,
    trials,
)
from operatorkit.world import World

STREAMING = {"policy": "StreamingLLM", "sinkTokens": 64, "windowTokens": 512}
KEEPS_LITTLE: dict[str, Any] = {"kvCache": {"eviction": STREAMING}}
TURNS = 400
"""Enough for a batch of tasks between two looks."""


def policy(*probes: str, steps: tuple[int, ...] = (50,), **quality: Any) -> dict[str, Any]:
    """Spec of a policy that asks these probes."""
    asked = {"minSamples": 5, "maxDropPercent": 10, **quality}
    if probes:
        asked["probes"] = list(probes)
    return {**POLICY, "ab": {**POLICY["ab"], "steps": list(steps)}, "quality": asked}


async def ready(
    world: World, spec: dict[str, Any], replicas: int = 2, **serving: Any
) -> dict[str, Any]:
    """Engines under a policy that answer; the spec to edit."""
    put_policy(world, **spec)
    serving = {"replicas": replicas, **GUARDED, **serving}
    serving.setdefault("engine", engine_spec(maxModelLen=4096))
    await begin(world, **serving)
    return serving


def windows(world: World) -> list[int | None]:
    """Window of each engine; None where it keeps all."""
    found = [world.engines.evictions.get(f"10.0.0.{n}", {}) for n in (1, 2)]
    return [each.get("window_tokens") for each in found]


async def until_finished(world: World, looks: int = 150) -> dict[str, Any]:
    await reach(world, "Finished", looks, TURNS)
    return only_trial(world)


async def test_eviction_that_loses_the_middle_is_rolled_back_by_tasks(world: World) -> None:
    serving = await ready(world, policy())
    world.put(**serving, **KEEPS_LITTLE)
    await reach(world, "Screening")
    assert windows(world) == [None, None]
    await reach(world, "Running", turns=TURNS)
    assert sorted(windows(world), key=str) == [512, None]
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    assert status["summary"] == "Eviction auto -> auto with StreamingLLM of 512 tokens"
    assert windows(world) == [None, None]
    found = evidence(world)
    assert found["ServedNeedleMedium"]["outcome"] == "Failed" or (
        found["ServedRecallMedium"]["outcome"] == "Failed"
    )
    # What stands in the last message is kept.
    assert found["ServedStructuredOutputMedium"]["value"] == "0"
    assert world.condition("QualityGate")["reason"] == "Failed"
    assert "not tried again" in await again(world, serving)


async def again(world: World, serving: dict[str, Any]) -> str:
    """Take the edit back and make it again; what is said of it."""
    world.put(**serving)
    await serve(world, 3)
    world.put(**serving, **KEEPS_LITTLE)
    await serve(world, 5)
    assert len(trials(world)) == 1
    return str(world.condition("RolledBack")["message"])


async def test_eviction_that_keeps_what_counts_is_promoted(world: World) -> None:
    serving = await ready(world, policy("StructuredOutput"))
    world.put(**serving, **KEEPS_LITTLE)
    status = await until_finished(world)
    assert status["verdict"] == "Promoted"
    assert windows(world) == [512, 512]
    assert evidence(world)["ServedStructuredOutputMedium"]["outcome"] == "Passed"
    assert world.status["effective"]["eviction"] == "StreamingLLM"
    # Likelihoods, which are watched afterwards, say nothing of eviction.
    await serve(world, 30)
    assert windows(world) == [512, 512]


async def test_tasks_are_longer_than_what_eviction_keeps(world: World) -> None:
    serving = await ready(world, policy("StructuredOutput"))
    world.put(**serving, **KEEPS_LITTLE)
    await until_finished(world)
    kept = 128 + 512 + 127
    assert min(len(body["prompt"]) for _, body in world.engines.asked) > kept
    assert {body["cache_salt"] for _, body in world.engines.asked} == {
        f"kvserving-trial-{name}" for name in trials(world)
    }


async def test_a_window_that_no_prompt_can_exceed_is_refused(world: World) -> None:
    serving = await ready(world, policy(), engine=engine_spec(maxModelLen=1024))
    window = {"kvCache": {"eviction": {**STREAMING, "windowTokens": 900}}}
    world.put(**serving, **window)
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "ProbeSetTooShort")
    assert "more than 1155 tokens" in status["message"]
    assert "a context of 1024" in status["message"]
    assert windows(world) == [None, None]
    assert not world.engines.asked


async def test_a_model_that_knows_nothing_gets_no_eviction_and_is_told_why(world: World) -> None:
    world.engines.clueless = True
    serving = await ready(world, policy())
    world.put(**serving, **KEEPS_LITTLE)
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("Inconclusive", "QualityNotShown")
    assert (
        "ServedNeedleMedium: the model gets 0 % of 16 tasks right in 16 bits" in status["message"]
    )
    assert windows(world) == [None, None]
    entry = evidence(world)["ServedNeedleMedium"]
    assert (entry["outcome"], entry["reason"]) == ("LeftOut", "BaselineTooWeak")
    assert (entry["value"], entry["threshold"], entry["samples"]) == ("0", "25", 16)


async def test_a_model_that_knows_nothing_does_not_block_a_format(world: World) -> None:
    world.engines.clueless = True
    serving = await ready(world, policy())
    world.put(**serving, kvCache={"dtype": "int8"})
    status = await until_finished(world, 250)
    assert status["verdict"] == "Promoted"
    assert "left out: ServedNeedleShort" in status["message"]
    assert evidence(world)["ServedLikelihoodShort"]["outcome"] == "Passed"


async def test_tasks_roll_back_a_format_whose_likelihoods_look_good(world: World) -> None:
    world.engines.confused.add("int8")
    serving = await ready(world, policy(minSamples=20))
    world.put(**serving, kvCache={"dtype": "int8"})
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    assert "100.00 % worse" in status["message"]
    assert set(world.engines.dtypes.values()) == {"bfloat16"}


async def test_pairs_are_of_an_engine_with_the_change_and_one_in_16_bits(world: World) -> None:
    serving = await ready(world, policy("Needle"))
    world.put(**serving, kvCache={"dtype": "int8"})
    await reach(world, "Running", turns=TURNS)
    world.engines.asked.clear()
    await serve(world, 3, turns=TURNS)
    hosts: dict[str, set[str]] = {}
    for host, body in world.engines.asked:
        hosts.setdefault(json.dumps(body["prompt"]), set()).add(host)
    assert hosts
    assert all(each == {"10.0.0.1", "10.0.0.2"} for each in hosts.values())
    assert set(world.engines.dtypes.values()) == {"int8"}


async def test_an_only_engine_answers_in_16_bits_before_it_is_switched(world: World) -> None:
    serving = await ready(world, policy("Needle", maxDropPercent=30), replicas=1)
    world.put(**serving, **KEEPS_LITTLE)
    await reach(world, "Running", 60, TURNS)
    before = len(world.engines.asked)
    assert before > 30
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    assert len(world.engines.asked) > before
    assert windows(world)[0] is None


async def test_eviction_beside_a_quantized_cache_cannot_be_judged(world: World) -> None:
    world.engines.dtypes |= {"10.0.0.1": "int8", "10.0.0.2": "int8"}
    serving = await ready(world, policy(), kvCache={"dtype": "int8"})
    world.put(**{**serving, "kvCache": {"dtype": "int8", "eviction": STREAMING}})
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "NotSupported")
    assert "expected 16 bits without eviction in force" in status["message"]


async def test_a_format_beside_another_is_judged_by_likelihoods_alone(world: World) -> None:
    world.engines.dtypes |= {"10.0.0.1": "int8", "10.0.0.2": "int8"}
    world.engines.worse["int4"] = 0.001
    serving = await ready(world, policy(), kvCache={"dtype": "int8"})
    world.put(**{**serving, "kvCache": {"dtype": "int4"}})
    status = await until_finished(world)
    assert status["verdict"] == "Promoted"
    assert evidence(world)["Tasks"]["reason"] == "NoBaseline"
    assert not world.engines.asked


async def test_eviction_needs_a_task_probe(world: World) -> None:
    serving = await ready(world, policy("Likelihood"))
    world.put(**serving, **KEEPS_LITTLE)
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "NotSupported")
    assert "expected a task probe in the policy's quality.probes" in status["message"]


async def test_a_trial_by_hand_changes_eviction(world: World) -> None:
    await ready(world, policy())
    change = {"eviction": STREAMING}
    put_trial(world, change=change, policy=policy("StructuredOutput"))
    status = await until_finished(world)
    assert status["verdict"] == "Promoted"
    (promoted,) = [each for each in world.status["promoted"] if each["field"] == "Eviction"]
    assert promoted["value"] == "StreamingLLM of 512 tokens"


async def test_a_floor_rolls_back_what_the_drop_would_allow(world: World) -> None:
    floors: dict[str, Any] = {"quality": {"floors": [{"probe": "Needle", "minimumPercent": 90}]}}
    serving = await ready(world, policy("StructuredOutput", maxDropPercent=99), **floors)
    world.put(**serving, **KEEPS_LITTLE)
    status = await until_finished(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    assert "ServedNeedleFloor" in status["message"]
    assert "at most 10.00 % accepted" in status["message"]


async def test_a_users_references_are_asked_and_graded(world: World) -> None:
    lines = [
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"{'word ' * 900} number {n} Summarize this log"}
                ],
                "reference": "word word word",
            }
        )
        for n in range(100)
    ]
    put_probes(world, "\n".join(lines))
    own: dict[str, Any] = {"quality": {"probeSet": {"name": "probes"}}}
    serving = await ready(world, policy("References"), **own)
    world.put(**serving, **KEEPS_LITTLE)
    status = await until_finished(world)
    assert status["verdict"] == "Promoted"
    assert evidence(world)["ServedReferencesMedium"]["outcome"] == "Passed"


async def test_references_that_are_too_short_for_eviction_hold_it(world: World) -> None:
    put_probes(world, '{"prompt": "short", "reference": "a"}')
    own: dict[str, Any] = {"quality": {"probeSet": {"name": "probes"}}}
    serving = await ready(world, policy("References"), **own)
    world.put(**serving, **KEEPS_LITTLE)
    await serve(world, 8, turns=TURNS)
    message = only_trial(world)["message"]
    assert "ProbeSetTooShort" in message
    assert "expected more than 767" in message
    assert "verdict" not in only_trial(world)


async def test_without_answers_the_trial_holds(world: World) -> None:
    serving = await ready(world, policy("Needle"))
    world.put(**serving, **KEEPS_LITTLE)
    world.engines.answer_error = httpx.Response(503, json={"error": {"message": "too busy"}})
    await serve(world, 6, turns=TURNS)
    assert "holds: probe" in only_trial(world)["message"]
    assert "too busy" in only_trial(world)["message"]
    assert windows(world) == [None, None]
    world.engines.answer_error = None
    status = await until_finished(world)
    assert status["verdict"] == "RolledBack"


async def test_tasks_are_no_users_requests(world: World) -> None:
    serving = await ready(world, policy("StructuredOutput"))
    world.put(**serving, **KEEPS_LITTLE)
    await reach(world, "Running", turns=TURNS)
    before = len(world.engines.asked)
    await serve(world, 3, finishes=0, turns=TURNS)
    assert len(world.engines.asked) - before > 60
    assert "step needs 0 of 4 requests" in only_trial(world)["message"]
    assert (await until_finished(world))["verdict"] == "Promoted"


@pytest.mark.parametrize(("running", "rests"), [(4, True), (1, False)])
async def test_tasks_leave_engines_with_users_alone_most_of_the_time(
    world: World, running: int, rests: bool
) -> None:
    world.engines.running = running
    world.engines.seconds_per_answer = 0.5
    serving = await ready(world, policy("Needle"))
    world.put(**serving, **KEEPS_LITTLE)
    await serve(world, 4, turns=TURNS)
    assert world.engines.asked
    assert bool(world.rests) == rests
    assert all(seconds >= 0.5 * (1 / SHARE - 1) for seconds in world.rests)


@pytest.mark.parametrize("looks", range(2, 42, 8))
async def test_an_operator_killed_at_any_moment_goes_on(world: World, looks: int) -> None:
    serving = await ready(world, policy("StructuredOutput"))
    world.put(**serving, **KEEPS_LITTLE)
    await serve(world, looks, turns=40)
    world.new_controller()
    status = await until_finished(world)
    assert status["verdict"] == "Promoted"
    assert windows(world) == [512, 512]
    assert len(world.said("TrialPromoted")) == 1
