"""An edit that needs new pods rolls them exactly once, and no client sees it."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness.kube import KVSERVING, Kube, condition, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_ready

pytestmark = pytest.mark.cluster
NAME = "rolling"
STREAMING = {"policy": "StreamingLLM", "sinkTokens": 4, "windowTokens": 256}


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(tiny_serving(NAME, replicas=2), namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


@pytest.fixture
def client(kube: Kube, serving: str) -> Iterator[ChatLoad]:
    """A client that sends all the while; it fails the test where a request failed."""
    url = kube.service_url(NAME, serving)
    load = ChatLoad(url, "tiny", clients=2, max_tokens=16, pause_seconds=0.5)
    with in_background(load, 900):
        yield load
    assert len(load.outcomes) > 10
    assert [] == load.failures


def revision(kube: Kube, namespace: str) -> int:
    deployment = kube.get("deployment", NAME, namespace)
    assert deployment is not None
    return int(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def containers(kube: Kube, namespace: str) -> dict[str, str]:
    """Identity of each pod and of the container that runs in it."""
    return {
        pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["containerID"]
        for pod in engine_pods(kube, NAME, namespace)
    }


def capacity(kube: Kube, namespace: str) -> int:
    """Tokens that fit into an engine's KV cache, by status."""
    status = (kube.get(KVSERVING, NAME, namespace) or {})["status"]
    return int(status["capacity"]["kvCacheTokens"])


def wait_effective(kube: Kube, namespace: str, **wanted: str) -> None:
    """Wait until status reads these settings back from all engines."""

    def effective() -> bool:
        status = (kube.get(KVSERVING, NAME, namespace) or {}).get("status", {})
        found = status.get("effective", {})
        return all(found.get(name) == value for name, value in wanted.items())

    wait_for(effective, f"effective settings have {wanted}", timeout_seconds=120)


def edit(kube: Kube, namespace: str, spec: dict[str, Any]) -> set[str]:
    """Change the spec, wait for the rollout, and give the names of the new pods."""
    before = {pod["metadata"]["name"] for pod in engine_pods(kube, NAME, namespace)}
    kube.patch(KVSERVING, NAME, namespace, {"spec": spec})
    wait_for(
        lambda: (
            not before & {pod["metadata"]["name"] for pod in engine_pods(kube, NAME, namespace)}
        ),
        "both pods are new",
        timeout_seconds=400,
    )
    wait_ready(kube, NAME, namespace)
    return {pod["metadata"]["name"] for pod in engine_pods(kube, NAME, namespace)}


def test_max_num_seqs_rolls_once_without_a_failed_request(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    before = revision(kube, serving)
    pods = edit(kube, serving, {"engine": {"maxNumSeqs": 12}})
    assert 2 == len(pods)
    assert before + 1 == revision(kube, serving)
    effective = kube.get(KVSERVING, NAME, serving)["status"]["effective"]  # type: ignore[index]
    assert 12 == effective["maxActiveSeqs"]


@pytest.mark.full
def test_one_extra_argument_rolls_once_without_a_failed_request(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    before = revision(kube, serving)
    extra = [*tiny_engine()["extraArgs"], "--seed=7"]
    edit(kube, serving, {"engine": {"extraArgs": extra}})
    assert before + 1 == revision(kube, serving)


def test_a_kv_dtype_reaches_both_engines_while_they_serve(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    before, pods = revision(kube, serving), containers(kube, serving)
    room = capacity(kube, serving)
    wait_for(lambda: len(client.outcomes) > 4, "the client is served", timeout_seconds=120)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"dtype": "int4"}}})
    wait_effective(kube, serving, kvCacheDtype="int4")
    wait_ready(kube, NAME, serving)
    assert (before, pods) == (revision(kube, serving), containers(kube, serving))
    assert capacity(kube, serving) > 3 * room


@pytest.mark.full
def test_eviction_reaches_both_engines_and_leaves_them_while_they_serve(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    before, pods = revision(kube, serving), containers(kube, serving)
    wait_for(lambda: len(client.outcomes) > 4, "the client is served", timeout_seconds=120)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"eviction": STREAMING}}})
    wait_effective(kube, serving, eviction="StreamingLLM")
    # In a merge patch, null removes the field.
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"eviction": None}}})
    wait_effective(kube, serving, eviction="None")
    wait_ready(kube, NAME, serving)
    assert (before, pods) == (revision(kube, serving), containers(kube, serving))


@pytest.mark.full
def test_a_pod_that_takes_anothers_place_has_dtype_and_eviction_before_it_is_ready(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    cache = {"dtype": "int4", "eviction": STREAMING}
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": cache}})
    wait_effective(kube, serving, kvCacheDtype="int4", eviction="StreamingLLM")
    before = containers(kube, serving)
    gone = engine_pods(kube, NAME, serving)[0]["metadata"]["name"]
    kube.run("delete", "pod", gone, "-n", serving, "--wait=false")

    def newcomer() -> dict[str, Any] | None:
        new = [p for p in engine_pods(kube, NAME, serving) if p["metadata"]["uid"] not in before]
        return new[0] if new and condition(new[0], "Ready").get("status") == "True" else None

    pod = wait_for(newcomer, "the new pod is Ready", timeout_seconds=400, every_seconds=0.2)
    secret = kube.get("secret", f"{NAME}-token", serving)
    assert secret is not None
    token = base64.b64decode(secret["data"]["token"]).decode()
    url = f"http://{pod['status']['podIP']}:8000/kvserving/v1/runtime"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=10).json()
    effective = answer["effective"]
    assert "int4" == effective["kv_cache_dtype"]
    assert STREAMING["windowTokens"] == effective["eviction"]["window_tokens"]
    wait_effective(kube, serving, kvCacheDtype="int4", eviction="StreamingLLM")
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"eviction": None}}})
    wait_effective(kube, serving, kvCacheDtype="int4", eviction="None")


def test_an_edit_that_changes_no_pod_rolls_nothing(kube: Kube, serving: str) -> None:
    before = revision(kube, serving)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"tuning": {"mode": "Recommend"}}})
    wait_ready(kube, NAME, serving)
    assert before == revision(kube, serving)
