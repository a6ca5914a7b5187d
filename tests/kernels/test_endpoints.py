"""The runtime API over HTTP, with a fake engine behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from kvserving_kernels.errors import RuntimeUnavailableError
from kvserving_kernels.plugin.document import Counters
from kvserving_kernels.plugin.endpoints import MAX_BODY_BYTES, RuntimeAPI, build_router
from kvserving_kernels.plugin.follow import follow
from kvserving_kernels.plugin.link import CoreLink, RefusedLink
from kvserving_kernels.plugin.metrics import RuntimeMetrics

TOKEN = "s3cret"
DOCUMENT: dict[str, Any] = {
    "effective": {
        "kv_cache_dtype": "bfloat16",
        "max_active_seqs": 64,
        "eviction": {"policy": "None"},
    },
    "capacity": {"block_size": 128},
}


class FakeLink:
    """An engine core that answers as it is told, when it is told."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"outcome": "Applied", "runtime": DOCUMENT}
        self.error: str | None = None
        self.changes: list[object] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def describe(self) -> dict[str, Any]:
        """The document, or the error."""
        if self.error:
            raise RuntimeUnavailableError(self.error)
        return DOCUMENT

    async def apply(self, document: object) -> dict[str, Any]:
        """The answer, once it may come."""
        self.changes.append(document)
        self.asked.set()
        await self.may_answer.wait()
        if self.error:
            raise RuntimeUnavailableError(self.error)
        return self.answer

    async def begin_probe(self, probe_id: str, document: object) -> dict[str, Any]:
        """Probes have tests of their own."""
        raise NotImplementedError

    async def advance_probe(self, probe_id: str) -> dict[str, Any]:
        """Probes have tests of their own."""
        raise NotImplementedError

    async def end_probe(self, probe_id: str) -> None:
        """Probes have tests of their own."""
        raise NotImplementedError


class IdleProbe:
    """An engine that produces a token whenever it is asked for one."""

    def __init__(self) -> None:
        self.dead: str | None = None

    def dead_reason(self) -> str | None:
        """Why the engine is dead."""
        return self.dead

    def last_user_token_at(self) -> float | None:
        """When users last got a token."""
        return None

    def last_step_at(self) -> float | None:
        """When the scheduler last stepped."""
        return None

    async def complete(self) -> None:
        """Produce a token."""
        return


async def _present() -> bool:
    """A caller that stays."""
    return False


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
    app.state.kvserving = RuntimeAPI(link, IdleProbe(), TOKEN, RuntimeMetrics(registry))
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://engine/kvserving/v1", headers=headers
    ) as client:
        yield client


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        "Bearer é",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_without_the_token_nothing_is_shown_or_changed(
    client: httpx.AsyncClient, link: FakeLink, method: str, authorization: str
) -> None:
    answer = await client.request(
        method,
        "/runtime",
        json={"max_active_seqs": 8, "change_id": "a"},
        headers={b"Authorization": authorization.encode()},
    )
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert link.changes == []


@pytest.mark.parametrize("ends", ["\n", "\r\n", " ", "\t\n"])
@pytest.mark.parametrize("starts", ["", " ", "\n"])
async def test_whitespace_around_the_configured_token_does_not_count(
    app: FastAPI, client: httpx.AsyncClient, link: FakeLink, starts: str, ends: str
) -> None:
    metrics = RuntimeMetrics(CollectorRegistry())
    app.state.kvserving = RuntimeAPI(link, IdleProbe(), f"{starts}{TOKEN}{ends}", metrics)
    assert (await client.get("/runtime")).status_code == 200
    headers = {"Authorization": "Bearer"}
    assert (await client.get("/runtime", headers=headers)).status_code == 401


@pytest.mark.parametrize("token", ["", "\n", " \r\n"])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_without_a_configured_token_the_api_is_closed(
    app: FastAPI, client: httpx.AsyncClient, link: FakeLink, method: str, token: str
) -> None:
    app.state.kvserving = RuntimeAPI(link, IdleProbe(), token, RuntimeMetrics(CollectorRegistry()))
    answer = await client.request(method, "/runtime", headers={"Authorization": "Bearer "})
    assert answer.status_code == 503
    assert "KVSERVING_TOKEN is not set" in answer.json()["error"]["message"]


