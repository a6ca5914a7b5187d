"""The HTTP server's side of the engine core: ask it, with a limit on the wait.

The core answers between two steps. A long prefill may hold an answer up for seconds, a hung core
for ever, so every question has a time-out and says so instead of blocking a caller. Only a change
is waited for until it has ended: whoever asks for one decides how long its own caller waits.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from kvserving_kernels.errors import RuntimeUnavailableError

ANSWER_SECONDS: Final = 20.0
"""How long the core may take to answer; a step of the largest batch on a small CPU takes a few."""

Call = Callable[..., Awaitable[Any]]
"""Calls a method of the engine core by name."""


def not_answered(seconds: float) -> str:
    """What is said of a core that takes longer to answer."""
    return f"the engine core has not answered within {seconds:g} s"


class EngineLink(Protocol):
    """What the HTTP API needs of the engine core."""

    async def describe(self) -> dict[str, Any]:
        """The runtime document; raises RuntimeUnavailableError."""
        ...

    async def apply(self, document: object) -> dict[str, Any]:
        """The controller's answer to a change that has ended; RuntimeUnavailableError if none."""
        ...

    async def begin_probe(self, probe_id: str, document: object) -> dict[str, Any]:
        """The prober's answer to a new probe; raises RuntimeUnavailableError."""
        ...

    async def advance_probe(self, probe_id: str) -> dict[str, Any]:
        """The prober's answer after one more slice; raises RuntimeUnavailableError."""
        ...

    async def end_probe(self, probe_id: str) -> None:
        """Have a probe dropped; raises RuntimeUnavailableError."""
        ...


class CoreLink:
    """An engine core that answers by method name."""

    def __init__(
        self,
        call: Call,
        answer_seconds: float = ANSWER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call = call
        self._clock = clock
        self._answer_seconds = answer_seconds

    async def describe(self) -> dict[str, Any]:
        """The runtime document."""
        answer: dict[str, Any] = await self._ask("kvserving_describe")
        return answer

    async def apply(self, document: object) -> dict[str, Any]:
        """The controller's answer to a change, however long it takes."""
        # On Linux all processes of a machine have this clock in common.
        asked_at = self._clock()
        answer: dict[str, Any] = await self._answer("kvserving_apply", document, asked_at)
        return answer

    async def begin_probe(self, probe_id: str, document: object) -> dict[str, Any]:
        """The prober's answer to a new probe."""
        answer: dict[str, Any] = await self._ask("kvserving_probe_begin", probe_id, document)
        return answer

    async def advance_probe(self, probe_id: str) -> dict[str, Any]:
        """The prober's answer after one more slice."""
        answer: dict[str, Any] = await self._ask("kvserving_probe_advance", probe_id)
        return answer

    async def end_probe(self, probe_id: str) -> None:
        """Have a probe dropped."""
        await self._ask("kvserving_probe_end", probe_id)

    async def _ask(self, method: str, *arguments: object) -> Any:
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await self._answer(method, *arguments)
        except TimeoutError as error:
            raise RuntimeUnavailableError(not_answered(self._answer_seconds)) from error

    async def _answer(self, method: str, *arguments: object) -> Any:
        try:
            return await self._call(method, *arguments)
        # vLLM reports a dead core, and whatever the core raised, as bare exceptions.
        except Exception as error:
            raise RuntimeUnavailableError(f"the engine core cannot answer: {error}") from error


class RefusedLink:
    """Stands for a deployment in which one answer for the engine would be wrong."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def describe(self) -> dict[str, Any]:
        """Raise the reason."""
        raise RuntimeUnavailableError(self.reason)

    async def apply(self, document: object) -> dict[str, Any]:
        """Raise the reason."""
        raise RuntimeUnavailableError(self.reason)

    async def begin_probe(self, probe_id: str, document: object) -> dict[str, Any]:
        """Raise the reason."""
        raise RuntimeUnavailableError(self.reason)

    async def advance_probe(self, probe_id: str) -> dict[str, Any]:
        """Raise the reason."""
        raise RuntimeUnavailableError(self.reason)

    async def end_probe(self, probe_id: str) -> None:
        """Raise the reason."""
        raise RuntimeUnavailableError(self.reason)
