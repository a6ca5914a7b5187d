"""Formats are screened by probes: what is worse is rejected, and silence is no verdict."""

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from kvserving_tuner.decision import Change, Knob
from kvserving_tuner.judge import Rules
from kvserving_tuner.probes.builtin import builtin
from kvserving_tuner.screening import ProbeGate, Screened
from kvserving_tuner.sources.base import EngineTarget

TARGET = EngineTarget("a", "http://engine:8000", "secret")
CHANGE = Change(Knob.KV_CACHE_DTYPE, "bfloat16", "int8")


class Probed:
    """An engine whose prompts are `rise` nats per token less likely through another format."""

    def __init__(
        self, rise: float = 0.0, answers: Mapping[str, httpx.Response] | None = None
    ) -> None:
        self.rise, self.answers = rise, answers or {}
        self.scored: list[dict[str, Any]] = []
        self.tokens = 400
        self.block, self.longest = 64, 4096

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        name = request.url.path.rsplit("/", 1)[-1]
        if name in self.answers:
            return self.answers[name]
        if name == "runtime":
            document = {
                "effective": {"kv_cache_dtype": "bfloat16"},
                "capacity": {"block_size": self.block},
                "startup": {"max_model_len": self.longest},
            }
            return httpx.Response(200, json=document)
        if name == "models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        if name == "tokenize":
            return httpx.Response(200, json={"tokens": list(range(self.tokens))})
        body = json.loads(request.content)
        self.scored.append(body)
        noise = 0.001 * (len(self.scored) % 5 - 2)
        nats = -1.0 - (self.rise + noise if body["as_dtype"] == "int8" else 0.0)
        logprobs = [None] * body["skip"] + [nats] * (len(body["token_ids"]) - body["skip"])
        return httpx.Response(200, json={"logprobs": logprobs, "dtype": body["as_dtype"]})


async def screened(engine: Probed, drop: float = 2.0, prompts: int = 160) -> Screened:
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        gate = ProbeGate(http, drop, Rules(), builtin(prompts, 50))
        return await gate.screen([TARGET], CHANGE)


async def test_a_format_that_costs_nothing_passes() -> None:
    engine = Probed()
    found = await screened(engine)
    assert (found.passed, found.rejected) == (True, False)
    # Pairs: through the format and through the model's own dtype, behind two fresh blocks.
    assert [body["as_dtype"] for body in engine.scored[:2]] == ["int8", "auto"]
    assert {body["skip"] for body in engine.scored} == {128}


async def test_a_format_that_costs_too_much_is_rejected_early() -> None:
    engine = Probed(rise=0.2)
    found = await screened(engine)
    assert (found.passed, found.rejected) == (False, True)
    assert "Short" in found.message
    assert len(engine.scored) < 100


async def test_what_is_not_shown_is_rejected() -> None:
    found = await screened(Probed(), prompts=10)
    assert (found.passed, found.rejected) == (False, True)
    assert "not shown to keep quality" in found.message


@pytest.mark.parametrize("field", ["tokens", "longest"])
async def test_prompts_that_read_nothing_stored_show_nothing(field: str) -> None:
    engine = Probed()
    setattr(engine, field, 128)
    found = await screened(engine)
    assert not found.passed
    assert engine.scored == []


@pytest.mark.parametrize("status", [401, 409, 503])
async def test_an_engine_that_cannot_be_asked_now_says_nothing(status: int) -> None:
    found = await screened(Probed(answers={"probe": httpx.Response(status)}))
    assert (found.passed, found.rejected) == (False, False)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"probe": httpx.Response(404)}, "no runtime API"),
        ({"models": httpx.Response(200, json={})}, "data.0..id: expected a model"),
        (
            {
                "probe": httpx.Response(
                    422, json={"error": {"field": "as_dtype", "message": "as_dtype: odd head"}}
                )
            },
            "odd head",
        ),
        (
            {
                "probe": httpx.Response(
                    500, json={"error": {"reason": "NotFinite", "message": "no numbers"}}
                )
            },
            "no numbers in 16 bits either",
        ),
    ],
)
async def test_what_an_engine_refuses_is_rejected_with_its_reason(
    answers: dict[str, httpx.Response], words: str
) -> None:
    found = await screened(Probed(answers=answers))
    assert found.rejected
    assert re.search(words, found.message)
