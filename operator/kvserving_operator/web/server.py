"""HTTP of the web view: GET and HEAD of a few pages; headers let a browser run nothing."""

import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from aiohttp import web

from kvserving_operator.web.book import Book, Entry
from kvserving_operator.web.pages import Pages
from kvserving_operator.web.timeline import WINDOWS

logger = logging.getLogger(__name__)

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    # In place of the name and version of the library.
    "Server": "kvserving",
}
STYLE = Path(__file__).with_name("static") / "style.css"
ICON = Path(__file__).with_name("static") / "icon.svg"
MOST_LINE: Final = 4096
"""Longest request line, and longest header, in bytes."""

FRESH_SECONDS: Final = 1.0
"""How long a page is answered again as it was: who asks often must not hold up the operator's own
looks, which share its loop."""
MOST_FRESH: Final = 64

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class View:
    """The pages of one operator."""

    def __init__(
        self,
        book: Book,
        hosts: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._book = book
        self._hosts = frozenset(host.lower() for host in hosts)
        self._clock = clock
        self._pages = Pages()
        self._style = STYLE.read_text()
        self._icon = ICON.read_text()
        self._fresh: dict[str, tuple[float, str]] = {}

    def app(self) -> web.Application:
        """Give the application that answers."""
        # The outermost is first: what it refuses no page is made for.
        app = web.Application(
            middlewares=[self._shielded],
            client_max_size=0,
            handler_args={"max_line_size": MOST_LINE, "max_field_size": MOST_LINE},
        )
        app.router.add_get("/", self._fleet)
        app.router.add_get("/servings/{namespace}/{name}", self._serving)
        app.router.add_get("/servings/{namespace}/{name}/trials/{trial}", self._trial)
        app.router.add_get("/style.css", self._style_sheet)
        app.router.add_get("/icon.svg", self._icon_file)
        app.on_response_prepare.append(_with_headers)
        return app

    @web.middleware
    async def _shielded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer problems by pages that say nothing of the inside."""
        if not is_own(request.host, self._hosts):
            # A page elsewhere may have its name point here: a browser would let it read all.
            message = "this name is not one of the operator's; see docs/web.md"
            return self._problem(421, "Misdirected request", message)
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            answer = self._problem(405, "Method not allowed", "this view can only be read")
            answer.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            return answer
        except web.HTTPNotFound as error:
            return self._problem(404, "Not found", error.text or "there is no such page")
        except web.HTTPException as error:
            return self._problem(error.status, error.reason, "the request cannot be answered")
        except Exception:
            logger.exception("web view: a page could not be made")
            return self._problem(500, "Error", "the page could not be made; see the operator's log")

    async def _fleet(self, request: web.Request) -> web.Response:
        return self._made("/", lambda now: self._pages.fleet(self._book, now))

    async def _serving(self, request: web.Request) -> web.Response:
        window = request.query.get("window", "1h")
        if window not in WINDOWS:
            raise web.HTTPNotFound(text=f"window: expected one of {', '.join(WINDOWS)}")
        entry = self._entry(request)
        path = f"{request.path}?{window}"
        return self._made(path, lambda now: self._pages.serving(entry, window, now))

    async def _trial(self, request: web.Request) -> web.Response:
        entry = self._entry(request)
        trial = entry.trials.get(request.match_info["trial"])
        if trial is None:
            raise web.HTTPNotFound(text="there is no KVTrial of that name")
        return self._made(
            request.path, lambda now: self._pages.trial(self._book, entry, trial, now)
        )

    async def _style_sheet(self, request: web.Request) -> web.Response:
        return web.Response(text=self._style, content_type="text/css")

    async def _icon_file(self, request: web.Request) -> web.Response:
        return web.Response(text=self._icon, content_type="image/svg+xml")

    def _made(self, path: str, make: Callable[[float], str]) -> web.Response:
        """A page, or the same again where it was made just now."""
        now = self._clock()
        at, text = self._fresh.get(path, (0.0, ""))
        if not 0 <= now - at < FRESH_SECONDS:
            text = make(now)
            if len(self._fresh) >= MOST_FRESH:
                self._fresh.clear()
            self._fresh[path] = now, text
        return _page(text)

    def _entry(self, request: web.Request) -> Entry:
        entry = self._book.entry(request.match_info["namespace"], request.match_info["name"])
        if entry is None:
            raise web.HTTPNotFound(text="this operator looks after no KVServing of that name")
        return entry

    def _problem(self, status: int, title: str, message: str) -> web.Response:
        return _page(self._pages.problem(title, message, self._clock()), status)


def is_own(host: str, further: Collection[str] = ()) -> bool:
    """Whether a request's Host is one by which only this server can be meant.

    An address, `localhost`, or a Service's name inside the cluster; others have to be named.
    """
    name = _name_of(host).lower().rstrip(".")
    if name in further:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        # Names without a dot, and those of the cluster, are in no public DNS.
        return bool(name) and ("." not in name or name.endswith((".svc", ".svc.cluster.local")))
    return True


async def serve(view: View, port: int) -> web.AppRunner:
    """Listen on all addresses of the pod; `cleanup` ends it. OSError for a port in use."""
    runner = web.AppRunner(view.app(), access_log=None, keepalive_timeout=15)
    await runner.setup()
    # The pod's own address is not known before, and may be of either family.
    await web.TCPSite(runner, host=None, port=port).start()
    return runner


def _name_of(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _page(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