async def test_get_shows_the_document(client: httpx.AsyncClient) -> None:
    answer = await client.get("/runtime")
    assert (answer.status_code, answer.json()) == (200, DOCUMENT)


@pytest.mark.parametrize("outcome", ["Applied", "Repeated"])
async def test_a_change_that_holds_answers_with_the_document(
    client: httpx.AsyncClient, link: FakeLink, registry: CollectorRegistry, outcome: str
) -> None:
    link.answer = {"outcome": outcome, "runtime": DOCUMENT}
    change = {"max_active_seqs": 8, "change_id": "a"}
    answer = await client.patch("/runtime", json=change)
    assert (answer.status_code, answer.json(), link.changes) == (200, DOCUMENT, [change])
    labels = {"knob": "max_active_seqs", "result": outcome}
    assert registry.get_sample_value("kvserving:changes_total", labels) == 1


async def test_an_invalid_change_answers_422_with_the_field(
    client: httpx.AsyncClient, link: FakeLink
) -> None:
    error = {"field": "max_active_seqs", "expected": "e", "got": "g", "message": "m"}
    link.answer = {"outcome": "Invalid", "error": error}
    answer = await client.patch("/runtime", json={"max_active_seqs": 0, "change_id": "a"})
    assert (answer.status_code, answer.json()) == (422, {"error": error})


async def test_a_failed_change_answers_500_with_the_reason(
    client: httpx.AsyncClient, link: FakeLink
) -> None:
    link.answer = {"outcome": "Failed", "error": {"message": "out of memory"}}
    answer = await client.patch("/runtime", json={"max_active_seqs": 8, "change_id": "a"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "out of memory")


@pytest.mark.parametrize(
    "body", [b"", b"nope", b"\xff\xfe", b'{"a":1', b"x" * (MAX_BODY_BYTES + 1)]
)
async def test_a_body_that_is_no_small_json_never_reaches_the_engine(
    client: httpx.AsyncClient, link: FakeLink, body: bytes
) -> None:
    answer = await client.patch("/runtime", content=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "body")
    assert link.changes == []


async def test_a_second_change_is_turned_away_until_the_first_is_done(
    client: httpx.AsyncClient, link: FakeLink
) -> None:
    link.may_answer.clear()
    first = asyncio.create_task(
        client.patch("/runtime", json={"max_active_seqs": 8, "change_id": "a"})
    )
    await link.asked.wait()
    second = await client.patch("/runtime", json={"max_active_seqs": 9, "change_id": "b"})
    assert second.status_code == 409
    link.may_answer.set()
    assert (await first).status_code == 200
    third = await client.patch("/runtime", json={"max_active_seqs": 9, "change_id": "b"})
    assert (third.status_code, len(link.changes)) == (200, 2)


async def test_a_caller_that_hangs_up_does_not_cut_a_change_off(
    app: FastAPI, link: FakeLink
) -> None:
    api: RuntimeAPI = app.state.kvserving
    link.may_answer.clear()
    caller = asyncio.create_task(api.patch({"max_active_seqs": 8, "change_id": "a"}))
    await link.asked.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await api.patch({"max_active_seqs": 9, "change_id": "b"})).status_code == 409
    link.may_answer.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await api.patch({"max_active_seqs": 9, "change_id": "b"})).status_code == 200


async def test_a_change_that_takes_longer_than_its_caller_waits_keeps_others_out(
    link: FakeLink,
) -> None:
    registry = CollectorRegistry()
    probe = IdleProbe()
    api = RuntimeAPI(link, probe, TOKEN, RuntimeMetrics(registry), answer_seconds=0.0)
    link.may_answer.clear()
    first, second = (
        {"max_active_seqs": 8, "change_id": "a"},
        {"max_active_seqs": 9, "change_id": "b"},
    )
    answer = await api.patch(first)
    assert answer.status_code == 503
    assert b"may still be carried out" in answer.body
    # Its own caller may ask again, and is no other change.
    assert (await api.patch(first)).status_code == 503
    for other in (second, {**first, "change_id": "b"}, {**second, "change_id": "a"}):
        assert (await api.patch(other)).status_code == 409
    assert (await api.probe({}, _present)).status_code == 409
    # A core that died in the middle never ends its change.
    probe.dead = "the engine core is dead"
    assert (await api.patch(second)).status_code == 503
    probe.dead = None
    assert link.changes == [first]
    link.may_answer.set()
    for _ in range(3):
        await asyncio.sleep(0)
    await api.patch(second)
    assert link.changes == [first, second]


