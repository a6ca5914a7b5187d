"""An edit under a policy is a trial: on real engines that serve all the while.

In `make test-full`: the cluster's lane of `make test` has no minutes left.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from harness import trials
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_condition, wait_ready
from harness.trials import dtypes, wait_trial

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "tried"


def policy(**quality: int) -> dict[str, Any]:
    """Give a policy that a small machine can carry out in minutes."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "quick"},
        "spec": {
            "ab": {"steps": [50], "minRequests": 10, "minDurationSeconds": 20},
            "quality": {"minSamples": 8, "probes": ["Likelihood"], **quality},
        },
    }


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(policy(maxDropPercent=10), namespace)
    manifest = tiny_serving(NAME, replicas=2, rollbackPolicyRef={"name": "quick"})
    kube.apply(manifest, namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


@pytest.fixture
def client(kube: Kube, serving: str) -> Iterator[ChatLoad]:
    """A client that sends all the while; it fails the test where a request failed."""
    url = kube.service_url(NAME, serving)
    # Connections stay with their pod: of eight, each pod has some.
    load = ChatLoad(url, "tiny", clients=8, max_tokens=16, pause_seconds=2)
    with in_background(load, 900):
        yield load
    assert [] == load.failures


def test_a_good_format_is_screened_tried_on_one_engine_and_promoted(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    pods = {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)}
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"dtype": "int8"}}})
    change = {"kvCacheDtype": "int8"}
    wait_trial(kube, serving, change, state="Running")
    assert "bfloat16" in dtypes(kube, NAME, serving) or "float32" in dtypes(kube, NAME, serving)
    status = wait_trial(kube, serving, change, state="Finished")["status"]
    assert "Promoted" == status["verdict"], status
    wait_for(lambda: ["int8"] * 2 == dtypes(kube, NAME, serving), "both engines run int8", 60)
    assert pods == {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)}
    wait_condition(kube, NAME, serving, "QualityGate", "True", "Passed")
    served = [each for each in status["evidence"] if each["name"].startswith("Served")]
    assert served
    assert all(each["outcome"] == "Passed" for each in served)
    said = {event["reason"] for event in kube.events(serving, NAME)}
    assert {"TrialStarted", "TrialStep", "TrialPromoted"} <= said


def test_a_trial_by_hand_ends_when_a_person_says_so(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    before = dtypes(kube, NAME, serving)
    change = {"kvCacheDtype": "int4"}
    kube.apply(trials.manifest("by-hand", NAME, change, policy(maxDropPercent=10)), serving)
    wait_trial(kube, serving, change, state="Running")
    wait_for(lambda: "int4" in dtypes(kube, NAME, serving), "one engine runs int4", 60)
    trials.control(kube, serving, "by-hand", "RollBack")
    status = wait_trial(kube, serving, change, state="Finished")["status"]
    assert ("RolledBack", "AskedFor") == (status["verdict"], status["reason"])
    wait_for(lambda: before == dtypes(kube, NAME, serving), "engines run what they did", 60)


def test_a_single_engine_is_compared_with_itself_by_turns(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    name, change = "single", {"kvCacheDtype": "int8"}
    kube.apply(tiny_serving(name, replicas=1, rollbackPolicyRef={"name": "quick"}), serving)
    wait_ready(kube, name, serving)
    pods = {pod["metadata"]["uid"] for pod in engine_pods(kube, name, serving)}
    load = ChatLoad(kube.service_url(name, serving), "tiny", clients=4, max_tokens=16)
    with in_background(load, 1800):
        trial = trials.manifest("by-turns", name, change, policy(maxDropPercent=10))
        # Each turn with the change ends with one without it.
        trial["spec"]["policy"]["ab"]["minDurationSeconds"] = 100
        kube.apply(trial, serving)
        seen: list[str] = []

        def ended() -> dict[str, Any] | None:
            found = kube.get(trials.TRIAL, "by-turns", serving) or {}
            for dtype in dtypes(kube, name, serving):
                if dtype and (not seen or seen[-1] != dtype):
                    seen.append(dtype)
            status: dict[str, Any] = found.get("status", {})
            return status if status.get("state") == "Finished" else None

        status = wait_for(ended, "the trial by turns ends", 1200)
    assert [] == load.failures
    assert "Promoted" == status["verdict"], status
    assert seen.count("int8") >= 2, seen
    assert "int8" == seen[-1]
    assert status["quietBlocks"] >= 1, status
    # Latencies only where loads of both turns are within 10 %; throughput in any pair.
    (throughput,) = (e for e in status["evidence"] if e["name"] == "Throughput")
    assert int(throughput["samples"]) >= 1, status
    assert pods == {pod["metadata"]["uid"] for pod in engine_pods(kube, name, serving)}
    kube.run("delete", KVSERVING, name, "-n", serving, "--wait", "--timeout=120s")


@pytest.fixture
def smollm2(kube: Kube, serving: str) -> Iterator[str]:
    """A KVServing of a trained model, under the default bound of 2 %."""
    name = "trained"
    kube.apply(policy(maxDropPercent=2, minSamples=30), serving)
    model = {"name": "smollm2", "uri": "pvc://models/SmolLM2-135M-Instruct"}
    # Processors without AVX-512 or AMX compute several times faster in 32 bits.
    engine = tiny_engine(extraArgs=["--enforce-eager", "--dtype=float32"])
    policy_ref = {"name": "quick"}
    manifest = tiny_serving(name, model=model, engine=engine, rollbackPolicyRef=policy_ref)
    kube.apply(manifest, serving)
    wait_ready(kube, name, serving)
    yield name
    kube.run("delete", KVSERVING, name, "-n", serving, "--wait", "--timeout=120s")


def test_a_bad_format_never_reaches_a_user(kube: Kube, serving: str, smollm2: str) -> None:
    kube.patch(KVSERVING, smollm2, serving, {"spec": {"kvCache": {"dtype": "int2"}}})
    trial = wait_trial(kube, serving, {"kvCacheDtype": "int2"}, 900, state="Finished")
    status = trial["status"]
    assert ("RolledBack", "QualityDrop") == (status["verdict"], status["reason"]), status
    assert "step" not in status
    assert "ScreenedLikelihood" in status["message"]
    found = wait_condition(kube, smollm2, serving, "RolledBack", "True", "TrialRolledBack")
    assert "int2" in found["message"]
    effective = kube.get(KVSERVING, smollm2, serving)["status"]["effective"]  # type: ignore[index]
    assert "int2" != effective["kvCacheDtype"]
    warnings = [e for e in kube.events(serving, smollm2) if e["reason"] == "TrialRolledBack"]
    assert ["Warning"] == [event["type"] for event in warnings]
