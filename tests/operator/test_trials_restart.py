"""Edits of image, model and flags under a policy: tried on pods beside those in force.

Tests play the Deployment controllers, the scheduler and the kubelet.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kvserving_operator.kinds import Kind
from kvserving_operator.render.names import CANDIDATE, TRACK_LABEL
from kvserving_operator.settings import Settings
from operatorkit.specs import IMAGE, NAME, NAMESPACE, engine_spec, serving_body
from operatorkit.trials import (
    GUARDED,
    POLICY,
    evidence,
    only_trial,
    put_policy,
    ready,
    serve,
    trials,
)
from operatorkit.world import World, is_apart, is_scheduled, set_condition

OTHER = "registry.example/engine:new"
NEW: dict[str, Any] = {"engine": engine_spec(image=OTHER)}
Pod = dict[str, Any]
CANDIDATES = f"{NAME}-candidate"


def edit(world: World, replicas: int = 2, **spec: Any) -> None:
    """Make an edit under the policy."""
    world.put(replicas=replicas, **GUARDED, **spec)


def candidates(world: World) -> list[Pod]:
    """Pods that were started for the trial."""
    return [pod for pod in world.engine_pods().values() if is_apart(pod)]


def stable(world: World) -> list[Pod]:
    """All other engines."""
    return [pod for pod in world.engine_pods().values() if not is_apart(pod)]


def image(pod: Pod) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def images(world: World) -> list[str]:
    """Image of each engine."""
    return [image(pod) for pod in world.engine_pods().values()]


def in_force(world: World) -> str:
    """Image of the Deployment's template."""
    return str(world.deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def answering(world: World) -> int:
    """Engines that are Ready."""
    found = [
        {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
        for pod in world.engine_pods().values()
    ]
    return sum(each.get("Ready") == "True" for each in found)


async def look(
    world: World, up: Callable[[Pod], None] | None = None, least: int | None = None
) -> None:
    """One look with users' requests, controllers and a kubelet; `up` is what becomes of candidates.

    With `least`: at no moment fewer engines than that answer.
    """
    world.engines.finished += 2
    await serve(world)
    world.finish_check(code=0)
    world.roll()
    if least is not None:
        assert answering(world) >= least, images(world)
    for pod in world.engine_pods().values():
        if is_apart(pod) and up is not None:
            up(pod)
        elif is_scheduled(pod):
            world.come_up(pod)


async def until(
    world: World,
    done: Callable[[World], bool],
    up: Callable[[Pod], None] | None = None,
    looks: int = 150,
    least: int | None = None,
) -> None:
    """Look until something is so."""
    for _ in range(looks):
        await look(world, up, least)
        if done(world):
            return
    raise AssertionError(f"{trials(world)} {world.status['conditions']}")


def has_state(*states: str) -> Callable[[World], bool]:
    return lambda world: bool(trials(world)) and only_trial(world).get("state") in states


def candidate_serves(world: World) -> bool:
    return has_state("Running")(world) and bool(only_trial(world).get("startedAt"))


finished = has_state("Finished")


def rolled_out(world: World) -> bool:
    return (
        finished(world)
        and not candidates(world)
        and set(images(world)) == {OTHER}
        and len(images(world)) == world.deployment["spec"]["replicas"]
    )


def alone(world: World) -> bool:
    """Whether a trial has left nothing behind."""
    return (
        finished(world)
        and CANDIDATES not in world.cluster.of(Kind.Deployment)
        and not candidates(world)
    )


async def test_a_new_image_is_tried_on_one_pod_and_then_rolled_out(world: World) -> None:
    await ready(world)
    old = in_force(world)
    edit(world, **NEW)
    await until(world, candidate_serves, least=1)
    assert in_force(world) == old
    assert sorted(images(world)) == sorted([OTHER, old])
    trial = next(iter(trials(world).values()))
    assert trial["spec"]["requestedBy"] == "Spec"
    change = f"engine.image {IMAGE} -> {OTHER}"
    assert trial["spec"]["change"] == {"engineImage": OTHER, "startUp": change}
    assert only_trial(world)["summary"] == f"StartUp {change}"
    assert world.condition("QualityGate")["reason"] == "TrialRunning"
    assert world.condition("Progressing")["reason"] == "TrialRunning"
    assert world.status["effective"]["kvCacheDtype"] == "bfloat16"
    await until(world, rolled_out, least=1)
    status = only_trial(world)
    assert (status["verdict"], evidence(world)["ServedLikelihoodShort"]["outcome"]) == (
        "Promoted",
        "Passed",
    )
    await look(world)
    assert alone(world)
    # Who has no gateway has no right to it.
    assert not world.cluster.count("patch_labels", Kind.Pod)
    assert world.condition("RolledBack")["status"] == "False"
    assert world.condition("QualityGate")["reason"] == "Passed"
    assert world.condition("Progressing")["status"] == "False"
    assert [each["verdict"] for each in world.status["verdicts"]] == ["Promoted"]
    assert len(trials(world)) == 1


async def test_prompts_are_scored_by_both_engines_through_their_own_caches(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    mine = {pod["status"]["podIP"] for pod in world.engine_pods().values()}
    for host in mine:
        world.engines.worse_models[host] = 0.1
    # Both are as bad, so nothing has fallen.
    await until(world, finished)
    assert only_trial(world)["verdict"] == "Promoted"


async def test_a_worse_model_is_taken_back_and_not_tried_again(world: World) -> None:
    await ready(world)
    before = set(world.engine_pods())

    def worse(pod: Pod) -> None:
        world.come_up(pod)
        world.engines.worse_models[pod["status"]["podIP"]] = 0.4

    edit(world, **NEW)
    await until(world, alone, worse, least=1)
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    await look(world)
    await look(world)
    assert set(images(world)) == {IMAGE}
    assert len(before & set(world.engine_pods())) == 1
    rolled_back = world.condition("RolledBack")
    assert (rolled_back["status"], rolled_back["reason"]) == ("True", "TrialRolledBack")
    assert "ServedLikelihoodShort" in rolled_back["message"]
    assert world.condition("QualityGate")["reason"] == "Failed"
    assert world.condition("Degraded")["status"] == "False"
    # Neither as it is, nor after another edit, nor with one beside it.
    for spec in (NEW, {}, NEW, {"engine": engine_spec(image=OTHER, maxNumSeqs=12)}):
        edit(world, **spec)
        for _ in range(4):
            await look(world)
    assert len(trials(world)) == 1
    assert set(images(world)) == {IMAGE}
    assert world.condition("RolledBack")["status"] == "True"
    # A person may ask for it.
    key = (Kind.KVServing, NAMESPACE, NAME)
    world.cluster.objects[key]["metadata"]["annotations"] = {"kvserving.dev/retry": "1"}
    await look(world)
    await look(world)
    assert len(trials(world)) == 2


async def test_what_was_turned_down_is_forgotten_in_time(world: World) -> None:
    await ready(world)
    put_policy(world, memory={"rejectForSeconds": 3600})

    def worse(pod: Pod) -> None:
        world.come_up(pod)
        world.engines.worse_models[pod["status"]["podIP"]] = 0.4

    edit(world, **NEW)
    await until(world, alone, worse)
    world.clock.advance(4000)
    # The spec that asks for it is not tried anew by itself.
    for _ in range(3):
        await look(world)
    assert len(trials(world)) == 1
    edit(world)
    await look(world)
    edit(world, **NEW)
    await until(world, lambda each: len(trials(each)) == 2, looks=10)


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": engine_spec(maxNumSeqs=12)},
        {"engine": engine_spec(blockSize=64)},
        {"podTemplate": {"nodeSelector": {"zone": "a"}}},
        {"engine": engine_spec(image=OTHER), "model": {"name": "b", "uri": "pvc://models/b"}},
    ],
    ids=["max-num-seqs", "block-size", "node-selector", "served-name"],
)
async def test_other_edits_roll_out_after_their_check(world: World, spec: dict[str, Any]) -> None:
    await ready(world)
    old = set(world.engine_pods())
    edit(world, **spec)
    for _ in range(6):
        await look(world)
    assert not trials(world)
    assert not old & set(world.engine_pods())


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"name": "tiny", "uri": "pvc://models/other"}},
        {"model": {"name": "tiny", "uri": "hf://some/model", "revision": "main"}},
        {"engine": engine_spec(weightQuantization="awq")},
        {"engine": engine_spec(extraArgs=["--seed=7"])},
        {"engine": engine_spec(version="0.31.0")},
        {"podTemplate": {"env": [{"name": "VLLM_SECRET", "value": "hidden-text"}]}},
    ],
    ids=["uri", "revision", "weights", "flags", "version", "variables"],
)
async def test_what_decides_about_answers_is_tried(world: World, spec: dict[str, Any]) -> None:
    await ready(world)
    edit(world, **spec)
    await until(world, candidate_serves, looks=10)
    assert "hidden-text" not in str(trials(world)) + str(world.events)


