"""The HTTP side of probes: drives one slice by slice, for as long as its caller is there."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from fastapi.responses import JSONResponse

from kvserving_kernels.errors import RuntimeUnavailableError
from kvserving_kernels.plugin.link import EngineLink
from kvserving_kernels.plugin.metrics import RuntimeMetrics
from kvserving_kernels.plugin.prober import ProbeOutcome

PROBE_SECONDS: Final = 600.0
"""How long a probe may take; one that takes longer keeps others from theirs."""

Gone = Callable[[], Awaitable[bool]]
"""Whether the caller has hung up."""

_STATUS: Final = {
    ProbeOutcome.INVALID: 422,
    ProbeOutcome.BUSY: 409,
    ProbeOutcome.ENDED: 409,
    ProbeOutcome.REFUSED: 503,
    ProbeOutcome.FAILED: 500,
}


class ProbeRequests:
    """Answers probes. That only one runs at a time is the engine core's to see to."""

    def __init__(
        self,
        link: EngineLink,
        metrics: RuntimeMetrics,
        clock: Callable[[], float] = time.monotonic,
        probe_seconds: float = PROBE_SECONDS,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._clock = clock
        self._probe_seconds = probe_seconds

    async def answer(self, document: object, gone: Gone) -> JSONResponse:
        """Run a probe to its end."""
        probe_id = uuid.uuid4().hex
        try:
            return await self._drive(probe_id, document, gone)
        except RuntimeUnavailableError as error:
            return _error(503, str(error))
        finally:
            # Also where the caller's task is cancelled, or the core was too slow to answer.
            with suppress(RuntimeUnavailableError):
                await asyncio.shield(self._link.end_probe(probe_id))

    async def _drive(self, probe_id: str, document: object, gone: Gone) -> JSONResponse:
        deadline = self._clock() + self._probe_seconds
        answer = await self._link.begin_probe(probe_id, document)
        while answer["outcome"] in (ProbeOutcome.RUNNING.value, ProbeOutcome.WAITING.value):
            await asyncio.sleep(answer["pause_seconds"])
            if await gone():
                return _error(499, "the caller hung up")
            if self._clock() > deadline:
                return _error(503, f"the probe took longer than {self._probe_seconds:g} s")
            if answer["outcome"] == ProbeOutcome.WAITING.value:
                answer = await self._link.begin_probe(probe_id, document)
                continue
            answer = await self._link.advance_probe(probe_id)
            self._count(answer)
        outcome = ProbeOutcome(answer["outcome"])
        if outcome is ProbeOutcome.DONE:
            return JSONResponse(answer["result"])
        return JSONResponse({"error": answer["error"]}, status_code=_STATUS[outcome])

    def _count(self, answer: Mapping[str, Any]) -> None:
        if "tokens" in answer:
            self._metrics.count_probe_tokens(answer["form"], answer["dtype"], answer["tokens"])


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status_code=status)
