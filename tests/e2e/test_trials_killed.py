"""The operator is killed in every state of a trial: one trial, one verdict, one fleet.

Which states there are is the machine's to say: one that this file does not reach fails it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness import chart, trials
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_serving
from harness.serving import engine_pods, wait_condition, wait_ready
from harness.trials import dtypes
from kvserving_tuner.trials.progress import State

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "killed"
PROMOTED = (State.SCREENING, State.RUNNING, State.APPROVAL, State.PROMOTING, State.FINISHED)
ROLLED_BACK = (State.RUNNING, State.ROLLING_BACK, State.FINISHED)
FLEETING = {State.PENDING, State.PROMOTING, State.ROLLING_BACK}
"""States that may be over before anybody can look."""


def policy() -> dict[str, Any]:
    """Give a policy that waits for approval, so that every state is gone through."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "approved"},
        "spec": {
            "ab": {
                "steps": [50], "minRequests": 5, "minDurationSeconds": 20, "approval": "Manual",
            },
            "quality": {"minSamples": 8, "maxDropPercent": 10, "probes": ["Likelihood"]},
            "guards": {
                "ttftMaxIncreasePercent": 1000,
                "tpotMaxIncreasePercent": 1000,
                "throughputMaxDropPercent": 100,
            },
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> Iterator[str]:
    kube.apply(policy(), namespace)
    reference = {"name": "approved"}
    kube.apply(tiny_serving(NAME, replicas=2, rollbackPolicyRef=reference), namespace)
    wait_ready(kube, NAME, namespace)
    url = kube.service_url(NAME, namespace)
    load = ChatLoad(url, "tiny", clients=8, max_tokens=16, pause_seconds=2)
    with in_background(load, 1800):
        yield namespace
    assert [] == load.failures


def trial_of(kube: Kube, namespace: str, dtype: str) -> Mapping[str, Any]:
    """Give the only trial of a format; an empty one before it is made."""
    mine = trials.trials_of(kube, namespace, {"kvCacheDtype": dtype})
    assert len(mine) <= 1, [trial["metadata"]["name"] for trial in mine]
    return mine[0] if mine else {}


def name_of(kube: Kube, namespace: str, dtype: str) -> str:
    return str(trial_of(kube, namespace, dtype)["metadata"]["name"])


def wait_state(kube: Kube, namespace: str, dtype: str, *states: State) -> State:
    """Wait until the trial of a format is in one of these states; give it."""

    def look() -> State | None:
        state = trial_of(kube, namespace, dtype).get("status", {}).get("state")
        return State(state) if state in states else None

    return wait_for(look, f"the trial of {dtype} is {states}", 600, every_seconds=0.2)


def kill_in(kube: Kube, namespace: str, dtype: str, states: tuple[State, ...]) -> set[State]:
    """Kill the operator in each of these states, as far as one can be seen; give those seen."""
    seen = set()
    for number, state in enumerate(states):
        later = [state, *states[number + 1 :]] if state in FLEETING else [state]
        reached = wait_state(kube, namespace, dtype, *later)
        seen.add(reached)
        if reached is state:
            chart.kill_operator(kube)
        if state is State.APPROVAL:
            trials.control(kube, namespace, name_of(kube, namespace, dtype), "Promote")
    return seen


def verdicts(kube: Kube, namespace: str, trial: str) -> list[Mapping[str, Any]]:
    status = (kube.get(KVSERVING, NAME, namespace) or {})["status"]
    return [entry for entry in status.get("verdicts", ()) if entry["trial"] == trial]


def test_every_state_is_one_that_this_file_kills_in() -> None:
    assert set(State) == {*PROMOTED, *ROLLED_BACK, State.PENDING}


def test_killed_in_every_state_of_a_trial_that_passes(kube: Kube, serving: str) -> None:
    pods = {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)}
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"dtype": "int8"}}})
    # At once: before the trial is made, or just after.
    chart.kill_operator(kube)
    seen = kill_in(kube, serving, "int8", PROMOTED)
    assert seen >= set(PROMOTED) - FLEETING
    trial = trial_of(kube, serving, "int8")
    assert "Promoted" == trial["status"]["verdict"], trial["status"]
    wait_for(lambda: ["int8"] * 2 == dtypes(kube, NAME, serving), "both engines run int8", 120)
    wait_condition(kube, NAME, serving, "QualityGate", "True", "Passed")
    assert 1 == len(verdicts(kube, serving, trial["metadata"]["name"]))
    assert pods == {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)}


def test_killed_in_every_state_of_a_trial_that_is_rolled_back(kube: Kube, serving: str) -> None:
    before = dtypes(kube, NAME, serving)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"dtype": "int4"}}})
    wait_state(kube, serving, "int4", State.RUNNING)
    wait_for(lambda: "int4" in dtypes(kube, NAME, serving), "one engine runs int4", 120)
    chart.kill_operator(kube)
    trials.control(kube, serving, name_of(kube, serving, "int4"), "RollBack")
    kill_in(kube, serving, "int4", ROLLED_BACK[1:])
    trial = trial_of(kube, serving, "int4")
    assert ("RolledBack", "AskedFor") == (trial["status"]["verdict"], trial["status"]["reason"])
    wait_for(lambda: before == dtypes(kube, NAME, serving), "engines run what they did", 120)
    wait_condition(kube, NAME, serving, "RolledBack", "True", "TrialRolledBack")
    assert 1 == len(verdicts(kube, serving, trial["metadata"]["name"]))
