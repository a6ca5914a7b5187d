"""HTTP of the web view: what is answered, what is refused, and the headers of every answer."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvserving_operator.web.book import Book
from kvserving_operator.web.pages import Pages
from kvserving_operator.web.server import HEADERS, View, is_own
from webkit.courses import courses
from webkit.fleet import tell

PAGES = ("/", "/servings/demo/chat", "/servings/demo/chat?window=24h",
         "/servings/demo/chat/trials/chat-5f0c1d2e", "/style.css", "/icon.svg")  # fmt: skip
MISSING = ("/nothing", "/servings/demo/no", "/servings/demo/chat?window=1y", "/servings/no/chat",
           "/servings/demo/chat/trials/no", "/servings/demo/%3Cscript%3E", "/../etc/passwd",
           "/static/style.css", "/servings/demo/chat/../../x")  # fmt: skip

Client = TestClient[aiohttp.web.Request, aiohttp.web.Application]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    book = Book()
    now = tell(book, courses()[0], 200)
    async with TestClient(TestServer(View(book, clock=lambda: now).app())) as client:
        yield client


async def test_pages_are_there_and_every_answer_has_the_headers(client: Client) -> None:
    for path in PAGES:
        answer = await client.get(path)
        assert 200 == answer.status, path
        assert HEADERS.items() <= dict(answer.headers).items()
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy


@pytest.mark.parametrize("path", MISSING)
async def test_what_there_is_not_is_said_with_the_same_headers(client: Client, path: str) -> None:
    answer = await client.get(path)
    assert 404 == answer.status
    assert HEADERS.items() <= dict(answer.headers).items()
    assert "<script>" not in await answer.text()


async def test_head_gives_no_body(client: Client) -> None:
    answer = await client.head("/")
    assert (200, b"") == (answer.status, await answer.read())


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
)
async def test_nothing_can_be_done_but_reading(client: Client, method: str) -> None:
    for path in PAGES:
        answer = await client.request(method, path)
        assert 405 == answer.status
        assert "GET,HEAD" == answer.headers["Allow"].replace(" ", "")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:8088", True),
        ("127.0.0.1:8088", True),
        ("[::1]:8088", True),
        ("10.1.2.3", True),
        ("kvserving-operator-web", True),
        ("kvserving-operator-web.kvserving-system.svc:8088", True),
        ("kvserving-operator-web.kvserving-system.svc.cluster.local", True),
        ("kv.example.com", True),
        ("KV.example.com.", True),
        ("rebound.attacker.example", False),
        ("localhost.attacker.example", False),
        ("127.0.0.1.attacker.example:8088", False),
        ("evil.example.com", False),
        ("", False),
    ],
)
async def test_a_foreign_name_is_not_answered(host: str, own: bool) -> None:
    assert own is is_own(host, frozenset({"kv.example.com"}))
    if not host:
        return
    app = View(Book(), ("kv.example.com",)).app()
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/", headers={"Host": host})
        assert (200 if own else 421) == answer.status
        assert HEADERS.items() <= dict(answer.headers).items()


async def test_a_page_that_cannot_be_made_says_nothing_of_the_inside(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("/opt/kvserving secret")

    monkeypatch.setattr("kvserving_operator.web.pages.Pages.fleet", broken)
    answer = await client.get("/")
    assert 500 == answer.status
    assert "secret" not in await answer.text()
    assert "secret" in caplog.text


async def test_who_asks_often_gets_what_was_made_just_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[float] = []
    clock = [1000.0]

    def fleet(_: Pages, book: Book, now: float) -> str:
        made.append(now)
        return f"made at {now}"

    monkeypatch.setattr(Pages, "fleet", fleet)
    async with TestClient(TestServer(View(Book(), clock=lambda: clock[0]).app())) as client:
        for clock[0] in (1000.0, 1000.5, 1000.9, 1001.0, 999.0):
            answer = await client.get("/", headers={"X-Any": "1"})
            assert 200 == answer.status
    assert [1000.0, 1001.0, 999.0] == made


async def test_long_requests_are_refused(client: Client) -> None:
    answer = await client.get("/?" + "x" * 20_000)
    assert 400 <= answer.status < 500


async def test_before_the_first_look_the_page_says_so() -> None:
    async with TestClient(TestServer(View(Book()).app())) as client:
        answer = await client.get("/")
        assert "no KVServing yet" in await answer.text()
