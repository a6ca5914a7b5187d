"""An edit that needs new pods rolls them exactly once, and no client sees it."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_ready

pytestmark = pytest.mark.cluster
NAME = "rolling"


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
    thread = threading.Thread(target=lambda: asyncio.run(load.run(duration_seconds=900)))
    thread.start()
    yield load
    load.stop()
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert len(load.outcomes) > 10
    assert [] == load.failures


def revision(kube: Kube, namespace: str) -> int:
    deployment = kube.get("deployment", NAME, namespace)
    assert deployment is not None
    return int(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


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


@pytest.mark.full
def test_a_kv_dtype_rolls_once_and_status_shows_what_the_engine_reports(
    kube: Kube, serving: str, client: ChatLoad, cpu_does_fp8: bool
) -> None:
    before = revision(kube, serving)
    dtype = "fp8_e4m3" if cpu_does_fp8 else "bfloat16"
    edit(kube, serving, {"kvCache": {"dtype": dtype}})
    assert before + 1 == revision(kube, serving)
    effective = kube.get(KVSERVING, NAME, serving)["status"]["effective"]  # type: ignore[index]
    assert dtype == effective["kvCacheDtype"]


def test_an_edit_that_changes_no_pod_rolls_nothing(kube: Kube, serving: str) -> None:
    before = revision(kube, serving)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"tuning": {"mode": "Recommend"}}})
    wait_ready(kube, NAME, serving)
    assert before == revision(kube, serving)
