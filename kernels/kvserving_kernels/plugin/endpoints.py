"""The HTTP side of the runtime API: FastAPI routes on the engine's own server."""

import asyncio
import hmac
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from kvserving_kernels.errors import (
    InvalidChangeError,
    RuntimeUnavailableError,
    UnsupportedEngineError,
)
from kvserving_kernels.plugin import PLUGIN_NAME, Selection, selection
from kvserving_kernels.plugin.adapters import adapter_for
from kvserving_kernels.plugin.changes import KNOBS
from kvserving_kernels.plugin.controller import Outcome
from kvserving_kernels.plugin.drain import DrainMiddleware, drain_file
from kvserving_kernels.plugin.follow import follow
from kvserving_kernels.plugin.link import ANSWER_SECONDS, EngineLink, RefusedLink, not_answered
from kvserving_kernels.plugin.metrics import RuntimeMetrics
from kvserving_kernels.plugin.probe_requests import Gone, ProbeRequests
from kvserving_kernels.plugin.readiness import EngineProbe, Readiness

logger = logging.getLogger("vllm.kvserving")

TOKEN_VARIABLE: Final = "KVSERVING_TOKEN"  # noqa: S105
PREFIX: Final = "/kvserving/v1"
MAX_BODY_BYTES: Final = 16 * 1024
"""A change has a handful of fields; nothing larger is read."""

MAX_PROBE_BYTES: Final = 512 * 1024
"""As many token ids as a probe may have, with their digits and commas."""


class RuntimeAPI:
    """State and answers of the routes, apart from how they reach an engine."""

    def __init__(
        self,
        link: EngineLink,
        probe: EngineProbe,
        token: str,
        metrics: RuntimeMetrics,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._link = link
        self._probe = probe
        self._answer_seconds = answer_seconds
        # A file's last newline comes along, and no header can have it.
        self._token = token.strip().encode()
        self._metrics = metrics
        self._readiness = Readiness(probe, time.monotonic, metrics.count_completion)
        self._probes = ProbeRequests(link, metrics)
        self._change: asyncio.Task[dict[str, Any]] | None = None
        self._asked: object = None

    async def start(self) -> None:
        """Show the engine's state in the metrics from the first scrape on."""
        self._metrics.show(await self._link.describe())
        # What the core counts is on its side: it is fetched, since scrapes must not wait for it.
        self._following = asyncio.create_task(follow(self._link, self._metrics.show))

    def refuse(self, authorization: str | None) -> JSONResponse | None:
        """The answer to a caller who may not see or change anything, or None."""
        if not self._token:
            reason = f"{TOKEN_VARIABLE} is not set: the runtime API is closed"
            return _error(503, reason)
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token):
            return None
        response = _error(401, f"expected the bearer token of {TOKEN_VARIABLE}")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def get(self) -> JSONResponse:
        """The runtime document."""
        try:
            document = await self._link.describe()
        except RuntimeUnavailableError as error:
            return _error(503, str(error))
        self._metrics.show(document)
        return JSONResponse(document)

    async def patch(self, document: object) -> JSONResponse:
        """Apply a change, unless another is under way, be it one that nobody waits for any more.

        Who repeats the one under way waits for it too.
        """
        change = self._change
        repeats = change is not None and document == self._asked
        if change is None:
            self._asked = document
            change = self._change = asyncio.create_task(self._link.apply(document))
            change.add_done_callback(self._finish)
        else:
            # A core that is dead answers nothing, nor ends what it was asked for.
            dead = self._probe.dead_reason()
            if dead is not None:
                return self._unavailable(document, dead)
            if not repeats:
                return self._conflict(document)
        # A caller that hangs up, or has waited enough, must not cut a change off in the middle.
        await asyncio.wait({change}, timeout=self._answer_seconds)
        if not change.done():
            message = (
                f"{not_answered(self._answer_seconds)}; the change may still be carried out: "
                "repeat it with its change_id"
            )
            return self._unavailable(document, message)
        try:
            answer = change.result()
        except RuntimeUnavailableError as error:
            return self._unavailable(document, str(error))
        if repeats and answer["outcome"] == Outcome.APPLIED.value:
            answer = {**answer, "outcome": Outcome.REPEATED.value}
        return self._answer(document, answer)

    async def probe(self, document: object, gone: Gone) -> JSONResponse:
        """Score tokens, unless a change is under way."""
        if self._change is not None:
            return _error(409, "a change is being carried out")
        return await self._probes.answer(document, gone)

    async def ready(self) -> JSONResponse:
        """Whether tokens come out of the engine."""
        verdict = await self._readiness.check()
        if verdict.ready:
            age = round(verdict.age_seconds or 0.0, 3)
            return JSONResponse({"ready": True, "proof": verdict.proof, "age_seconds": age})
        return JSONResponse({"ready": False, "reason": verdict.reason}, status_code=503)

    def _finish(self, change: asyncio.Task[dict[str, Any]]) -> None:
        self._change = None
        # Read, so that an answer nobody waited for is no "exception never retrieved".
        if not change.cancelled():
            change.exception()

    def _unavailable(self, document: object, message: str) -> JSONResponse:
        return self._counted(document, "Unavailable", _error(503, message))

    def _conflict(self, document: object) -> JSONResponse:
        return self._counted(
            document, Outcome.BUSY.value, _error(409, "another change is being carried out")
        )

    def _answer(self, document: object, answer: Mapping[str, Any]) -> JSONResponse:
        outcome = Outcome(answer["outcome"])
        if outcome is Outcome.INVALID:
            response = JSONResponse({"error": answer["error"]}, status_code=422)
        elif outcome in (Outcome.FAILED, Outcome.BUSY):
            status = 500 if outcome is Outcome.FAILED else 409
            response = JSONResponse({"error": answer["error"]}, status_code=status)
        else:
            self._metrics.show(answer["runtime"])
            response = JSONResponse(answer["runtime"])
        return self._counted(document, outcome.value, response)

    def _counted(self, document: object, result: str, response: JSONResponse) -> JSONResponse:
        # Only known names become labels: callers must not be able to create series.
        fields = document if isinstance(document, Mapping) else {}
        for knob in [knob for knob in KNOBS if knob in fields] or ["unknown"]:
            self._metrics.count_change(knob, result)
        return response


