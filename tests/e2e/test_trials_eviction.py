"""An edit of eviction under a policy is a trial that task probes judge, on real engines.

The model is small and trained: it finds a needle in 16 bits, and cannot once its place was dropped.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness import trials
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import wait_condition, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "forgetful"
SMALL = {"policy": "StreamingLLM", "sinkTokens": 64, "windowTokens": 256}
TOO_LONG = {"policy": "StreamingLLM", "sinkTokens": 64, "windowTokens": 1920}


def policy(*probes: str, **quality: int) -> dict[str, Any]:
    """Give a policy that a small machine can carry out in minutes."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "by-tasks"},
        "spec": {
            "ab": {"steps": [50], "minRequests": 5, "minDurationSeconds": 20},
            "guards": {
                "ttftMaxIncreasePercent": 1000,
                "tpotMaxIncreasePercent": 1000,
                "throughputMaxDropPercent": 100,
            },
            "quality": {
                "minSamples": 8, "maxDropPercent": 20, "probes": list(probes), **quality
            },
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(policy("Needle"), namespace)
    manifest = tiny_serving(
        NAME,
        replicas=2,
        model={"name": "smollm2", "uri": "pvc://models/SmolLM2-135M-Instruct"},
        engine=tiny_engine(
            maxModelLen=2048,
            maxNumBatchedTokens=512,
            kvCacheMemory="256Mi",
            # Processors without AVX-512 or AMX compute several times faster in 32 bits.
            extraArgs=["--enforce-eager", "--dtype=float32"],
        ),
        rollbackPolicyRef={"name": "by-tasks"},
    )
    kube.apply(manifest, namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


@pytest.fixture
def client(kube: Kube, serving: str) -> Iterator[ChatLoad]:
    """A client that sends all the while; it fails the test where a request failed."""
    url = kube.service_url(NAME, serving)
    load = ChatLoad(url, "smollm2", clients=6, max_tokens=8, pause_seconds=6)
    with in_background(load, 1800):
        yield load
    assert [] == load.failures


def edit(kube: Kube, namespace: str, eviction: Mapping[str, Any]) -> None:
    """Edit the KVServing's eviction as a person would."""
    unset = dict.fromkeys(("sinkTokens", "windowTokens"))
    kube.patch(
        KVSERVING, NAME, namespace, {"spec": {"kvCache": {"eviction": {**unset, **eviction}}}}
    )


def wait_trial(kube: Kube, namespace: str, window: int, state: str) -> Mapping[str, Any]:
    """Wait until the trial of a window is in a state; give its status."""
    change = {"eviction": {"windowTokens": window}}
    trial = trials.wait_trial(kube, namespace, change, 1500, state=state)
    status: Mapping[str, Any] = trial["status"]
    return status


def evictions(kube: Kube, namespace: str) -> str:
    """Eviction in force, by status."""
    status = (kube.get(KVSERVING, NAME, namespace) or {})["status"]
    return str(status["effective"]["eviction"])


def test_a_window_that_loses_needles_is_rolled_back(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    edit(kube, serving, SMALL)
    wait_trial(kube, serving, 256, "Screening")
    assert "None" == evictions(kube, serving)
    wait_trial(kube, serving, 256, "Running")
    status = wait_trial(kube, serving, 256, "Finished")
    assert ("RolledBack", "QualityDrop") == (status["verdict"], status["reason"]), status
    assert "ServedNeedle" in status["message"]
    assert status["summary"].startswith("Eviction ")
    failed = {each["name"] for each in status["evidence"] if each["outcome"] == "Failed"}
    assert any(name.startswith("ServedNeedle") for name in failed)
    wait_for(lambda: "None" == evictions(kube, serving), "engines keep every token", 60)
    wait_condition(kube, NAME, serving, "RolledBack", "True", "TrialRolledBack")
    edit(kube, serving, {"policy": "None"})
    wait_condition(kube, NAME, serving, "RolledBack", "False", "NotRolledBack")


def test_a_window_that_no_prompt_exceeds_is_refused(kube: Kube, serving: str) -> None:
    edit(kube, serving, TOO_LONG)
    status = wait_trial(kube, serving, 1920, "Finished")
    assert ("Failed", "ProbeSetTooShort") == (status["verdict"], status["reason"]), status
    assert "None" == evictions(kube, serving)
    edit(kube, serving, {"policy": "None"})
    wait_condition(kube, NAME, serving, "RolledBack", "False", "NotRolledBack")
