"""The operator's metrics are for those with the token, where one is asked for."""

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kvserving_operator.metrics_server import serve_metrics

TOKEN = "s3cret"


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("known", "known", registry=registry).set(1)
    return registry


@pytest.fixture
def guarded(registry: CollectorRegistry, unused_tcp_port: int) -> Iterator[str]:
    stop = serve_metrics(unused_tcp_port, registry, f"{TOKEN}\n")
    yield f"http://127.0.0.1:{unused_tcp_port}/metrics"
    stop()


def test_the_token_opens_it(guarded: str) -> None:
    answer = httpx.get(guarded, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert "known 1.0" in answer.text


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
def test_nothing_else_does(guarded: str, method: str, authorization: str) -> None:
    answer = httpx.request(method, guarded, headers={"Authorization": authorization})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "known" not in answer.text


def test_without_a_token_it_is_open(registry: CollectorRegistry, unused_tcp_port: int) -> None:
    stop = serve_metrics(unused_tcp_port, registry, "")
    answer = httpx.get(f"http://127.0.0.1:{unused_tcp_port}/metrics")
    stop()
    assert "known 1.0" in answer.text
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{unused_tcp_port}/metrics")
