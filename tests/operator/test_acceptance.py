"""What is said of policies and trials as such."""

import copy
from typing import Any

import pytest

from kvserving_operator.acceptance import Acceptance
from kvserving_operator.cluster import apply_status
from kvserving_operator.kinds import Kind
from operatorkit.cluster import Clock, MemoryCluster
from operatorkit.specs import NAME, NAMESPACE, serving_body


class Known:
    """A cluster with one policy and one trial in it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cluster = MemoryCluster(self.clock)
        self.acceptance = Acceptance(self.cluster, self.clock)
        self.put(Kind.KVRollbackPolicy, "policy", {"ab": {"steps": [50]}})
        self.put(Kind.KVTrial, "trial", {
            "servingRef": {"name": NAME}, "change": {"kvCacheDtype": "int8"}
        })  # fmt: skip

    def put(self, kind: Kind, name: str, spec: dict[str, Any]) -> None:
        """Store one as a user would have made it."""
        self.cluster.objects[(kind, NAMESPACE, name)] = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": name, "generation": 1,
                "resourceVersion": "0",
            },
            "spec": spec,
        }  # fmt: skip

    def status(self, kind: Kind, name: str) -> dict[str, Any]:
        """Give the stored status."""
        found: dict[str, Any] = self.cluster.objects[(kind, NAMESPACE, name)].get("status", {})
        return found

    async def policy(self) -> dict[str, Any]:
        """Have the policy looked at; give its only condition."""
        key = (Kind.KVRollbackPolicy, NAMESPACE, "policy")
        await self.acceptance.policy(self.cluster.objects[key])
        (condition,) = self.status(Kind.KVRollbackPolicy, "policy")["conditions"]
        return dict(condition)

    async def trial(self) -> dict[str, Any]:
        """Have the trial looked at; give its status."""
        await self.acceptance.trial(self.cluster.objects[Kind.KVTrial, NAMESPACE, "trial"])
        return self.status(Kind.KVTrial, "trial")


@pytest.fixture
def known() -> Known:
    return Known()


async def test_a_policy_that_is_valid_is_said_to_be(known: Known) -> None:
    condition = await known.policy()
    assert ("Accepted", "True", "Accepted") == (
        condition["type"], condition["status"], condition["reason"],
    )  # fmt: skip


async def test_a_policy_that_breaks_a_rule_names_the_field(known: Known) -> None:
    # As one made before the rule was.
    known.put(Kind.KVRollbackPolicy, "policy", {"ab": {"steps": [50, 20]}})
    condition = await known.policy()
    assert ("False", "InvalidSpec") == (condition["status"], condition["reason"])
    assert "spec.ab.steps" in condition["message"]


async def test_what_is_said_already_is_not_written_again(known: Known) -> None:
    await known.policy()
    await known.trial()
    writes = len(known.cluster.changes)
    known.clock.advance(60)
    await known.policy()
    await known.trial()
    assert writes == len(known.cluster.changes)


async def test_a_trial_of_no_serving_says_what_is_missing_and_when_it_begins(known: Known) -> None:
    status = await known.trial()
    assert "Pending" == status["state"]
    (condition,) = status["conditions"]
    assert ("False", "ServingNotFound") == (condition["status"], condition["reason"])
    assert f"spec.servingRef.name: KVServing {NAME} does not exist" in status["message"]


async def test_a_trial_that_nobody_has_looked_at_says_what_it_waits_for(known: Known) -> None:
    known.cluster.objects[Kind.KVServing, NAMESPACE, NAME] = serving_body()
    status = await known.trial()
    assert "True" == status["conditions"][0]["status"]
    assert NAME in status["message"]


@pytest.mark.parametrize("state", ["Screening", "Running", "Finished"])
async def test_a_trial_that_looks_tell_of_is_left_to_them(known: Known, state: str) -> None:
    body = known.cluster.objects[Kind.KVTrial, NAMESPACE, "trial"]
    body["status"] = {"state": state}
    assert {"state": state} == await known.trial()


@pytest.mark.parametrize("kind", [Kind.KVRollbackPolicy, Kind.KVTrial])
async def test_what_was_told_since_the_event_is_left_alone(known: Known, kind: Kind) -> None:
    name = "policy" if kind is Kind.KVRollbackPolicy else "trial"
    known.cluster.objects[Kind.KVServing, NAMESPACE, NAME] = serving_body()
    seen = copy.deepcopy(known.cluster.objects[kind, NAMESPACE, name])
    since = {"state": "Finished", "verdict": "Failed"} if kind is Kind.KVTrial else {}
    await apply_status(known.cluster, kind, NAMESPACE, name, since)
    look = known.acceptance.trial if kind is Kind.KVTrial else known.acceptance.policy
    await look(seen)
    assert since == known.status(kind, name)