async def test_without_a_policy_or_engines_that_answer_it_rolls_out(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    world.put(replicas=2, **NEW)
    await world.settle()
    assert (set(images(world)), trials(world)) == ({OTHER}, {})
    put_policy(world)
    edit(world, **NEW)
    await world.settle(2)
    for pod in world.engine_pods().values():
        world.crash(pod, times=1, message="no memory")
    edit(world)
    await world.tick()
    world.finish_check(code=0)
    await world.tick()
    assert (in_force(world), trials(world)) == (OTHER, {})
    # Whatever was in force, an image stays until the spec names another one.
    edit(world, engine=engine_spec(image=IMAGE))
    await world.tick()
    world.finish_check(code=0)
    await world.tick()
    assert (in_force(world), trials(world)) == (IMAGE, {})


async def test_a_new_serving_under_a_policy_starts_as_it_is(world: World) -> None:
    put_policy(world)
    edit(world, **NEW)
    await world.settle()
    assert (set(images(world)), trials(world)) == ({OTHER}, {})


async def test_a_missing_policy_holds_the_template(world: World) -> None:
    await ready(world)
    del world.cluster.objects[(Kind.KVRollbackPolicy, NAMESPACE, "policy")]
    edit(world, **NEW)
    for _ in range(6):
        await look(world)
    assert set(images(world)) == {IMAGE}
    assert world.condition("QualityGate")["reason"] == "PolicyNotFound"
    put_policy(world)
    await until(world, candidate_serves, looks=10)


async def test_no_pod_leaves_before_a_candidate_answers(world: World) -> None:
    await ready(world)
    before = set(world.engine_pods())

    def loads(pod: Pod) -> None:
        """It is loading the model."""

    edit(world, **NEW)
    await until(world, has_state("Running"), loads, looks=10)
    for _ in range(5):
        await look(world, loads)
    assert len(candidates(world)) == 1
    assert before <= set(world.engine_pods())
    assert "0 of 1 answer" in only_trial(world)["message"]
    assert "startedAt" not in only_trial(world)
    await look(world)
    await look(world)
    await look(world)
    assert len(stable(world)) == 1


async def test_candidates_take_the_place_of_pods_one_after_another(world: World) -> None:
    put_policy(world, ab={**POLICY["ab"], "steps": [75]})
    await ready(world, replicas=4)
    put_policy(world, ab={**POLICY["ab"], "steps": [75]})
    edit(world, replicas=4, **NEW)
    most = 0
    for _ in range(30):
        await look(world, least=4 if not most else 3)
        most = max(most, len(world.engine_pods()))
        if len(candidates(world)) == 3 and len(stable(world)) == 1:
            break
    assert (most, len(candidates(world)), len(stable(world))) == (5, 3, 1)


async def test_without_room_a_pod_leaves_first_and_all_come_back(world: World) -> None:
    await ready(world)
    world.room = 2

    def worse(pod: Pod) -> None:
        if is_scheduled(pod):
            world.come_up(pod)
            world.engines.worse_models[pod["status"]["podIP"]] = 0.4

    edit(world, **NEW)
    await until(world, candidate_serves, worse, least=1)
    assert sorted(images(world)) == sorted([OTHER, IMAGE])
    await until(world, alone, worse, least=1)
    await until(world, lambda each: answering(each) == 2, least=1, looks=10)
    assert images(world) == [IMAGE, IMAGE]


async def test_without_room_a_good_image_gets_through(world: World) -> None:
    await ready(world, replicas=3)
    world.room = 3
    edit(world, replicas=3, **NEW)
    await until(world, rolled_out, least=2)
    assert only_trial(world)["verdict"] == "Promoted"
    assert len(images(world)) == 3


async def test_where_no_pod_may_be_missing_none_makes_room(world: World) -> None:
    rollout: dict[str, Any] = {"rollout": {"maxSurge": 1, "maxUnavailable": 0}}
    await ready(world, **rollout)
    world.room = 2
    edit(world, **NEW, **rollout)
    await until(world, alone, least=2, looks=500)
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "StartFailed")
    assert "Insufficient cpu" in status["message"]


