"""Probes in a real vLLM server: equal to what the served cache gives, and nothing to its users."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest

from harness import runtime
from harness.answers import Answer, answer_of, difference

pytestmark = pytest.mark.engine

MODEL = "tiny"
BLOCK_SIZE = 64
RUNTIME = "/kvserving/v1/runtime"
PROBE = "/kvserving/v1/probe"
NEAR = 4e-4
"""Nats per token: sums in another order give a tenth of it, another format several times it."""
USERS_TOKENS, PROBED = 150, 600
"""The probe has work for longer than the user, whose request alone takes a fraction of it."""
SAME = 1e-5
"""Nats per token between probes of one form: the same sums."""


def tokens(count: int, seed: int = 0) -> list[int]:
    return [(7 * place * place + 3 * place + seed) % 900 + 5 for place in range(count)]


IDS = tokens(300)


async def ask(client: httpx.AsyncClient, **more: object) -> httpx.Response:
    return await client.post(PROBE, json={"token_ids": IDS, "form": "prefill", **more})


async def score(client: httpx.AsyncClient, **more: object) -> list[float | None]:
    answer = await ask(client, **more)
    assert answer.status_code == 200, answer.text
    logprobs: list[float | None] = answer.json()["logprobs"]
    return logprobs


async def served(client: httpx.AsyncClient) -> list[float | None]:
    """Log-probabilities of the tokens as a prompt of a user's request."""
    body = {"model": MODEL, "prompt": IDS, "max_tokens": 1, "prompt_logprobs": 0}
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    rows = zip(choice["prompt_logprobs"][1:], IDS[1:], strict=True)
    return [None, *(row[str(token)]["logprob"] for row, token in rows)]


def mean(logprobs: Sequence[float | None]) -> float:
    found = [value for value in logprobs if value is not None]
    return math.fsum(found) / len(found)


async def switch(client: httpx.AsyncClient, dtype: str) -> None:
    document = {"kv_cache_dtype": dtype, "change_id": f"{dtype}-{time.monotonic_ns()}"}
    answer = await runtime.change(client, document)
    assert answer.status_code == 200, answer.text


async def complete(
    client: httpx.AsyncClient, seed: int, count: int, behind: Sequence[int] = ()
) -> Answer:
    """What a user gets; the prompt may have other tokens in its first places."""
    body = {
        "model": MODEL, "prompt": [*behind, *tokens(40, seed)[len(behind) :]], "max_tokens": count,
        "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 0,
    }  # fmt: skip
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer_of(answer.json()["choices"][0])


async def computed(engine: Any) -> float:
    """Tokens computed for probes so far."""
    metrics = await asyncio.to_thread(engine.metrics)
    return float(metrics.get("kvserving:probe_tokens_total", 0.0))


async def starts(engine: Any, before: float) -> None:
    """Wait until a probe computes."""
    for _ in range(3000):
        if await computed(engine) > before:
            return
        await asyncio.sleep(0.05)
    pytest.fail("no probe has begun to compute")


async def test_scores_are_those_of_the_served_cache_in_every_form_and_format(
    client: httpx.AsyncClient,
) -> None:
    plain = await score(client)
    assert plain[0] is None
    for probed, prompt in zip(plain[1:], (await served(client))[1:], strict=True):
        assert probed == pytest.approx(prompt, abs=0.05)
    assert mean(plain) == pytest.approx(mean(await served(client)), abs=NEAR)
    assert mean(await score(client, form="decode")) == pytest.approx(mean(plain), abs=NEAR)

    as_int4 = mean(await score(client, as_dtype="int4"))
    as_int2 = mean(await score(client, as_dtype="int2", form="decode"))
    # Users' own cache is what it was, and another format does not give the same by chance.
    assert mean(await score(client)) == pytest.approx(mean(plain), abs=NEAR)
    assert mean(await served(client)) == pytest.approx(mean(plain), abs=NEAR)
    assert min(abs(mean(plain) - as_int4), abs(as_int4 - as_int2)) > 3 * NEAR

    await switch(client, "int4")
    assert mean(await score(client)) == pytest.approx(mean(await served(client)), abs=NEAR)
    assert mean(await score(client)) == pytest.approx(as_int4, abs=SAME)
    assert mean(await score(client, form="decode")) == pytest.approx(as_int4, abs=NEAR)
    # The base that every format is compared with can be had while another one serves.
    base = await score(client, as_dtype="bfloat16", form="decode")
    assert mean(base) == pytest.approx(mean(plain), abs=NEAR)
    await switch(client, "int2")
    assert mean(await score(client, form="decode")) == pytest.approx(as_int2, abs=SAME)
    await switch(client, "auto")


async def test_an_answer_says_what_it_holds_for(client: httpx.AsyncClient) -> None:
    first = 2 * BLOCK_SIZE
    answer = (await ask(client, as_dtype="int4_hadamard", skip=first)).json()
    assert (answer["form"], answer["dtype"]) == ("prefill", "int4_hadamard")
    assert answer["tokens"] == len(IDS) - first
    assert answer["logprobs"][:first] == [None] * first
    assert None not in answer["logprobs"][first:]
    assert 0.85 < answer["low_bit_share"] < 1
    assert (await ask(client, as_dtype="auto")).json()["dtype"] == "bfloat16"


