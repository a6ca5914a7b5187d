"""Words of an engine that quote a prompt go no further."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from kvserving_tuner.errors import (
    BadAnswer,
    ChangeFailed,
    Rejected,
    RuntimeAPIError,
    ServerFailed,
    Unreachable,
)
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.withheld import WITHHELD, withheld
from kvserving_tuner.sources.base import EngineTarget

TEXT = "the patient is called Erika\nand lives in \u201cCologne\u201d"
PROMPT: Mapping[str, object] = {"model": "a-model-of-some-name", "prompt": TEXT}
CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": TEXT}]}
TOKENS: Mapping[str, object] = {"token_ids": [1187, 22, 904, 31337, 5], "skip": 256}


@pytest.mark.parametrize("body", [PROMPT, CHAT], ids=["prompt", "chat"])
@pytest.mark.parametrize(
    "words",
    [
        TEXT,
        f"cannot read {TEXT!r}",
        f"too long: {TEXT[:12]} …",
        f"too long: … {TEXT[-12:]}",
    ],
)
def test_a_quotation_is_left_out(body: Mapping[str, object], words: str) -> None:
    for error in (BadAnswer("a", words), ServerFailed("a", words), Unreachable("a", words)):
        found = withheld(error, body)
        assert (type(found), str(found)) == (type(error), f"a: {WITHHELD}")


def test_token_ids_are_words_too() -> None:
    found = withheld(BadAnswer("a", "got [1187, 22, 904, 31337, 5]"), TOKENS)
    assert found.message == WITHHELD


def test_a_refusal_that_quotes_keeps_nothing_of_it() -> None:
    error = Rejected("a", "prompt", "less", TEXT, "no")
    found = withheld(error, PROMPT)
    assert isinstance(found, Rejected)
    assert found.told == WITHHELD
    assert TEXT not in str(vars(found))


def test_the_reason_of_a_failure_stays() -> None:
    found = withheld(ChangeFailed("a", TEXT, "NotFinite"), PROMPT)
    assert isinstance(found, ChangeFailed)
    assert found.reason == "NotFinite"


@pytest.mark.parametrize("body", [PROMPT, CHAT, TOKENS, {}, {"prompt": ""}])
@pytest.mark.parametrize("words", ["", "HTTP 404", "a-model-of-some-name does not exist", "the"])
def test_other_words_stay(body: Mapping[str, object], words: str) -> None:
    error = BadAnswer("a", words)
    assert withheld(error, body) is error


@pytest.mark.parametrize("question", ["tokens", "question", "answer", "score"])
@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 502])
async def test_every_question_of_the_client_withholds(question: str, status: int) -> None:
    def engine(request: httpx.Request) -> httpx.Response:
        said = request.content.decode()
        return httpx.Response(status, json={"error": {"message": said, "got": said}})

    prompt = Prompt("p", text="the patient is called Erika Mustermann")
    target = EngineTarget("a", "http://engine", token="t", api_key="k")
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        client = ProbeClient(http)
        calls: dict[str, Any] = {
            "tokens": lambda: client.tokens(target, "m", prompt),
            "question": lambda: client.question(target, "m", prompt),
            "answer": lambda: client.answer(target, "m", [31337] * 50, 5, "s"),
            "score": lambda: client.score(target, [31337] * 50, 5),
        }
        with pytest.raises(RuntimeAPIError) as failure:
            await calls[question]()
    assert "Erika" not in str(failure.value)
    assert "31337" not in str(failure.value)
    assert failure.value.__cause__ is None


@pytest.mark.parametrize(("path", "bearer"), [("/v1/completions", "k"), ("/tokenize", "k")])
async def test_as_a_user_the_client_sends_the_users_key(path: str, bearer: str) -> None:
    seen: list[tuple[str, str]] = []

    def engine(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, request.headers.get("Authorization", "")))
        return httpx.Response(200, json={"choices": [{"text": "b"}], "tokens": [1]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        client = ProbeClient(http)
        for key in ("k", None):
            target = EngineTarget("a", "http://engine", token="t", api_key=key)
            await client.answer(target, "m", [1], 5, "s")
            await client.tokens(target, "m", Prompt("p", text="a"))
    assert (path, f"Bearer {bearer}") in seen
    assert (path, "") in seen
    assert not any("Bearer t" in header for _, header in seen)
