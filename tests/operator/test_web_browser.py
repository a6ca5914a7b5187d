"""The web view in a real browser: accessible, by keyboard, light and dark, without scripts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from kvserving_operator.web.server import View
from webkit.browser import browsing, page_of, program
from webkit.fleet import fleet

CHROMIUM = program()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")

PATHS = ("/", "/servings/demo/chat", "/servings/demo/rag", "/servings/search/code?window=6h",
         "/servings/demo/chat/trials/chat-5f0c1d2e", "/servings/demo/rag/trials/rag-1c77ab90",
         "/nothing")  # fmt: skip
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.fixture
async def address() -> AsyncIterator[str]:
    book, now = fleet()
    async with TestServer(View(book, clock=lambda: now).app()) as server:
        yield str(server.make_url("/")).rstrip("/")


async def opened(page: Page, address: str) -> list[str]:
    """Open an address; gives what the browser complains of, and what it asked others for."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url)
            if "127.0.0.1" not in request.url else None)  # fmt: skip
    await page.goto(address)
    return complaints


async def test_every_page_passes_axe_light_and_dark_wide_and_narrow(address: str) -> None:
    assert CHROMIUM is not None
    found: dict[str, Any] = {}
    async with browsing(CHROMIUM) as browser:
        for dark, width in ((False, 1280), (True, 1280), (False, 390)):
            async with page_of(browser, dark=dark, width=width) as page:
                for path in PATHS:
                    complaints = await opened(page, address + path)
                    if path != "/nothing":
                        assert [] == complaints
                    result = await Axe().run(page, options=RULES)
                    broken = [
                        (each["id"], [node["target"] for node in each["nodes"]][:3])
                        for each in result.response["violations"]
                    ]
                    if broken:
                        found[f"{path} dark={dark} width={width}"] = broken
                    assert len(result.response["passes"]) >= 10
    assert {} == found


async def test_a_narrow_page_does_not_scroll_sideways(address: str) -> None:
    assert CHROMIUM is not None
    async with browsing(CHROMIUM) as browser, page_of(browser, width=390) as page:
        for path in PATHS:
            await page.goto(address + path)
            size = await page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert size[0] <= size[1], path


async def test_the_keyboard_reaches_content_links_and_tables(address: str) -> None:
    assert CHROMIUM is not None
    async with browsing(CHROMIUM) as browser, page_of(browser) as page:
        await page.goto(address)
        await page.keyboard.press("Tab")
        assert "Skip to content" == await page.evaluate("document.activeElement.textContent")
        assert await page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
        await page.keyboard.press("Enter")
        assert "main" == await page.evaluate("document.activeElement.id")
        await page.keyboard.press("Tab")
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert "solid" == outline
        assert "demo/chat" == await page.evaluate("document.activeElement.textContent")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/servings/demo/chat")
        assert "demo/chat" == await page.inner_text("h1")
        await page.focus("summary")
        await page.keyboard.press("Enter")
        assert await page.is_visible("text=Quality drop, %")


async def test_all_is_there_without_scripts(address: str) -> None:
    assert CHROMIUM is not None
    async with browsing(CHROMIUM) as browser, page_of(browser, script=False) as page:
        await page.goto(f"{address}/servings/demo/chat")
        assert 4 == await page.locator("figure svg").count()
        await page.goto(f"{address}/servings/demo/chat/trials/chat-5f0c1d2e")
        assert await page.locator("figure svg").count() >= 4
