"""Probes over HTTP, with a fake engine core behind them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from kvserving_kernels.errors import RuntimeUnavailableError
from kvserving_kernels.plugin.endpoints import MAX_PROBE_BYTES, RuntimeAPI, build_router
from kvserving_kernels.plugin.link import RefusedLink
from kvserving_kernels.plugin.metrics import RuntimeMetrics
from kvserving_kernels.plugin.probe_requests import ProbeRequests

TOKEN = "s3cret"
ASKED = {"token_ids": [1, 2, 3], "form": "prefill"}
RESULT = {"logprobs": [None, -1.5, -2.5], "form": "prefill", "dtype": "int4", "tokens": 2}
RUNNING = {"outcome": "Running", "pause_seconds": 0.0}
SLICE = {**RUNNING, "tokens": 1, "form": "prefill", "dtype": "int4"}


class FakeLink:
    """An engine core with a probe of two slices."""

    def __init__(self) -> None:
        self.begun: dict[str, object] = {}
        self.ended: list[str] = []
        self.answers: list[dict[str, Any]] = [SLICE, {**SLICE, "outcome": "Done", "result": RESULT}]
        self.first: dict[str, Any] = RUNNING
        self.error: str | None = None
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def describe(self) -> dict[str, Any]:
        """Not needed here."""
        raise NotImplementedError

    async def apply(self, document: object) -> dict[str, Any]:
        """A change that waits."""
        self.asked.set()
        await self.may_answer.wait()
        return {"outcome": "Failed", "error": {"message": "not here"}}

    async def begin_probe(self, probe_id: str, document: object) -> dict[str, Any]:
        """The first answer, or the error."""
        self.begun[probe_id] = document
        if self.error:
            raise RuntimeUnavailableError(self.error)
        return self.first

    async def advance_probe(self, probe_id: str) -> dict[str, Any]:
        """The next answer, once it may come."""
        assert probe_id in self.begun
        self.asked.set()
        await self.may_answer.wait()
        return self.answers.pop(0)

    async def end_probe(self, probe_id: str) -> None:
        """Remember it."""
        self.ended.append(probe_id)


class NoProbe:
    """An engine that readiness does not ask here."""

    def dead_reason(self) -> str | None:
        """No reason."""
        return None

    def last_user_token_at(self) -> float | None:
        """Never."""
        return None

    def last_step_at(self) -> float | None:
        """Never."""
        return None

    async def complete(self) -> None:
        """Nothing."""
        return


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def app(link: FakeLink, registry: CollectorRegistry) -> FastAPI:
    app = FastAPI()
    app.include_router(build_router())
    app.state.kvserving = RuntimeAPI(link, NoProbe(), TOKEN, RuntimeMetrics(registry))
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://engine/kvserving/v1",
        headers={"Authorization": f"Bearer {TOKEN}"},
    ) as client:
        yield client


async def present() -> bool:
    """A caller that stays."""
    return False


async def test_a_probe_is_driven_to_its_result(
    client: httpx.AsyncClient, link: FakeLink, registry: CollectorRegistry
) -> None:
    answer = await client.post("/probe", json=ASKED)
    assert (answer.status_code, answer.json()) == (200, RESULT)
    assert list(link.begun.values()) == [ASKED]
    assert link.ended == list(link.begun)
    labels = {"form": "prefill", "dtype": "int4"}
    assert registry.get_sample_value("kvserving:probe_tokens_total", labels) == 2


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", f"Basic {TOKEN}"])
async def test_without_the_token_nothing_is_computed(
    client: httpx.AsyncClient, link: FakeLink, authorization: str
) -> None:
    answer = await client.post("/probe", json=ASKED, headers={"Authorization": authorization})
    assert (answer.status_code, link.begun) == (401, {})


@pytest.mark.parametrize("body", [b"", b"nope", b"[" + b"1," * (MAX_PROBE_BYTES // 2) + b"1]"])
async def test_a_body_that_is_no_json_of_a_sensible_size_never_reaches_the_engine(
    client: httpx.AsyncClient, link: FakeLink, body: bytes
) -> None:
    answer = await client.post("/probe", content=body)
    assert (answer.status_code, answer.json()["error"]["field"], link.begun) == (422, "body", {})


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("Invalid", 422), ("Busy", 409), ("Ended", 409), ("Refused", 503), ("Failed", 500)],
)
async def test_a_refusal_has_the_status_of_its_kind(
    client: httpx.AsyncClient, link: FakeLink, outcome: str, status: int
) -> None:
    error = {"message": "why"}
    link.first = {"outcome": outcome, "error": error}
    answer = await client.post("/probe", json=ASKED)
    assert (answer.status_code, answer.json()) == (status, {"error": error})
    link.first, link.answers = RUNNING, [SLICE, {"outcome": outcome, "error": error}]
    answer = await client.post("/probe", json=ASKED)
    assert (answer.status_code, answer.json()) == (status, {"error": error})


async def test_a_core_that_cannot_answer_is_503_and_the_probe_is_ended(
    client: httpx.AsyncClient, link: FakeLink
) -> None:
    link.error = "the engine core has not answered"
    answer = await client.post("/probe", json=ASKED)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, link.error)
    assert link.ended == list(link.begun)


async def test_a_probe_is_turned_away_while_a_change_is_carried_out(
    client: httpx.AsyncClient, link: FakeLink
) -> None:
    link.may_answer.clear()
    change = asyncio.create_task(client.patch("/runtime", json={"change_id": "a"}))
    await link.asked.wait()
    answer = await client.post("/probe", json=ASKED)
    assert (answer.status_code, link.begun) == (409, {})
    link.may_answer.set()
    await change


async def test_a_caller_that_is_cancelled_ends_its_probe(
    link: FakeLink, registry: CollectorRegistry
) -> None:
    requests = ProbeRequests(link, RuntimeMetrics(registry))
    link.may_answer.clear()
    caller = asyncio.create_task(requests.answer(ASKED, present))
    await link.asked.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert link.ended == list(link.begun) != []


async def test_a_caller_that_hangs_up_ends_its_probe_before_the_next_slice(
    link: FakeLink, registry: CollectorRegistry
) -> None:
    async def gone() -> bool:
        return len(link.answers) == 1

    await ProbeRequests(link, RuntimeMetrics(registry)).answer(ASKED, gone)
    assert (len(link.answers), len(link.ended)) == (1, 1)


async def test_a_probe_that_takes_too_long_is_ended(
    link: FakeLink, registry: CollectorRegistry
) -> None:
    times = iter((0.0, 1.0, 61.0))
    requests = ProbeRequests(link, RuntimeMetrics(registry), lambda: next(times), 60.0)
    answer = await requests.answer(ASKED, present)
    assert answer.status_code == 503
    assert b"longer than 60 s" in answer.body
    assert (len(link.answers), len(link.ended)) == (1, 1)


async def test_the_pause_that_the_core_asks_for_is_kept(
    link: FakeLink, registry: CollectorRegistry
) -> None:
    link.answers[0] = {**SLICE, "pause_seconds": 3600.0}
    requests = ProbeRequests(link, RuntimeMetrics(registry))
    caller = asyncio.create_task(requests.answer(ASKED, present))
    await link.asked.wait()
    await asyncio.sleep(0.01)
    assert (len(link.answers), caller.done()) == (1, False)
    caller.cancel()


async def test_a_probe_that_comes_early_begins_once_users_have_had_their_share(
    link: FakeLink, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = [{"outcome": "Waiting", "pause_seconds": 0.0}] * 2 + [RUNNING]
    began: list[str] = []

    async def begin(probe_id: str, document: object) -> dict[str, Any]:
        began.append(probe_id)
        return firsts[len(began) - 1]

    async def advance(probe_id: str) -> dict[str, Any]:
        return link.answers.pop(0)

    monkeypatch.setattr(link, "begin_probe", begin)
    monkeypatch.setattr(link, "advance_probe", advance)
    answer = await ProbeRequests(link, RuntimeMetrics(registry)).answer(ASKED, present)
    assert answer.status_code == 200
    assert (len(began), len(set(began))) == (3, 1)


async def test_a_caller_that_hangs_up_while_its_probe_waits_begins_none(
    link: FakeLink, registry: CollectorRegistry
) -> None:
    async def gone() -> bool:
        return True

    link.first = {"outcome": "Waiting", "pause_seconds": 0.0}
    await ProbeRequests(link, RuntimeMetrics(registry)).answer(ASKED, gone)
    assert (len(link.begun), len(link.answers), len(link.ended)) == (1, 2, 1)


async def test_a_deployment_without_one_core_says_why() -> None:
    link = RefusedLink("two cores")
    with pytest.raises(RuntimeUnavailableError, match="two cores"):
        await link.begin_probe("a", ASKED)
    with pytest.raises(RuntimeUnavailableError, match="two cores"):
        await link.advance_probe("a")
    with pytest.raises(RuntimeUnavailableError, match="two cores"):
        await link.end_probe("a")
