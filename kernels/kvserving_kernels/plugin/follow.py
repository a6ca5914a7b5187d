"""Keeps metrics close behind the engine core, which counts in another process."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvserving_kernels.errors import RuntimeUnavailableError
from kvserving_kernels.plugin.link import EngineLink

INTERVAL_SECONDS: Final = 5.0
"""A third of the usual time between two scrapes; a question costs the core a millisecond."""


async def follow(
    link: EngineLink,
    show: Callable[[Mapping[str, Any]], None],
    interval_seconds: float = INTERVAL_SECONDS,
) -> None:
    """Show the runtime document again and again, also after the core failed to answer."""
    while True:
        await asyncio.sleep(interval_seconds)
        try:
            document = await link.describe()
        except RuntimeUnavailableError:
            continue
        show(document)
