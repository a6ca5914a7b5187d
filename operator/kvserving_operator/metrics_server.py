"""The operator's metrics over HTTP, to those with the token where one is asked for."""

import hmac
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Quiet(WSGIRequestHandler):
    """No line in the log for each scrape."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_metrics(port: int, registry: CollectorRegistry, token: str) -> Callable[[], None]:
    """Serve until the function that is given back is called; raises OSError for a taken port."""
    application = guarded(make_wsgi_app(registry), token.strip())
    server = make_server("0.0.0.0", port, application, ThreadingWSGIServer, _Quiet)  # noqa: S104
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def guarded(application: Application, token: str) -> Application:
    """Application that answers those who send the token as a bearer; everyone without one."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not token or _bears(environ.get("HTTP_AUTHORIZATION", ""), token):
            return application(environ, start_response)
        headers = [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")]
        start_response("401 Unauthorized", headers)
        return [b"expected the bearer token of the operator's metrics\n"]

    return answer


def _bears(authorization: str, token: str) -> bool:
    scheme, _, sent = authorization.partition(" ")
    right = hmac.compare_digest(sent.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and right
