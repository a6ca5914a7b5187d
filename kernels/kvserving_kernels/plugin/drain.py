"""Draining: while an engine is on its way out, each answer asks its client to connect anew.

A Service steers new connections away from a pod that terminates; a connection that is kept open
would bring one more request to it and lose that. Whoever stops the engine creates the file first.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

DRAIN_FILE_VARIABLE: Final = "KVSERVING_DRAIN_FILE"

Asgi = Callable[[Any, Any, Any], Any]


def drain_file() -> Path | None:
    """The file whose presence means draining, or None where none is set."""
    name = os.environ.get(DRAIN_FILE_VARIABLE)
    return Path(name) if name else None


class DrainMiddleware:
    """ASGI middleware that adds `Connection: close` to every answer while `file` exists."""

    def __init__(self, app: Asgi, file: Path) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection's request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_closing(message: Any) -> None:
            # Looked up when the answer starts: a long request may have begun before the drain.
            if message["type"] == "http.response.start" and self._file.exists():
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_closing)
