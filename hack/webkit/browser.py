"""A real browser: Debian's Chromium, driven by Playwright; nothing is downloaded for it."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Page, async_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """Path of a Chromium on this machine: KVSERVING_CHROMIUM, else the first one found."""
    given = os.environ.get("KVSERVING_CHROMIUM")
    return given or next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@asynccontextmanager
async def browsing(path: str) -> AsyncIterator[Browser]:
    """Run the browser without a window."""
    async with async_playwright() as playwright:
        # As root, Chromium has no sandbox of its own; it is shown our own pages alone.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def page_of(
    browser: Browser, *, dark: bool = False, width: int = 1280, script: bool = True
) -> AsyncIterator[Page]:
    """An empty page of its own."""
    context = await browser.new_context(
        color_scheme="dark" if dark else "light",
        viewport={"width": width, "height": 900},
        java_script_enabled=script,
    )
    page = await context.new_page()
    try:
        yield page
    finally:
        await context.close()
