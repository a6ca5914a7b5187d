"""Bad input gives one clear error, and what serves goes on serving."""

import time
from typing import Any

import pytest

from harness.errors import CommandError
from harness.kube import KVSERVING, Kube
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import complete, engine_pods, wait_condition, wait_ready

pytestmark = pytest.mark.cluster
NAME = "steady"


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(tiny_serving(NAME), namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kvCach": {"dtype": "auto"}}, ["spec.kvCach", "unknown field"]),
        ({"kvCache": {"dtype": "int5"}}, ["spec.kvCache.dtype", "int5", "fp8_e4m3"]),
        (
            {"engine": tiny_engine(maxNumSeqs=0)},
            ["spec.engine.maxNumSeqs", "greater than or equal"],
        ),
        ({"engine": tiny_engine(extraArgs=["--max-num-seqs=4"])}, ["extraArgs", "maxNumSeqs"]),
        ({"engine": tiny_engine(maxNumBatchedTokens=8)}, ["maxNumBatchedTokens", "maxNumSeqs"]),
        ({"model": {"name": "tiny", "uri": "s3://bucket/x"}}, ["spec.model.uri", "pvc://"]),
    ],
    ids=["wrong-field", "unknown-dtype", "out-of-range", "repeated-flag", "cross-field", "uri"],
)
def test_kubectl_apply_refuses_and_names_the_field(
    kube: Kube, namespace: str, spec: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(CommandError) as refusal:
        kube.apply(tiny_serving("refused", **spec), namespace)
    for word in words:
        assert word in refusal.value.stderr
    assert kube.get(KVSERVING, "refused", namespace) is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kvCache": {"dtype": "nuq4"}}, ["nuq4", "Supported"]),
        ({"model": {"uri": "pvc://models/no-such-model"}}, ["/models/no-such-model"]),
        ({"engine": {"extraArgs": ["--enforce-eager", "--no-such-flag"]}}, ["--no-such-flag"]),
        (
            {"engine": {"kvCacheMemory": "1Mi"}},
            ["spec.engine.kvCacheMemory", "too small for one request", "--max-model-len"],
        ),
        (
            {"engine": {"parallelism": {"tensor": 3}}},
            ["spec.engine.parallelism.tensor", "--tensor-parallel-size"],
        ),
    ],
    ids=[
        "dtype-of-another-platform",
        "missing-model-folder",
        "rejected-flag",
        "memory-for-no-request",
        "heads-that-cannot-be-divided",
    ],
)
def test_what_the_engine_would_refuse_is_said_and_the_pods_go_on(
    kube: Kube, serving: str, spec: dict[str, Any], words: list[str]
) -> None:
    before = engine_pods(kube, NAME, serving)
    original = kube.get(KVSERVING, NAME, serving)
    assert original is not None
    kube.patch(KVSERVING, NAME, serving, {"spec": spec})
    found = wait_condition(kube, NAME, serving, "Degraded", "True", "PreflightFailed")
    for word in words:
        assert word in found["message"]
    wait_condition(kube, NAME, serving, "Ready", "True")
    after = engine_pods(kube, NAME, serving)
    assert [pod["metadata"]["uid"] for pod in before] == [pod["metadata"]["uid"] for pod in after]
    assert complete(kube.service_url(NAME, serving), "tiny")

    undo = {key: original["spec"].get(key) for key in spec}
    kube.patch(KVSERVING, NAME, serving, {"spec": undo})
    wait_condition(kube, NAME, serving, "Degraded", "False")
    assert [pod["metadata"]["uid"] for pod in before] == [
        pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)
    ]
    warnings = [e for e in kube.events(serving, NAME) if e["reason"] == "PreflightFailed"]
    assert any(words[0] in event["message"] for event in warnings)


def test_a_claim_that_does_not_exist_is_said_and_the_pods_go_on(kube: Kube, serving: str) -> None:
    before = [pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)]
    original = (kube.get(KVSERVING, NAME, serving) or {})["spec"]["model"]["uri"]
    uri = "pvc://modelz/tiny-llama"
    kube.patch(KVSERVING, NAME, serving, {"spec": {"model": {"uri": uri}}})
    found = wait_condition(kube, NAME, serving, "Degraded", "True", "Unschedulable")
    assert '"modelz" not found' in found["message"]
    # Longer than a scheduler needs to find out, after which pods would roll unchecked.
    time.sleep(30)
    wait_condition(kube, NAME, serving, "Ready", "True")
    assert before == [pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)]
    kube.patch(KVSERVING, NAME, serving, {"spec": {"model": {"uri": original}}})
    wait_condition(kube, NAME, serving, "Degraded", "False")
    # The same of a claim that no check pod mounts.
    cache = {"compileCache": {"claimName": "kernelz"}}
    kube.patch(KVSERVING, NAME, serving, {"spec": {"engine": cache}})
    found = wait_condition(kube, NAME, serving, "Degraded", "True", "Unschedulable")
    assert "kernelz does not exist" in found["message"]
    kube.patch(KVSERVING, NAME, serving, {"spec": {"engine": {"compileCache": None}}})
    wait_condition(kube, NAME, serving, "Degraded", "False")
    assert before == [pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, serving)]