async def test_an_only_engine_is_tried_beside_another_one(world: World) -> None:
    await ready(world, replicas=1)
    edit(world, replicas=1, **NEW)
    await until(world, candidate_serves, least=1)
    assert sorted(images(world)) == sorted([OTHER, IMAGE])
    await until(world, rolled_out, least=1)
    assert only_trial(world)["verdict"] == "Promoted"


@pytest.mark.parametrize("wish", ["Refuse", "SwitchInPlace"])
async def test_an_only_engine_without_room_follows_the_policy(world: World, wish: str) -> None:
    await ready(world, replicas=1)
    put_policy(world, ab={**POLICY["ab"], "singleReplica": wish})
    world.room = 1
    edit(world, replicas=1, **NEW)
    await until(world, lambda each: has_state("RollingBack", "Finished")(each), looks=20)
    status = only_trial(world)
    assert "no room for a second one" in status["message"]
    # What is to be expected is said before it is done.
    assert in_force(world) == IMAGE
    if wish == "Refuse":
        await until(world, alone, looks=10)
        await look(world)
        assert (only_trial(world)["verdict"], status["reason"]) == ("Failed", "SingleReplica")
        assert world.condition("RolledBack")["status"] == "True"
        assert images(world) == [IMAGE]
    else:
        assert "no engine answers from when it leaves" in status["message"]
        await until(world, rolled_out, looks=20)
        assert (only_trial(world)["verdict"], only_trial(world)["reason"]) == (
            "Inconclusive",
            "SingleReplica",
        )
        assert world.condition("RolledBack")["status"] == "False"
    assert len(trials(world)) == 1


