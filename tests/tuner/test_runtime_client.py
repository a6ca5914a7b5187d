"""The client of the runtime API and the actuator on top of it, against a fake engine."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from kvserving_tuner.actuators.base import Outcome
from kvserving_tuner.actuators.runtime_api import RuntimeActuator
from kvserving_tuner.decision import Change, Knob
from kvserving_tuner.errors import (
    BadAnswer,
    Busy,
    ChangeFailed,
    NoRuntimeAPI,
    Rejected,
    RuntimeAPIError,
    Unauthorized,
    Unreachable,
)
from kvserving_tuner.runtime_client import KnobRange, RuntimeClient
from kvserving_tuner.sources.base import EngineTarget

TARGET = EngineTarget("a", "http://a:8000/", "secret")
OTHER = EngineTarget("b", "http://b:8000", "secret")
CHANGE = Change(Knob.MAX_ACTIVE_SEQS, 8, 4)


def document(cap: int = 8) -> dict[str, object]:
    return {
        "api_version": "v1",
        "effective": {
            "kv_cache_dtype": "bfloat16",
            "max_active_seqs": cap,
            "max_scheduled_tokens": 2048,
            "eviction": {"policy": "None"},
        },
        "envelope": {"max_active_seqs": {"minimum": 1, "maximum": 64}},
        "capacity": {"kv_cache_tokens": 4096, "blocks": 32, "block_size": 128, "more": 1},
        "versions": {"vllm": "0.32.0", "plugin": "0.1.0"},
        "startup": {"max_num_seqs": 64, "prefix_caching": True},
        "last_change": None,
        "new_field": {"of": "a later version"},
    }


class FakeEngine:
    """Answers like the plugin; `answers` go first, one per request."""

    def __init__(self) -> None:
        self.caps = {"a": 8, "b": 8}
        self.requests: list[httpx.Request] = []
        self.answers: list[httpx.Response | Exception] = []
        self.ignores_changes = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if request.headers.get("authorization") != "Bearer secret":
            return httpx.Response(401, json={"error": {"message": "no token"}})
        host = request.url.host
        if request.method == "PATCH" and not self.ignores_changes:
            self.caps[host] = json.loads(request.content)["max_active_seqs"]
        return httpx.Response(200, json=document(self.caps[host]))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[RuntimeClient]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        yield RuntimeClient(http)


async def test_reading_what_is_in_effect(client: RuntimeClient, engine: FakeEngine) -> None:
    state = await client.get(TARGET)
    assert (state.target, state.effective.max_active_seqs) == ("a", 8)
    assert state.range_of("max_active_seqs") == KnobRange(minimum=1, maximum=64)
    assert state.range_of("kv_cache_dtype") is None
    assert state.capacity.kv_cache_tokens == 4096
    assert str(engine.requests[0].url) == "http://a:8000/kvserving/v1/runtime"


async def test_changing_and_reading_back(client: RuntimeClient, engine: FakeEngine) -> None:
    state = await client.patch(TARGET, {"max_active_seqs": 4}, "id-1")
    assert state.effective.max_active_seqs == 4
    assert json.loads(engine.requests[0].content) == {"max_active_seqs": 4, "change_id": "id-1"}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (httpx.Response(404), NoRuntimeAPI, "no runtime API"),
        (httpx.Response(401), Unauthorized, "refused"),
        (httpx.Response(403), Unauthorized, "refused"),
        (httpx.Response(409), Busy, "another change"),
        (httpx.Response(503, json={"error": "no token is set"}), Unreachable, "no token is set"),
        (httpx.Response(500, text="boom"), Unreachable, "boom"),
        (httpx.Response(500, json={"error": {"message": "no room"}}), ChangeFailed, "no room"),
        (httpx.Response(302), BadAnswer, "302"),
        (httpx.Response(200, text="<html>"), BadAnswer, "expected a JSON object"),
        (httpx.Response(200, json=[1]), BadAnswer, "expected a JSON object, got list"),
        (httpx.Response(200, json={}), BadAnswer, "effective"),
        (httpx.Response(422, text=""), Rejected, "unknown"),
        (httpx.ConnectError("connection refused"), Unreachable, "connection refused"),
        (httpx.ReadTimeout("slow"), Unreachable, "no answer within 5 s"),
    ],
)
async def test_every_failure_is_a_typed_error(
    client: RuntimeClient,
    engine: FakeEngine,
    answer: httpx.Response | Exception,
    error: type[RuntimeAPIError],
    words: str,
) -> None:
    engine.answers = [answer]
    with pytest.raises(error, match=words) as caught:
        await client.get(TARGET)
    assert caught.value.target == "a"
    assert str(caught.value).startswith("a: ")
    assert "secret" not in str(caught.value)


async def test_a_refusal_names_the_field(client: RuntimeClient, engine: FakeEngine) -> None:
    error = {"field": "max_active_seqs", "expected": "1 to 64", "got": "99", "message": ""}
    engine.answers = [httpx.Response(422, json={"error": error})]
    with pytest.raises(Rejected, match="max_active_seqs: expected 1 to 64, got 99") as caught:
        await client.patch(TARGET, {"max_active_seqs": 99}, "id-1")
    assert caught.value.field == "max_active_seqs"


def test_a_target_does_not_show_its_token() -> None:
    assert "secret" not in repr(TARGET)


async def test_the_actuator_changes_all_engines(client: RuntimeClient, engine: FakeEngine) -> None:
    applied = await RuntimeActuator(client).apply([TARGET, OTHER], CHANGE, "id-1")
    assert applied.outcome is Outcome.APPLIED
    assert engine.caps == {"a": 4, "b": 4}
    assert {json.loads(r.content)["change_id"] for r in engine.requests} == {"id-1"}


async def test_an_engine_that_fails_leaves_the_change_partial(
    client: RuntimeClient, engine: FakeEngine
) -> None:
    engine.answers = [httpx.ConnectError("refused")]
    applied = await RuntimeActuator(client).apply([TARGET, OTHER], CHANGE, "id-1")
    assert applied.outcome is Outcome.PARTIAL
    assert len(applied.states) == len(applied.failures) == 1


async def test_a_change_that_is_not_in_effect_afterwards_has_failed(
    client: RuntimeClient, engine: FakeEngine
) -> None:
    engine.ignores_changes = True
    applied = await RuntimeActuator(client).apply([TARGET], CHANGE, "id-1")
    assert applied.outcome is Outcome.FAILED
    assert "expected 4 in effect, got 8" in str(applied.failures["a"])


@pytest.mark.parametrize(("busy", "outcome"), [(3, Outcome.APPLIED), (4, Outcome.FAILED)])
async def test_a_busy_engine_is_asked_again(
    client: RuntimeClient, engine: FakeEngine, busy: int, outcome: Outcome
) -> None:
    engine.answers = [httpx.Response(409) for _ in range(busy)]
    actuator = RuntimeActuator(client, busy_pause_seconds=0)
    assert (await actuator.apply([TARGET], CHANGE, "id-1")).outcome is outcome