async def test_who_repeats_a_change_under_way_gets_its_answer(
    client: httpx.AsyncClient, link: FakeLink, registry: CollectorRegistry
) -> None:
    link.may_answer.clear()
    change = {"max_active_seqs": 8, "change_id": "a"}
    first = asyncio.create_task(client.patch("/runtime", json=change))
    await link.asked.wait()
    again = asyncio.create_task(client.patch("/runtime", json=change))
    await asyncio.sleep(0.01)
    assert not again.done()
    link.may_answer.set()
    assert [(await first).status_code, (await again).status_code] == [200, 200]
    assert link.changes == [change]
    for result in ("Applied", "Repeated"):
        labels = {"knob": "max_active_seqs", "result": result}
        assert registry.get_sample_value("kvserving:changes_total", labels) == 1


async def test_what_the_core_says_of_another_servers_change_answers_409(
    client: httpx.AsyncClient, link: FakeLink, registry: CollectorRegistry
) -> None:
    link.answer = {"outcome": "Busy", "error": {"message": "another change"}}
    answer = await client.patch("/runtime", json={"max_active_seqs": 8, "change_id": "a"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "another change")
    labels = {"knob": "max_active_seqs", "result": "Busy"}
    assert registry.get_sample_value("kvserving:changes_total", labels) == 1


async def test_the_core_is_told_when_a_change_was_asked_for() -> None:
    calls: list[tuple[object, ...]] = []

    async def call(*arguments: object) -> dict[str, Any]:
        calls.append(arguments)
        await asyncio.sleep(0.02)
        return {"outcome": "Applied"}

    # A change is waited for longer than any other answer.
    link = CoreLink(call, answer_seconds=0.0, clock=lambda: 12.5)
    assert await link.apply({"change_id": "a"}) == {"outcome": "Applied"}
    assert calls == [("kvserving_apply", {"change_id": "a"}, 12.5)]


async def test_an_engine_that_cannot_answer_is_503(
    client: httpx.AsyncClient, link: FakeLink
) -> None:
    link.error = "the engine core cannot answer: dead"
    for answer in (
        await client.get("/runtime"),
        await client.patch("/runtime", json={"max_active_seqs": 8, "change_id": "a"}),
    ):
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, link.error)


async def test_ready_needs_no_token_and_says_its_proof(
    app: FastAPI, client: httpx.AsyncClient, link: FakeLink
) -> None:
    answer = await client.get("/ready", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.json()["proof"] == "Completion"
    probe = IdleProbe()
    probe.dead = "the engine core is dead"
    app.state.kvserving = RuntimeAPI(link, probe, TOKEN, RuntimeMetrics(CollectorRegistry()))
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()) == (
        503,
        {"ready": False, "reason": "the engine core is dead"},
    )


async def test_metrics_follow_the_document(registry: CollectorRegistry) -> None:
    metrics = RuntimeMetrics(registry)
    metrics.show(DOCUMENT)
    old = {"dtype": "bfloat16", "eviction": "None", "block_size": "128"}
    assert registry.get_sample_value("kvserving:kv_cache_info", old) == 1
    assert registry.get_sample_value("kvserving:max_active_seqs") == 64
    effective = {"kv_cache_dtype": "int4", "max_active_seqs": 8, "eviction": {"policy": "None"}}
    metrics.show({**DOCUMENT, "effective": effective})
    assert registry.get_sample_value("kvserving:kv_cache_info", old) is None
    assert registry.get_sample_value("kvserving:kv_cache_info", {**old, "dtype": "int4"}) == 1
    assert registry.get_sample_value("kvserving:max_active_seqs") == 8