async def test_a_crash_loop_ends_the_trial_and_blocks_nothing(world: World) -> None:
    await ready(world)
    times = 0

    def crashes(pod: Pod) -> None:
        nonlocal times
        times += 1
        world.crash(pod, times=times, message="ValueError: no such kernel")

    edit(world, **NEW)
    await until(world, alone, crashes, least=2)
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("Failed", "StartFailed")
    assert "ended 3 times" in status["message"]
    await look(world, crashes)
    assert "no such kernel" in world.condition("RolledBack")["message"]
    edit(world, engine=engine_spec(image="registry.example/engine:fixed"))
    await until(world, lambda each: len(trials(each)) == 2, looks=10)


async def test_memory_that_comes_free_late_is_waited_for(world: World) -> None:
    await ready(world)
    times = 0

    def late(pod: Pod) -> None:
        nonlocal times
        times += 1
        message = "ValueError: Free memory on device (3.1/80 GiB) is less than desired"
        world.crash(pod, times=times, message=message)
        if times > 4:
            world.come_up(pod)

    edit(world, **NEW)
    await until(world, candidate_serves, late)
    times = 0
    edit(world, engine=engine_spec(image="registry.example/engine:large"))
    never = ["Failed", "Void"]

    def stays(pod: Pod) -> None:
        nonlocal times
        times += 1
        world.crash(pod, times=times, message="torch.OutOfMemoryError: CUDA out of memory")

    await until(
        world,
        lambda each: (
            sorted(t.get("status", {}).get("verdict", "") for t in trials(each).values()) == never
        ),
        stays,
    )
    last = [t["status"] for t in trials(world).values() if t["status"]["verdict"] == "Failed"]
    assert "ended 6 times" in last[0]["message"]


