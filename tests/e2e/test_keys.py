"""Who may ask a real engine what: users with their key, the operator with its token, others not."""

import base64
from typing import Any

import httpx
import pytest

from harness import chart
from harness.errors import CommandError
from harness.kube import Kube
from harness.manifests import tiny_serving
from harness.serving import engine_pods, wait_condition, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME, KEY = "keyed", "sk-canary-5d41402abc4b2a76"
QUESTION = {"model": "tiny", "prompt": "Hello", "max_tokens": 2}
RUNTIME = "/kvserving/v1/runtime"


@pytest.fixture(scope="module")
def engine(kube: Kube, namespace: str) -> httpx.URL:
    """Address of an engine with a key, in a namespace of the restricted level."""
    kube.run("label", "namespace", namespace, *(f"{k}={v}" for k, v in chart.RESTRICTED.items()))
    kube.apply(tiny_serving(NAME, apiKeyRef={"name": "users"}), namespace)
    wait_condition(kube, NAME, namespace, "Progressing", "True", "Unschedulable")
    kube.run(
        "create", "secret", "generic", "users", "-n", namespace, f"--from-literal=api-key={KEY}"
    )
    wait_ready(kube, NAME, namespace)
    (pod,) = engine_pods(kube, NAME, namespace)
    return httpx.URL(f"http://{pod['status']['podIP']}:8000")


def status(engine: httpx.URL, method: str, path: str, bearer: str = "", **more: Any) -> int:
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    return httpx.request(method, engine.join(path), headers=headers, timeout=60, **more).status_code


def token(kube: Kube, namespace: str) -> str:
    secret = kube.get("secret", f"{NAME}-token", namespace)
    assert secret is not None
    return base64.b64decode(secret["data"]["token"]).decode()


def test_users_need_their_key_and_it_opens_nothing_else(
    kube: Kube, namespace: str, engine: httpx.URL
) -> None:
    for bearer, expected in (("", 401), ("wrong", 401), (token(kube, namespace), 401), (KEY, 200)):
        answer = status(engine, "POST", "/v1/completions", bearer, json=QUESTION)
        assert (answer, bearer) == (expected, bearer)
    assert 401 == status(engine, "GET", "/v1/models")
    for path in ("/health", "/metrics", "/kvserving/v1/ready"):
        assert 200 == status(engine, "GET", path)
    assert 401 == status(engine, "GET", RUNTIME, KEY)


@pytest.mark.parametrize("path", [RUNTIME, "/kvserving/v1/probe"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_nobody_without_the_token_reads_or_changes_settings(
    engine: httpx.URL, method: str, path: str
) -> None:
    assert status(engine, method, path, json={"max_active_seqs": 1}) in (401, 404, 405)


def test_with_the_token_settings_are_read(kube: Kube, namespace: str, engine: httpx.URL) -> None:
    assert 200 == status(engine, "GET", RUNTIME, token(kube, namespace))


def test_the_engine_cannot_write_beside_its_volumes(
    kube: Kube, namespace: str, engine: httpx.URL
) -> None:
    pod = engine_pods(kube, NAME, namespace)[0]["metadata"]["name"]
    run = ("exec", pod, "-n", namespace, "--")
    assert "65532" == kube.run(*run, "id", "-u").strip()
    for path in ("/written", "/opt/kvserving/written", "/etc/written"):
        with pytest.raises(CommandError, match="Read-only file system"):
            kube.run(*run, "touch", path)
    kube.run(*run, "touch", "/tmp/written")
    capabilities = kube.run(
        *run, "grep", "-E", "^Cap(Eff|Bnd|Amb)|^NoNewPrivs|^Seccomp:", "/proc/1/status"
    )
    assert {"0000000000000000", "1", "2"} == {line.split()[1] for line in capabilities.splitlines()}


def test_neither_key_nor_token_is_anywhere_but_in_its_secret(
    kube: Kube, namespace: str, engine: httpx.URL
) -> None:
    kinds = "kvservings,deployments,pods,configmaps,events,services,kvtrials"
    said = kube.run("get", kinds, "-n", namespace, "-o", "json")
    pod = engine_pods(kube, NAME, namespace)[0]["metadata"]["name"]
    said += kube.run("logs", pod, "-n", namespace)
    said += kube.run("logs", "-n", chart.NAMESPACE, "deployment/kvserving-operator", "--tail=-1")
    assert KEY not in said
    assert token(kube, namespace) not in said
