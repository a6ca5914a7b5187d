"""The example policies, from the edit to the verdict, on real engines that serve all the while.

Their bounds, steps, guards and approval are those of the files; only the clocks are shortened, so
that all three fit in minutes.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.kube import KVSERVING, Kube, condition, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_serving
from harness.serving import wait_condition, wait_ready
from harness.trials import control, wait_trial

pytestmark = [pytest.mark.cluster, pytest.mark.full]
EXAMPLES = Path(__file__).parents[2] / "examples/04-rollback-policy"
NAME = "guarded"
POLICY = "kvrollbackpolicies.kvserving.dev"
CLOCKS = {"minRequests": 5, "minDurationSeconds": 15}


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> Iterator[str]:
    for policy in ("cautious", "fast", "manual"):
        manifest = yaml.safe_load((EXAMPLES / f"{policy}.yaml").read_text())
        manifest["spec"]["ab"] |= CLOCKS
        kube.apply(manifest, namespace)
    reference = {"name": "cautious"}
    kube.apply(tiny_serving(NAME, replicas=2, rollbackPolicyRef=reference), namespace)
    wait_ready(kube, NAME, namespace)
    url = kube.service_url(NAME, namespace)
    # Connections stay with their pod: of eight, each pod has some.
    load = ChatLoad(url, "tiny", clients=8, max_tokens=16, pause_seconds=2)
    with in_background(load, 1800):
        yield namespace
    assert [] == load.failures


def edit(kube: Kube, namespace: str, policy: str, dtype: str) -> None:
    spec = {"rollbackPolicyRef": {"name": policy}, "kvCache": {"dtype": dtype}}
    kube.patch(KVSERVING, NAME, namespace, {"spec": spec})


def wait_promoted(kube: Kube, namespace: str, dtype: str) -> Mapping[str, Any]:
    trial = wait_trial(kube, namespace, {"kvCacheDtype": dtype}, 600, state="Finished")
    assert "Promoted" == trial["status"]["verdict"], trial["status"]
    wait_condition(kube, NAME, namespace, "QualityGate", "True", "Passed")
    status = (kube.get(KVSERVING, NAME, namespace) or {})["status"]
    assert dtype == status["effective"]["kvCacheDtype"]
    return trial


def test_every_policy_says_that_it_is_valid(kube: Kube, serving: str) -> None:
    for name in ("cautious", "fast", "manual"):
        wait_for(
            lambda name=name: (  # type: ignore[misc]
                condition(kube.get(POLICY, name, serving), "Accepted").get("status") == "True"
            ),
            f"policy {name} is accepted",
            30,
        )


@pytest.mark.parametrize(("policy", "dtype"), [("cautious", "int8"), ("fast", "k8v4")])
def test_a_policy_promotes_what_keeps_its_bounds(
    kube: Kube, serving: str, policy: str, dtype: str
) -> None:
    edit(kube, serving, policy, dtype)
    trial = wait_promoted(kube, serving, dtype)
    # The policy is pinned in the trial as it was when that began.
    file = yaml.safe_load((EXAMPLES / f"{policy}.yaml").read_text())["spec"]
    pinned = trial["spec"]["policy"]
    assert file["ab"]["steps"] == pinned["ab"]["steps"]
    assert file["quality"]["maxDropPercent"] == pinned["quality"]["maxDropPercent"]
    least = file["quality"]["minSamples"]
    served = [e for e in trial["status"]["evidence"] if e["name"].startswith("ServedLikelihood")]
    assert served
    assert all(each["samples"] >= least for each in served)


def test_a_policy_with_approval_waits_for_a_person(kube: Kube, serving: str) -> None:
    edit(kube, serving, "manual", "int4")
    trial = wait_trial(kube, serving, {"kvCacheDtype": "int4"}, 600, state="Approval")
    assert "waits for approval" in trial["status"]["message"]
    control(kube, serving, trial["metadata"]["name"], "Promote")
    wait_promoted(kube, serving, "int4")
    assert "TrialApproval" in {event["reason"] for event in kube.events(serving, NAME)}