async def test_an_image_that_does_not_arrive_ends_the_trial(world: World) -> None:
    await ready(world)

    def waits(pod: Pod) -> None:
        waiting = {"reason": "ImagePullBackOff", "message": "not found"}
        pod["status"]["containerStatuses"] = [
            {"name": "engine", "ready": False, "restartCount": 0, "state": {"waiting": waiting}}
        ]

    edit(world, **NEW)
    await until(world, alone, waits, least=2)
    assert only_trial(world)["reason"] == "StartFailed"
    assert "ImagePullBackOff" in only_trial(world)["message"]


async def test_a_candidate_that_ends_in_service_is_a_hard_stop(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    (pod,) = candidates(world)
    # The kubelet has started it anew.
    await until(world, alone, lambda each: world.come_up(each, container="c2"))
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "HardStop")
    assert image(pod) == OTHER


async def test_one_that_has_ended_and_is_not_back_yet_is_one_too(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    await until(world, alone, lambda pod: world.crash(pod, times=1, message="died"), looks=6)
    assert only_trial(world)["reason"] == "HardStop"


async def test_no_pod_makes_room_that_a_leaving_one_will_make(world: World) -> None:
    await ready(world)
    world.room = 2
    edit(world, **NEW)
    await until(world, lambda each: bool(candidates(each)), looks=10)
    # The last candidate of a former trial drains.
    world.add_pod()
    *_, leaving = world.engine_pods().values()
    leaving["metadata"]["deletionTimestamp"] = world.clock.timestamp
    for _ in range(8):
        await world.tick()
    assert world.deployment["spec"]["replicas"] == 2
    world.remove(leaving["metadata"]["name"])
    await world.tick()
    assert world.deployment["spec"]["replicas"] == 1


async def test_another_tokenizer_leaves_likelihoods_out(world: World) -> None:
    await ready(world)
    put_policy(world, quality={"minSamples": 5, "maxDropPercent": 20})
    edit(world, **NEW)

    def other_words(pod: Pod) -> None:
        world.come_up(pod)
        world.engines.vocabularies[pod["status"]["podIP"]] = 1000

    await until(
        world, lambda each: bool(trials(each)) and "Likelihood" in evidence(each), other_words
    )
    left = evidence(world)["Likelihood"]
    assert (left["outcome"], left["reason"]) == ("LeftOut", "OtherTokenizer")
    assert only_trial(world)["state"] == "Running"
    assert not any(name.startswith("ServedLikelihood") for name in evidence(world))


async def test_another_tokenizer_without_tasks_decides_nothing(world: World) -> None:
    await ready(world)
    edit(world, **NEW)

    def other_words(pod: Pod) -> None:
        world.come_up(pod)
        world.engines.vocabularies[pod["status"]["podIP"]] = 1000

    await until(world, alone, other_words)
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("Inconclusive", "QualityNotShown")
    await look(world)
    assert world.condition("RolledBack")["status"] == "True"


async def test_a_format_that_engines_start_with_alone_is_no_obstacle(world: World) -> None:
    world.engines.offers = ("auto", "int8")
    await ready(world, kvCache={"dtype": "fp8_e4m3"})
    edit(world, **NEW, kvCache={"dtype": "fp8_e4m3"})
    await until(world, rolled_out, least=1)
    assert only_trial(world)["verdict"] == "Promoted"
    mine = [world.engines.dtypes[pod["status"]["podIP"]] for pod in stable(world)]
    assert mine == ["fp8_e4m3", "fp8_e4m3"]


async def test_a_claim_that_is_gone_for_a_while_ends_nothing(world: World) -> None:
    claim: dict[str, Any] = {"engine": engine_spec(compileCache={"claimName": "graphs"})}
    key = (Kind.PersistentVolumeClaim, NAMESPACE, "graphs")
    world.cluster.objects[key] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "graphs", "namespace": NAMESPACE, "uid": "graphs"},
    }
    await ready(world, **claim)
    edit(world, engine={**claim["engine"], "image": OTHER})
    await until(world, candidate_serves)
    gone = world.cluster.objects.pop(key)
    for _ in range(3):
        await look(world)
    world.cluster.objects[key] = gone
    await until(world, rolled_out)
    assert [t["status"]["verdict"] for t in trials(world).values()] == ["Promoted"]


