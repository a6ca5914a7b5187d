"""Edits that need other engines are tried on pods of their own, under load and with real engines.

The engine's flags stand for its image: both decide about answers, and both take a start.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from harness import chart, trials
from harness.kube import KVSERVING, Kube, condition, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_condition, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "restart"
CANDIDATES = f"{NAME}-candidate"


def policy() -> dict[str, Any]:
    """Give a policy of one short step, whose guards hold on a busy machine."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "brief"},
        "spec": {
            "ab": {"steps": [50], "minRequests": 3, "minDurationSeconds": 15},
            "quality": {"minSamples": 8, "maxDropPercent": 10, "probes": ["Likelihood"]},
            "guards": {
                "ttftMaxIncreasePercent": 1000,
                "tpotMaxIncreasePercent": 1000,
                "throughputMaxDropPercent": 100,
            },
        },
    }


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> Iterator[str]:
    kube.apply(policy(), namespace)
    kube.apply(tiny_serving(NAME, replicas=2, rollbackPolicyRef={"name": "brief"}), namespace)
    wait_ready(kube, NAME, namespace)
    url = kube.service_url(NAME, namespace)
    load = ChatLoad(url, "tiny", clients=4, max_tokens=16, pause_seconds=2)
    with in_background(load, 1800):
        yield namespace
    assert len(load.outcomes) > 10
    assert [] == load.failures


def pods(kube: Kube, namespace: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in engine_pods(kube, NAME, namespace)}


def status(kube: Kube, namespace: str, word: str) -> dict[str, Any]:
    """Status of the trial whose change has a word in it; an empty one before it is made."""
    found = [
        trial
        for trial in kube.objects(trials.TRIAL, namespace)
        if word in trial["spec"]["change"].get("startUp", "")
    ]
    assert len(found) <= 1, [trial["metadata"]["name"] for trial in found]
    return dict(found[0].get("status", {})) if found else {}


def wait_status(kube: Kube, namespace: str, word: str, name: str, *values: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = status(kube, namespace, word)
        return found if found.get(name) in values else None

    return wait_for(look, f"the trial of {word}: {name} in {values}", 400)


def candidate_answers(kube: Kube, namespace: str) -> bool:
    found = [p for p in engine_pods(kube, NAME, namespace) if "kvserving.dev/deployment" in
             p["metadata"]["labels"]]  # fmt: skip
    return any(condition(pod, "Ready").get("status") == "True" for pod in found)


def test_a_flag_is_tried_on_one_pod_and_rolled_out_whoever_is_killed(
    kube: Kube, serving: str
) -> None:
    before = pods(kube, serving)
    flags = [*tiny_engine()["extraArgs"], "--seed=7"]
    kube.patch(KVSERVING, NAME, serving, {"spec": {"engine": {"extraArgs": flags}}})
    wait_for(lambda: candidate_answers(kube, serving), "a candidate answers", 300)
    assert len(before & pods(kube, serving)) >= 1
    chart.kill_operator(kube)
    ended = wait_status(kube, serving, "--seed=7", "verdict", "Promoted")
    chart.kill_operator(kube)
    names = {each["name"]: each for each in ended["evidence"]}
    assert "Passed" == names["ServedLikelihoodShort"]["outcome"], names
    wait_for(
        lambda: len(pods(kube, serving)) == 2 and not before & pods(kube, serving),
        "both pods are new",
        400,
    )
    serving_object = wait_ready(kube, NAME, serving)
    assert "False" == condition(serving_object, "RolledBack")["status"]
    assert kube.get("deployment", CANDIDATES, serving) is None


def test_an_engine_that_does_not_start_leaves_all_as_it_was(kube: Kube, serving: str) -> None:
    before = pods(kube, serving)
    # Nothing but the worker itself reads it.
    env = [{"name": "OMP_NUM_THREADS", "value": "1"},
           {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nowhere"}]  # fmt: skip
    kube.patch(KVSERVING, NAME, serving, {"spec": {"podTemplate": {"env": env}}})
    ended = wait_status(kube, serving, "podTemplate.env", "verdict", "Failed")
    assert "StartFailed" == ended["reason"], ended
    wait_condition(kube, NAME, serving, "RolledBack", "True", "TrialRolledBack")
    wait_for(lambda: pods(kube, serving) == before, "the same pods serve", 120)
    assert kube.get("deployment", CANDIDATES, serving) is None