async def test_a_probe_leaves_nothing_behind_and_finds_nothing(
    engine: Any, client: httpx.AsyncClient
) -> None:
    async def state() -> tuple[float, float]:
        metrics = await asyncio.to_thread(engine.metrics)
        hits = metrics["vllm:prefix_cache_hits_total"]
        return hits, metrics["vllm:kv_cache_usage_perc"]

    body = {"model": MODEL, "prompt": tokens(200, 77), "max_tokens": 1}
    asked = {"token_ids": body["prompt"], "form": "prefill"}
    capacity = (await client.get(RUNTIME)).json()["capacity"]
    before = await computed(engine)
    assert (await client.post(PROBE, json=asked)).status_code == 200
    hits, usage = await state()
    assert usage == 0
    # The user's first request computes its whole prompt, the second finds its blocks.
    await client.post("/v1/completions", json=body)
    assert (await state())[0] == hits
    assert (await client.post(PROBE, json=asked)).status_code == 200
    assert (await state())[0] == hits
    await client.post("/v1/completions", json=body)
    assert (await state())[0] == hits + 3 * BLOCK_SIZE
    assert (await client.get(RUNTIME)).json()["capacity"] == capacity
    # All but the last token, twice.
    assert await computed(engine) == before + 2 * 199


async def test_users_get_the_same_answers_while_a_probe_runs(
    engine: Any, client: httpx.AsyncClient
) -> None:
    alone = await complete(client, 1, 200)
    assert await complete(client, 1, 200) == alone
    # A few other keys and values do not pass for the same.
    assert difference([await complete(client, 1, 200, behind=tokens(4, 9))], [alone]) > 0
    before = await computed(engine)
    probe = asyncio.create_task(ask(client, form="decode", as_dtype="int4"))
    await starts(engine, before)
    assert await complete(client, 1, 200) == alone
    many = await asyncio.gather(*(complete(client, seed, 60) for seed in range(8)))
    assert [len(found) for found in many] == [60] * 8
    assert (await probe).status_code == 200
    assert await complete(client, 1, 200) == alone


async def test_users_tokens_keep_coming_while_a_probe_runs(
    engine: Any, client: httpx.AsyncClient
) -> None:
    async def gaps(count: int) -> list[float]:
        body = {
            "model": MODEL, "prompt": tokens(50), "max_tokens": count, "ignore_eos": True,
            "stream": True, "return_token_ids": True,
        }  # fmt: skip
        at, got = [], 0
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    at.append(time.monotonic())
                    got += len(json.loads(line[6:])["choices"][0]["token_ids"] or ())
        # One event may bring several of them.
        assert got == count
        return [b - a for a, b in pairwise(at)]

    without = await gaps(USERS_TOKENS)
    before = await computed(engine)
    long = {"token_ids": tokens(PROBED), "form": "decode", "as_dtype": "int8"}
    probe = asyncio.create_task(client.post(PROBE, json=long))
    await starts(engine, before)
    begun = await computed(engine)
    during = await gaps(USERS_TOKENS)
    meanwhile = await computed(engine) - begun
    longest = {"without": max(without), "during": max(during)}
    print(json.dumps({"longest_gap": longest, "probed_meanwhile": meanwhile}))  # noqa: T201
    # Both compute token by token, and users have most of the time.
    assert meanwhile < USERS_TOKENS
    assert not probe.done()
    assert (await probe).status_code == 200


async def test_one_probe_at_a_time_and_none_that_outlives_its_caller_or_its_format(
    engine: Any, client: httpx.AsyncClient
) -> None:
    long: dict[str, Any] = {"token_ids": tokens(1000), "form": "decode"}
    before = await computed(engine)
    first = asyncio.create_task(client.post(PROBE, json=long))
    await starts(engine, before)
    assert (await ask(client)).status_code == 409
    # A switch is the users' business: it does not wait for a probe.
    await switch(client, "int8")
    answer = await first
    assert answer.status_code == 409
    assert "the KV cache was changed" in answer.json()["error"]["message"]
    assert (await ask(client)).json()["dtype"] == "int8"
    await switch(client, "auto")

    before = await computed(engine)
    async with httpx.AsyncClient(base_url=engine.url, headers=engine.headers) as other:
        caller = asyncio.create_task(other.post(PROBE, json=long, timeout=60))
        await starts(engine, before)
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
    for _ in range(300):
        if (await ask(client)).status_code == 200:
            break
        await asyncio.sleep(0.2)
    else:
        pytest.fail("a probe outlived its caller")
    # All of both would have been computed if the first had gone on to its end.
    assert await computed(engine) - before < len(long["token_ids"]) + len(IDS) - 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"token_ids": [1, 10**6]}, "token_ids[1]"),
        ({"token_ids": tokens(2049)}, "token_ids"),
        ({"form": "neither"}, "form"),
        ({"as_dtype": "fp4"}, "as_dtype"),
        ({"skip": 300}, "skip"),
    ],
)
async def test_a_wrong_probe_is_refused_with_its_field(
    client: httpx.AsyncClient, change: dict[str, object], field: str
) -> None:
    answer = await ask(client, **change)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


async def test_a_probe_needs_the_token(engine: Any) -> None:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as stranger:
        assert (await ask(stranger)).status_code == 401
