"""The first example from `kubectl apply` to a tuned engine under load, and back to nothing."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from harness.kube import KVSERVING, ROOT, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.serving import complete, engine_pods, wait_ready
from kvserving_tuner.scrape import parse_exposition

pytestmark = pytest.mark.cluster
MANIFEST = ROOT / "examples/01-quickstart/kvserving.yaml"
SPEC = yaml.safe_load(MANIFEST.read_text())
NAME = SPEC["metadata"]["name"]
MODEL = SPEC["spec"]["model"]["name"]


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(MANIFEST, namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


@pytest.fixture(scope="module")
def storm(kube: Kube, serving: str) -> Iterator[ChatLoad]:
    """More conversations than the KV cache holds, for as long as the module's tests run."""
    load = ChatLoad(
        kube.service_url(NAME, serving), MODEL,
        clients=SPEC["spec"]["engine"]["maxNumSeqs"], max_tokens=192, turns=1,
    )  # fmt: skip
    with in_background(load, 3600, join_seconds=300):
        yield load


def preemptions(kube: Kube, namespace: str) -> float:
    pod = engine_pods(kube, NAME, namespace)[0]
    text = httpx.get(f"http://{pod['status']['podIP']}:8000/metrics", timeout=10).text
    return sum(s.value for s in parse_exposition(text) if s.name == "vllm:num_preemptions_total")


def effective_cap(kube: Kube, namespace: str) -> int:
    status = (kube.get(KVSERVING, NAME, namespace) or {}).get("status", {})
    return int(status.get("effective", {}).get("maxActiveSeqs", 0))


def wait_settled(kube: Kube, namespace: str) -> None:
    """Wait until the cap was lowered and no preemption happens any more."""

    def calm() -> bool:
        before = preemptions(kube, namespace)
        time.sleep(20)
        return preemptions(kube, namespace) == before

    start_cap = SPEC["spec"]["engine"]["maxNumSeqs"]
    wait_for(lambda: effective_cap(kube, namespace) < start_cap, "the cap is lowered", 400)
    wait_for(calm, "20 seconds without a preemption", timeout_seconds=400)


def test_it_answers_through_the_service(kube: Kube, serving: str) -> None:
    assert "Paris" in complete(
        kube.service_url(NAME, serving), MODEL, "The capital of France is", max_tokens=8
    )


def test_kubectl_get_prints_what_a_user_asks_first(kube: Kube, serving: str) -> None:
    header, row = kube.run("get", "kvs", "-n", serving).splitlines()[:2]
    columns = ["NAME", "READY", "KV", "SEQS", "MODE", "GATE", "REASON", "AGE"]
    assert columns == header.split()
    name, ready, kv, seqs, mode, *_ = row.split()
    assert (NAME, "True", "float32", "Auto") == (name, ready, kv, mode)
    assert str(SPEC["spec"]["engine"]["maxNumSeqs"]) == seqs


def test_a_preemption_storm_lowers_the_cap_and_loses_nothing(
    kube: Kube, serving: str, storm: ChatLoad
) -> None:
    start_cap = effective_cap(kube, serving)
    wait_for(lambda: preemptions(kube, serving) > 0, "the first preemption", 240, every_seconds=0.5)
    began = time.monotonic()
    cap = wait_for(
        lambda: (now := effective_cap(kube, serving)) < start_cap and now,
        "the cap is lowered",
        timeout_seconds=120,
        every_seconds=0.5,
    )
    # The goal is 30 s; machines differ, so the figure is shown and not asserted.
    seconds = time.monotonic() - began
    print(f"cap {start_cap} -> {cap}, {seconds:.1f} s after the first preemption")  # noqa: T201
    decision = decision_of(kube, serving)
    assert "PreemptionStorm" == decision["diagnosis"]
    assert decision["numbers"]
    assert any("PreemptionStorm" in e["message"] + e["reason"] for e in kube.events(serving, NAME))
    assert [] == storm.failures


def test_under_steady_overload_the_storm_ends_and_the_cap_settles(
    kube: Kube, serving: str, storm: ChatLoad
) -> None:
    wait_settled(kube, serving)
    assert len(storm.outcomes) > 0
    assert [] == storm.failures


@pytest.mark.full
def test_in_ten_quiet_minutes_the_cap_hardly_moves(
    kube: Kube, serving: str, storm: ChatLoad
) -> None:
    wait_settled(kube, serving)
    # The same load goes on: requests wait at every look, so an unsteady tuner would go up and down.
    caps = [effective_cap(kube, serving)]
    before, ends = preemptions(kube, serving), time.monotonic() + 600
    while time.monotonic() < ends:
        cap = effective_cap(kube, serving)
        if cap != caps[-1]:
            caps.append(cap)
        time.sleep(1)
    more = preemptions(kube, serving) - before
    print(f"caps in ten minutes: {caps}, {more:.0f} preemptions")  # noqa: T201
    assert len(caps) - 1 <= 2
    assert [] == storm.failures


@pytest.mark.full
def test_in_a_calm_window_with_waiting_sequences_the_cap_is_raised_again(
    kube: Kube, serving: str, storm: ChatLoad
) -> None:
    # The long conversations end; short ones queue behind a cap that is now too low for them.
    storm.stop()
    low = effective_cap(kube, serving)
    load = ChatLoad(
        kube.service_url(NAME, serving), MODEL,
        clients=SPEC["spec"]["engine"]["maxNumSeqs"], max_tokens=24, turns=1,
    )  # fmt: skip
    with in_background(load, 420):
        wait_for(lambda: effective_cap(kube, serving) > low, "the cap is raised", 400)
    assert [] == load.failures


def decision_of(kube: Kube, namespace: str) -> dict[str, Any]:
    status = (kube.get(KVSERVING, NAME, namespace) or {})["status"]
    decision: dict[str, Any] = status["lastDecision"]
    return decision


def test_deleting_it_removes_every_child(kube: Kube, serving: str) -> None:
    kube.run("delete", "-f", str(MANIFEST), "-n", serving, "--wait", "--timeout=60s")
    kinds = (
        "deployments,replicasets,pods,services,serviceaccounts,secrets,configmaps,"
        "poddisruptionbudgets.policy,networkpolicies.networking.k8s.io"
    )
    wait_for(
        lambda: (
            ""
            == kube.run(
                "get", kinds, "-n", serving, "-l", f"kvserving.dev/serving={NAME}", "-o", "name"
            )
        ),
        "every child is gone",
        timeout_seconds=120,
    )
