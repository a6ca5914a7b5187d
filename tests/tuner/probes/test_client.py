"""The probe's client: scores from an engine's answer, and every failure as a typed error."""

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvserving_tuner.errors import BadAnswer, Busy, Rejected, RuntimeAPIError, Unreachable
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.sources.base import EngineTarget

TARGET = EngineTarget("engine", "http://engine:8000", "secret")
Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> ProbeClient:
    return ProbeClient(httpx.AsyncClient(transport=httpx.MockTransport(handler)))


async def test_a_score_is_the_sum_over_the_tokens_that_were_scored() -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        asked.append(json.loads(request.content))
        answer = {"logprobs": [None, None, -1.0, -3.0], "dtype": "int4", "low_bit_share": 0.5}
        return httpx.Response(200, json=answer)

    score = await client(handler).score(TARGET, [1, 2, 3, 4], 2, "int4")
    assert (score.nats, score.tokens, score.mean) == (4.0, 2, 2.0)
    assert (score.dtype, score.low_bit_share) == ("int4", 0.5)
    assert asked == [{"token_ids": [1, 2, 3, 4], "form": "prefill", "skip": 2, "as_dtype": "int4"}]


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        (httpx.Response(409, json={"error": {"message": "one runs"}}), Busy, "one runs"),
        (
            httpx.Response(422, json={"error": {"field": "as_dtype", "expected": "x", "got": "y"}}),
            Rejected,
            "as_dtype: expected x, got y",
        ),
        (httpx.Response(503, json={"error": {"message": "no room"}}), Unreachable, "no room"),
        (httpx.Response(200, json=[]), BadAnswer, "expected a JSON object"),
        (httpx.Response(200, json={"logprobs": [None]}), BadAnswer, "at least one number"),
        (httpx.Response(200, json={"logprobs": ["a"]}), BadAnswer, "at least one number"),
        (httpx.Response(200, json={}), BadAnswer, "logprobs: expected a list"),
    ],
)
async def test_a_failure_is_a_typed_error(
    response: httpx.Response, error: type[RuntimeAPIError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await client(lambda _: response).score(TARGET, [1, 2], 0)


async def test_likelihoods_that_are_no_numbers_are_a_score_and_no_failure() -> None:
    error = {"message": "the model gave likelihoods that are not finite", "reason": "NotFinite"}
    score = await client(lambda _: httpx.Response(500, json={"error": error})).score(
        TARGET, [1, 2, 3], 1, "int4"
    )
    assert math.isnan(score.mean)
    assert score.dtype == "int4"


async def test_prompts_are_tokenized_by_the_engine() -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/tokenize"
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"count": 2, "tokens": [5, 6]})

    probes = client(handler)
    assert await probes.tokens(TARGET, "tiny", Prompt("a", text="Once")) == (5, 6)
    chat = Prompt("b", messages=(("user", "Hello"),))
    assert await probes.tokens(TARGET, "tiny", chat) == (5, 6)
    assert asked[0]["prompt"] == "Once"
    assert asked[1]["messages"] == [{"role": "user", "content": "Hello"}]


async def test_a_conversation_is_plain_text_to_a_model_without_a_chat_template() -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        if "messages" in asked[-1]:
            return httpx.Response(400, json={"error": {"message": "no chat template"}})
        return httpx.Response(200, json={"tokens": [7]})

    chat = Prompt("b", messages=(("user", "Hello"), ("assistant", "Hi")))
    assert await client(handler).tokens(TARGET, "tiny", chat) == (7,)
    assert asked[-1]["prompt"] == "user: Hello\nassistant: Hi"


async def test_an_answer_without_tokens_is_no_prompt() -> None:
    with pytest.raises(BadAnswer, match="tokens: expected a list of integers"):
        await client(lambda _: httpx.Response(200, json={})).tokens(
            TARGET, "tiny", Prompt("a", text="Once")
        )


async def test_a_question_ends_where_the_answer_begins() -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"tokens": [5, 6]})

    chat = Prompt("b", messages=(("user", "Where?"),))
    assert await client(handler).question(TARGET, "tiny", chat, "It is") == (5, 6)
    assert await client(handler).question(TARGET, "tiny", chat) == (5, 6)
    assert asked[0]["messages"][-1] == {"role": "assistant", "content": "It is"}
    assert (asked[0]["continue_final_message"], asked[0]["add_generation_prompt"]) == (True, False)
    assert (asked[1]["continue_final_message"], asked[1]["add_generation_prompt"]) == (False, True)


async def test_a_question_without_a_chat_template_is_plain_text() -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        if "messages" in asked[-1]:
            return httpx.Response(400, json={"error": {"message": "no chat template"}})
        return httpx.Response(200, json={"tokens": [7]})

    chat = Prompt("b", messages=(("user", "Where?"),))
    assert await client(handler).question(TARGET, "tiny", chat, "It is") == (7,)
    assert asked[-1]["prompt"] == "user: Where?\nassistant: It is"


async def test_answers_are_greedy_bounded_and_apart_from_users_cache() -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/completions"
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"text": " noon."}]})

    assert await client(handler).answer(TARGET, "tiny", [5, 6], 16, "salt") == " noon."
    (body,) = asked
    assert body == {
        "model": "tiny", "prompt": [5, 6], "max_tokens": 16, "temperature": 0, "seed": 7,
        "cache_salt": "salt",
    }  # fmt: skip


@pytest.mark.parametrize("document", [[], {}, {"choices": []}, {"choices": [{"text": None}]}])
async def test_an_answer_without_text_is_a_typed_error(document: object) -> None:
    with pytest.raises(BadAnswer, match=r"choices\[0\]\.text: expected a text"):
        await client(lambda _: httpx.Response(200, json=document)).answer(
            TARGET, "tiny", [5], 16, "salt"
        )
