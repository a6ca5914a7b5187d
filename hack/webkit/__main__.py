"""Pictures of the web view for docs/web.md: `PYTHONPATH=hack python -m webkit FOLDER`."""

import asyncio
import sys
from pathlib import Path

from aiohttp.test_utils import TestServer

from kvserving_operator.web.server import View
from webkit.browser import browsing, page_of, program
from webkit.fleet import fleet

PICTURES = (
    ("web-service.jpg", "/servings/demo/chat", False),
    ("web-trial.jpg", "/servings/demo/chat/trials/chat-5f0c1d2e", True),
)
QUALITY = 68
"""Of JPEG, in percent: text stays sharp, and a picture below 150 kB."""


async def take(folder: Path, chromium: str) -> None:
    """Take all pictures."""
    book, now = fleet()
    async with TestServer(View(book, clock=lambda: now).app()) as server, browsing(chromium) as all:
        for name, path, dark in PICTURES:
            async with page_of(all, dark=dark, width=1120) as page:
                await page.goto(str(server.make_url(path)))
                await page.set_viewport_size({"width": 1120, "height": 1240})
                await page.screenshot(path=folder / name, type="jpeg", quality=QUALITY)


def main() -> int:
    """Give the exit status: 1 where there is no Chromium."""
    chromium = program()
    if chromium is None:
        print("no Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    asyncio.run(take(Path(sys.argv[1]), chromium))
    return 0


if __name__ == "__main__":
    sys.exit(main())
