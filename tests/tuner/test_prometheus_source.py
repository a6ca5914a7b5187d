"""PrometheusSource against a server that answers like Prometheus, or badly."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kvserving_tuner.observation import ProblemReason
from kvserving_tuner.readings import Known, Stale
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.sources.prometheus import PrometheusSource, join, netloc, quoted, regex_of

NOW = 1_000_000.0
TARGET = EngineTarget("pod-a", "http://10.0.0.1:8000")


class FakePrometheus:
    """Answers queries from `up` and `series`; remembers them."""

    def __init__(self) -> None:
        self.up: list[dict[str, Any]] = [up("pod-a", "10.0.0.1:8000")]
        self.series: list[dict[str, Any]] = []
        self.count = 0
        self.healthy = 200
        self.body: bytes | None = None
        self.status = 200
        self.delay_seconds = 0.0
        self.queries: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(fake.delay_seconds)
                parts = urlsplit(self.path)
                if parts.path == "/-/healthy":
                    self._send(fake.healthy, b"ok")
                    return
                query = parse_qs(parts.query)["query"][0]
                fake.queries.append(query)
                result = fake.up if '"up"' in query else fake.series
                if query.startswith("count("):
                    result = [{"metric": {}, "value": [NOW, str(fake.count)]}] if fake.count else []
                document = {"status": "success", "data": {"result": result}}
                self._send(
                    fake.status, json.dumps(document).encode() if fake.body is None else fake.body
                )

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                # A client that ran into its time-out is gone by now.
                with suppress(BrokenPipeError, ConnectionResetError):
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


def up(pod: str | None, instance: str, value: str = "1", job: str = "engines") -> dict[str, Any]:
    labels = {"__name__": "up", "job": job, "instance": instance}
    return {"metric": labels | ({"pod": pod} if pod else {}), "value": [NOW, value]}


def series(
    name: str, values: list[tuple[float, float | str]], instance: str = "10.0.0.1:8000", **more: str
) -> dict[str, Any]:
    labels = {"__name__": name, "job": "engines", "instance": instance, "engine": "0", **more}
    return {"metric": labels, "values": [[at, str(value)] for at, value in values]}


def engine_series(times: list[float], generated: list[float]) -> list[dict[str, Any]]:
    flat = {
        "vllm:num_requests_running": 4.0,
        "vllm:num_requests_waiting": 0.0,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:num_preemptions_total": 1.0,
    }
    found = [series(name, [(at, value) for at in times]) for name, value in flat.items()]
    tokens = list(zip(times, generated, strict=True))
    return [*found, series("vllm:generation_tokens_total", [*tokens])]


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    thread = Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()
    thread.join()


@pytest.fixture
def source(prometheus: FakePrometheus) -> Iterator[PrometheusSource]:
    source = PrometheusSource(prometheus.url, timeout_seconds=0.5)
    yield source
    source.close()


async def test_raw_samples_keep_their_own_times(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    times = [NOW - 50, NOW - 35, NOW - 20, NOW - 5]
    prometheus.series = engine_series(times, [0, 100, 200, 400])
    seen = await source.observe([TARGET], NOW)
    assert seen.blocking() == ()
    rate = seen.fleet.generation_tokens_per_second
    assert rate == Known(400 / 45, NOW - 5)


async def test_series_without_a_fresh_sample_are_stale(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    prometheus.series = engine_series([NOW - 80, NOW - 65, NOW - 50], [0, 10, 20])
    seen = await source.observe([TARGET], NOW)
    assert [p.reason for p in seen.blocking()] == [ProblemReason.METRICS_STALE]
    assert seen.engines[0].running == Stale(4.0, 50.0)


async def test_not_a_number_arrives_as_unknown(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    prometheus.series = engine_series([NOW - 5], [1])
    prometheus.series[2]["values"] = [[NOW - 5, "NaN"]]
    seen = await source.observe([TARGET], NOW)
    assert [p.reason for p in seen.blocking()] == [ProblemReason.METRICS_MISSING]


async def test_a_target_that_is_down_for_prometheus(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    prometheus.up = [up("pod-a", "10.0.0.1:8000", "0")]
    seen = await source.observe([TARGET], NOW)
    assert "up is 0" in seen.problems[0].message


async def test_later_queries_ask_for_the_newest_part_only(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    prometheus.series = engine_series([NOW - 1], [1])
    await source.observe([TARGET], NOW)
    await source.observe([TARGET], NOW + 5)
    asked = [query for query in prometheus.queries if "[" in query.rpartition("}")[2]]
    assert [query.rpartition("}")[2] for query in asked] == ["[90s]", "[36s]"]


async def test_the_lookback_never_freezes_at_import_time(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    for at in (NOW, NOW + 3600):
        prometheus.series = engine_series([at - 10, at - 5], [at - 10, at - 5])
        seen = await source.observe([TARGET], at)
        assert seen.engines[0].at == at - 5


@pytest.mark.parametrize(
    ("body", "healthy"),
    [(b"<html>", 200), (b'{"data": {"result": {}}}', 200), (b'{"data": null}', 200), (b"", 503)],
)
async def test_what_is_no_prometheus_is_a_problem(
    prometheus: FakePrometheus, source: PrometheusSource, body: bytes, healthy: int
) -> None:
    prometheus.body, prometheus.healthy = body, healthy
    seen = await source.observe([TARGET], NOW)
    assert seen.blocking()[0].reason is ProblemReason.PROMETHEUS_ERROR
    assert not seen.engines[0].answered


async def test_a_prometheus_that_hangs_is_given_up(
    prometheus: FakePrometheus, source: PrometheusSource
) -> None:
    prometheus.delay_seconds = 3
    began = time.monotonic()
    seen = await source.observe([TARGET], NOW)
    assert seen.blocking()[0].reason is ProblemReason.PROMETHEUS_ERROR
    assert "query" not in seen.blocking()[0].message
    assert time.monotonic() - began < 3


async def test_a_prometheus_that_is_gone() -> None:
    source = PrometheusSource("http://127.0.0.1:1", timeout_seconds=0.5)
    seen = await source.observe([TARGET], NOW)
    source.close()
    assert seen.blocking()[0].reason is ProblemReason.PROMETHEUS_ERROR
    assert seen.blocking()[0].message == (
        "Prometheus http://127.0.0.1:1: [Errno 111] Connection refused"
    )
    assert "127.0.0.1:1" in seen.blocking()[0].message


def test_a_pod_scraped_by_two_jobs_is_read_once() -> None:
    rows = [
        up("pod-a", "10.0.0.1:8000", job="pods"),
        up("pod-a", "10.0.0.1:8000", "0", job="a-broken"),
        up("pod-a", "10.0.0.1:8000", job="services"),
    ]
    assert {name: found.job for name, found in join([TARGET], rows).items()} == {"pod-a": "pods"}


def test_another_pod_that_had_the_address_is_not_the_target() -> None:
    assert join([TARGET], [up("pod-old", "10.0.0.1:8000")]) == {}
    assert "pod-a" in join([TARGET], [up(None, "10.0.0.1:8000")])


def test_values_cannot_break_out_of_a_query() -> None:
    assert quoted('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    assert quoted(regex_of("10.0.0.1:8000")) == "10\\\\.0\\\\.0\\\\.1:8000"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://engine/", "engine:80"),
        ("https://engine", "engine:443"),
        ("http://[fd00::1]:8000", "[fd00::1]:8000"),
    ],
)
def test_the_instance_of_a_url(url: str, expected: str) -> None:
    assert netloc(url) == expected


REASON = {"status": "error", "errorType": "bad_data", "error": "parse error at char 7"}


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, json.dumps(REASON).encode(), "HTTP 400: parse error at char 7"),
        (403, b"canary: an administrator's page", "HTTP 403, and no reason of a Prometheus"),
        (404, b"<html>canary</html>", "HTTP 404, and no reason of a Prometheus"),
        (404, b'{"AccessKeyId": "canary"}', "HTTP 404, and no reason of a Prometheus"),
        (404, b'{"error": "canary"}', "HTTP 404, and no reason of a Prometheus"),
        (401, b"canary' b\"\n\xff", "HTTP 401, and no reason of a Prometheus"),
        (418, b"[" * 5000 + b"canary", "HTTP 418, and no reason of a Prometheus"),
        (200, b"canary", ""),
        (200, b'{"data": "canary"}', ""),
        (200, b'{"data": {"result": "canary"}}', ""),
    ],
)
async def test_what_is_no_prometheus_is_not_quoted(
    prometheus: FakePrometheus, status: int, body: bytes, told: str
) -> None:
    prometheus.status, prometheus.body = status, body
    observation = await PrometheusSource(prometheus.url).observe([TARGET], NOW)
    (problem,) = (p for p in observation.problems if p.reason is ProblemReason.PROMETHEUS_ERROR)
    assert told in problem.message
    assert "canary" not in repr(observation)