async def test_a_model_that_forgets_fails_its_tasks(world: World) -> None:
    put_policy(world, quality={"minSamples": 5, "probes": ["Needle"]})
    await ready(world, model={"name": "tiny", "uri": "pvc://models/tiny-llama"})
    put_policy(world, quality={"minSamples": 5, "probes": ["Needle"]})
    edit(world, **NEW)

    def forgets(pod: Pod) -> None:
        world.come_up(pod)
        world.engines.dtypes[pod["status"]["podIP"]] = "forgetful"

    world.engines.confused.add("forgetful")
    await until(world, alone, forgets, looks=200)
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "QualityDrop")
    assert "Needle" in status["message"]


async def test_a_newer_edit_supersedes(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    edit(world)
    await until(world, alone, looks=20, least=1)
    assert (only_trial(world)["verdict"], only_trial(world)["reason"]) == ("Void", "Superseded")
    await until(world, lambda each: answering(each) == 2, looks=10)
    assert set(images(world)) == {IMAGE}
    assert world.condition("RolledBack")["status"] == "False"
    # The same again is another trial.
    edit(world, **NEW)
    await until(world, lambda each: len(trials(each)) == 2, looks=10)


async def test_a_newer_template_is_tried_in_its_place(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    third = "registry.example/engine:third"
    edit(world, engine=engine_spec(image=third))
    await until(world, lambda each: set(map(image, candidates(each))) == {third}, least=1)
    verdicts = [each["status"].get("verdict") for each in trials(world).values()]
    assert verdicts == ["Void", None]


async def test_a_trial_of_the_format_waits_for_that_of_the_image(world: World) -> None:
    await ready(world)
    edit(world, **NEW, kvCache={"dtype": "int8"})
    await until(world, candidate_serves)
    assert only_trial(world)["summary"].startswith("StartUp engine.image")
    assert "int8" not in world.engines.dtypes.values()
    await until(
        world,
        lambda each: (
            len(trials(each)) == 2
            and all(t["status"].get("verdict") == "Promoted" for t in trials(each).values())
        ),
        looks=300,
    )
    assert set(images(world)) == {OTHER}
    assert world.status["effective"]["kvCacheDtype"] == "int8"


async def test_a_trial_of_a_format_gives_way_to_one_of_the_image(world: World) -> None:
    await ready(world)
    edit(world, kvCache={"dtype": "int8"})
    await until(world, has_state("Running"))
    edit(world, **NEW, kvCache={"dtype": "int8"})
    await until(world, lambda each: bool(candidates(each)))
    assert "int8" not in [
        world.engines.dtypes.get(pod["status"]["podIP"]) for pod in world.engine_pods().values()
    ]
    verdicts = [each["status"].get("verdict") for each in trials(world).values()]
    assert verdicts == ["Void", None]


async def test_a_format_is_tried_on_the_old_image_once_the_new_one_is_turned_down(
    world: World,
) -> None:
    await ready(world)

    def crashes(pod: Pod) -> None:
        world.crash(pod, times=3, message="ValueError: broken")

    edit(world, **NEW, kvCache={"dtype": "int8"})
    await until(
        world,
        lambda each: len(trials(each)) == 2 and world.status["effective"]["kvCacheDtype"] == "int8",
        crashes,
        looks=300,
    )
    assert set(images(world)) == {IMAGE}
    for _ in range(5):
        await look(world, crashes)
    assert len(trials(world)) == 2
    assert world.condition("RolledBack")["status"] == "True"


async def test_the_way_back_to_16_bits_waits_for_no_image(world: World) -> None:
    await ready(world, kvCache={"dtype": "int8"})
    edit(world, **NEW, kvCache={"dtype": "int8"})
    await until(world, candidate_serves)
    edit(world, **NEW)
    for _ in range(3):
        await look(world)
    mine = [world.engines.dtypes[pod["status"]["podIP"]] for pod in stable(world)]
    assert set(mine) == {"bfloat16"}


async def test_pause_and_approval_are_a_persons(world: World) -> None:
    await ready(world)
    put_policy(world, ab={**POLICY["ab"], "approval": "Manual"})
    edit(world, **NEW)
    await until(world, has_state("Approval"))
    for _ in range(5):
        await look(world)
    assert sorted(images(world)) == sorted([OTHER, IMAGE])
    (trial,) = trials(world).values()
    trial["spec"]["control"] = "Promote"
    await until(world, rolled_out, least=1)


async def test_a_person_takes_it_back(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    (trial,) = trials(world).values()
    trial["spec"]["control"] = "RollBack"
    # Nothing is wrong with it: the others come up first.
    for _ in range(3):
        await look(world, least=1)
        if len(stable(world)) == 2:
            assert answering(world) >= 2
    await until(world, alone)
    assert only_trial(world)["reason"] == "AskedFor"
    assert images(world) == [IMAGE, IMAGE]


async def test_candidates_are_on_their_own_track_and_do_not_count_as_in_force(
    world: World,
) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    (pod,) = candidates(world)
    assert pod["metadata"]["labels"][TRACK_LABEL] == CANDIDATE
    service = world.cluster.of(Kind.Service)[NAME]["spec"]["selector"]
    assert service.items() <= pod["metadata"]["labels"].items()
    selector = world.cluster.of(Kind.Deployment)[CANDIDATES]["spec"]["selector"]
    assert not selector["matchLabels"].items() <= stable(world)[0]["metadata"]["labels"].items()


async def test_a_deployment_of_somebody_else_is_not_touched(world: World) -> None:
    await ready(world)
    other = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": CANDIDATES, "namespace": NAMESPACE, "uid": "theirs"},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": {}}, "spec": {}}},
    }
    world.cluster.objects[(Kind.Deployment, NAMESPACE, CANDIDATES)] = dict(other)
    edit(world, **NEW)
    for _ in range(6):
        await serve(world)
        world.finish_check(code=0)
    assert world.cluster.of(Kind.Deployment)[CANDIDATES] == other
    assert "is not of KVServing" in world.condition("Degraded")["message"]


