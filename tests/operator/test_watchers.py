"""The web view and traces run where an installation asks for them, and end with the operator."""

from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvserving_operator.settings import Settings
from kvserving_operator.tracing.emitter import to_collector
from kvserving_operator.watchers import watch


async def test_without_settings_nothing_is_kept_and_nothing_listens() -> None:
    async with AsyncExitStack() as resources:
        assert () == await watch(Settings(), resources)


async def test_the_view_listens_until_the_operator_ends(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/"
    async with aiohttp.ClientSession() as session:
        async with AsyncExitStack() as resources:
            (book,) = await watch(Settings(web_listen_port=unused_tcp_port), resources)
            assert [] == list(book)  # type: ignore[call-overload]
            async with session.get(url) as answer:
                assert 200 == answer.status
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url)


class Collector(BaseHTTPRequestHandler):
    """Takes spans by OTLP over HTTP."""

    taken: list[tuple[str, ExportTraceServiceRequest]]

    def do_POST(self) -> None:
        """Take a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append(
            (self.headers.get("X-Team", ""), ExportTraceServiceRequest.FromString(body))
        )
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_spans_reach_a_collector_with_headers_and_the_operators_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Collector.taken = []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
        emitter = to_collector(f"http://127.0.0.1:{server.server_port}/v1/traces", "pod-1")
        emitter.emit("decision", 10.0, 11.5, {"kvserving.name": "chat"})
        emitter.shutdown()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    ((team, request),) = Collector.taken
    (resource,) = request.resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert ("blue", "kvserving-operator", "pod-1") == (
        team,
        named["service.name"],
        named["service.instance.id"],
    )
    (span,) = resource.scope_spans[0].spans
    assert ("decision", 10_000_000_000, 11_500_000_000) == (
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )
