"""HTTP servers that stand in for engines: whatever text they are given is their /metrics."""

import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class MetricsServer:
    """One fake engine's /metrics on a port of its own."""

    def __init__(self) -> None:
        self.text: str | None = ""
        """What /metrics answers; None: HTTP 500."""
        self.delay_seconds = 0.0
        self.served = 0
        """Answers given so far."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(server.delay_seconds)
                body = (server.text or "").encode()
                self.send_response(500 if server.text is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                # A client that ran into its time-out is gone by now.
                with suppress(BrokenPipeError, ConnectionResetError):
                    self.end_headers()
                    self.wfile.write(body)
                server.served += 1

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