class KVServingEndpoints:
    """vLLM's endpoint plugin."""

    name = "kvserving_http"
    # The render-only server has no engine, and a pooling model produces no tokens.
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes; raises if this vLLM has no adapter or lacks the plugin's other half."""
        import vllm

        if selection(os.environ.get("VLLM_PLUGINS")) is not Selection.NAMED:
            raise UnsupportedEngineError(
                f"the plugin {self.name} needs {PLUGIN_NAME} in VLLM_PLUGINS beside it"
            )
        self._adapter = adapter_for(vllm.__version__)
        app.include_router(build_router())
        file = drain_file()
        if file is not None:
            app.add_middleware(DrainMiddleware, file=file)

    async def init_state(self, engine_client: object, state: Any, args: object) -> None:
        """Connect the routes to the engine; raises if its core does not answer."""
        link = self._adapter.link(engine_client)
        api = RuntimeAPI(
            link,
            self._adapter.probe(engine_client),
            os.environ.get(TOKEN_VARIABLE, ""),
            RuntimeMetrics(),
        )
        if isinstance(link, RefusedLink):
            logger.warning("kvserving: no runtime API: %s", link.reason)
        else:
            await api.start()
        state.kvserving = api


def make() -> KVServingEndpoints:
    """What the entry point names."""
    return KVServingEndpoints()


def build_router() -> APIRouter:
    """The routes; they expect a `RuntimeAPI` as `app.state.kvserving`."""
    router = APIRouter(prefix=PREFIX)

    @router.get("/runtime")
    async def get_runtime(request: Request) -> JSONResponse:
        api: RuntimeAPI = request.app.state.kvserving
        return api.refuse(request.headers.get("authorization")) or await api.get()

    @router.patch("/runtime")
    async def patch_runtime(request: Request) -> JSONResponse:
        api: RuntimeAPI = request.app.state.kvserving
        refused = api.refuse(request.headers.get("authorization"))
        if refused is not None:
            return refused
        body = await _body(request, MAX_BODY_BYTES)
        return body if isinstance(body, JSONResponse) else await api.patch(body[0])

    @router.post("/probe")
    async def post_probe(request: Request) -> JSONResponse:
        api: RuntimeAPI = request.app.state.kvserving
        refused = api.refuse(request.headers.get("authorization"))
        if refused is not None:
            return refused
        body = await _body(request, MAX_PROBE_BYTES)
        if isinstance(body, JSONResponse):
            return body
        return await api.probe(body[0], request.is_disconnected)

    @router.get("/ready")
    async def get_ready(request: Request) -> JSONResponse:
        api: RuntimeAPI = request.app.state.kvserving
        return await api.ready()

    return router


async def _body(request: Request, most_bytes: int) -> tuple[Any] | JSONResponse:
    # In a tuple, since JSON's null is a body too.
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > most_bytes:
            return _invalid_body(f"at most {most_bytes} bytes", "more")
    try:
        return (json.loads(raw),)
    except ValueError as error:
        return _invalid_body("a JSON object", str(error))


def _invalid_body(expected: str, got: str) -> JSONResponse:
    error = InvalidChangeError("body", expected, got)
    return JSONResponse({"error": error.to_json()}, status_code=422)


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status_code=status)