async def test_a_lost_memory_leaves_no_candidates_behind(world: World) -> None:
    await ready(world)
    edit(world, **NEW)
    await until(world, candidate_serves)
    del world.cluster.objects[(Kind.ConfigMap, NAMESPACE, f"{NAME}-state")]
    world.new_controller()
    await until(world, rolled_out, looks=300, least=1)
    assert [t["status"]["verdict"] for t in trials(world).values()] == ["Promoted"]


class KilledError(Exception):
    """The end of a process, where a test wants it."""


async def _killed(world: World, kill_at: int, up: Callable[[Pod], None] | None) -> int:
    """Edit the image and kill the operator at its n-th write; give how many there were."""
    count = over = 0

    def on_change(kind: Kind, found: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            raise KilledError

    await ready(world)
    edit(world, **NEW)
    world.cluster.on_change = on_change
    for _ in range(150):
        try:
            await look(world, up, least=1)
        except KilledError:
            world.new_controller()
        over += int(bool(trials(world)) and alone(world) and answering(world) == 2)
        if over > 3:
            break
    return count


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("outcome", ["Promoted", "RolledBack", "Failed"])
async def test_killed_at_any_write_there_is_one_outcome(
    settings: Settings, outcome: str, part: int
) -> None:
    kill_at, writes = part, part
    while kill_at <= writes:
        world = World(settings)

        def up(pod: Pod, world: World = world) -> None:
            if outcome == "Failed":
                world.crash(pod, times=3, message="ValueError: broken")
                return
            world.come_up(pod)
            if outcome == "RolledBack":
                world.engines.worse_models[pod["status"]["podIP"]] = 0.4

        writes = await _killed(world, kill_at, up)
        await world.http.aclose()
        verdicts = [trial["status"].get("verdict") for trial in trials(world).values()]
        assert verdicts == [outcome], kill_at
        wanted = OTHER if outcome == "Promoted" else IMAGE
        assert images(world) == [wanted, wanted], kill_at
        assert CANDIDATES not in world.cluster.of(Kind.Deployment), kill_at
        assert len(world.said(f"Trial{outcome}")) <= 1, kill_at
        kill_at += 4
    assert writes > 20


def test_serving_bodies_of_this_file_are_valid() -> None:
    assert serving_body(**NEW)["spec"]["engine"]["image"] == OTHER
    pod: Pod = {"metadata": {"labels": {}}, "status": {}}
    set_condition(pod, "PodScheduled", "False")
    assert not is_scheduled(pod)