@pytest.mark.parametrize("counter", [field.name for field in fields(Counters)])
async def test_what_the_engine_counts_is_counted_once(
    registry: CollectorRegistry, counter: str
) -> None:
    metrics = RuntimeMetrics(registry)
    for count in (5, 9, 7, 9):
        metrics.show({**DOCUMENT, "counters": {counter: count}})
    assert registry.get_sample_value(f"kvserving:{counter}_total") == 9


async def test_metrics_follow_the_core_also_after_it_could_not_answer(link: FakeLink) -> None:
    shown: asyncio.Queue[Any] = asyncio.Queue()
    following = asyncio.create_task(follow(link, shown.put_nowait, interval_seconds=0))
    assert await shown.get() == DOCUMENT
    link.error = "hung"
    while not shown.empty():
        shown.get_nowait()
    await asyncio.sleep(0.01)
    link.error = None
    assert await shown.get() == DOCUMENT
    following.cancel()


async def test_unknown_fields_do_not_become_metric_labels(
    client: httpx.AsyncClient, registry: CollectorRegistry
) -> None:
    await client.patch("/runtime", content=json.dumps({f"field{i}": i for i in range(50)}))
    samples = [sample for family in registry.collect() for sample in family.samples]
    knobs = {sample.labels["knob"] for sample in samples if "knob" in sample.labels}
    assert knobs == {"unknown"}


async def test_a_core_that_does_not_answer_in_time_is_unavailable() -> None:
    async def never(*arguments: object) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeUnavailableError, match="has not answered within"):
        await CoreLink(never, answer_seconds=0.01).describe()


async def test_an_engine_that_ends_is_unavailable_with_what_it_said(
    app: FastAPI, client: httpx.AsyncClient
) -> None:
    async def call(*arguments: object) -> None:
        # As vLLM hands on what a method of the core raised.
        raise RuntimeError("Call to kvserving_apply method failed: the engine ends")

    registry = CollectorRegistry()
    app.state.kvserving = RuntimeAPI(CoreLink(call), IdleProbe(), TOKEN, RuntimeMetrics(registry))
    answer = await client.patch("/runtime", json={"kv_cache_dtype": "int4", "change_id": "a"})
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].endswith("the engine ends")
    labels = {"knob": "kv_cache_dtype", "result": "Unavailable"}
    assert registry.get_sample_value("kvserving:changes_total", labels) == 1


async def test_a_refused_deployment_says_why() -> None:
    link = RefusedLink("two cores")
    with pytest.raises(RuntimeUnavailableError, match="two cores"):
        await link.describe()
    with pytest.raises(RuntimeUnavailableError, match="two cores"):
        await link.apply({})


PUBLIC = {"/kvserving/v1/ready"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def test_only_readiness_is_for_everyone() -> None:
    paths = {route.path for route in build_router().routes if isinstance(route, APIRoute)}
    assert paths - PUBLIC == {"/kvserving/v1/runtime", "/kvserving/v1/probe"}


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", f"Basic {TOKEN}"], ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/runtime", "/probe", "/runtime/", "/probe/"])
async def test_no_method_of_no_path_answers_without_the_token(
    app: FastAPI, link: FakeLink, path: str, method: str, authorization: str | None
) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://engine", headers=headers, follow_redirects=True
    ) as anybody:
        answer = await anybody.request(
            method, f"/kvserving/v1{path}", content=b'{"max_active_seqs": 8, "token_ids": [1]}'
        )
    assert answer.status_code in (401, 404, 405)
    assert "bfloat16" not in answer.text
    assert TOKEN not in answer.text + str(answer.headers)
    assert [] == link.changes


@pytest.mark.parametrize("method", METHODS)
async def test_readiness_tells_nothing_else(app: FastAPI, link: FakeLink, method: str) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as anybody:
        answer = await anybody.request(method, "/kvserving/v1/ready")
    if method == "GET":
        assert set(answer.json()) <= {"ready", "proof", "age_seconds", "reason"}
    else:
        assert answer.status_code == 405
    assert [] == link.changes
