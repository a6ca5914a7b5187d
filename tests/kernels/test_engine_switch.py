"""KV formats in a real vLLM server: capacity, live switches under load, faults at every step."""

import asyncio
import json
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.answers import Answer, answer_of, difference
from harness.runtime import change
from kvserving_kernels.formats import KVCacheDType, layout_of, this_machine, why_not

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
BLOCK_SIZE, HEAD_SIZE, KV_HEADS, LAYERS = 64, 32, 2, 4
KV_BYTES = 64 * 1024 * 1024
RUNTIME = "/kvserving/v1/runtime"
OWN = ("int8", "k8v4", "int4", "int4_hadamard", "int2", "k2v4")
TOKENS = 700
"""Enough that requests still stream after four switches on a fast machine."""
STREAMS = 16
STATEFUL = {"logit_bias": {"7": 1.0}, "min_tokens": 5}
"""Options that the engine keeps by a request's row in its batch."""
PROMPT = [(7 * place * place + 3 * place) % 900 + 5 for place in range(300)]
StartEngine = Callable[..., AbstractContextManager[Any]]


async def switch(client: httpx.AsyncClient, dtype: str) -> httpx.Response:
    document = {"kv_cache_dtype": dtype, "change_id": f"{dtype}-{time.monotonic_ns()}"}
    return await change(client, document)


async def runtime(client: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await client.get(RUNTIME)).json()
    return document


async def score(client: httpx.AsyncClient, prompt: list[int] = PROMPT) -> float:
    """Log-probability of a prompt, computed through the cache."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0}
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    rows = choice["prompt_logprobs"][1:]
    found = [row[str(token)]["logprob"] for row, token in zip(rows, prompt[1:], strict=True)]
    return math.fsum(found)


class Stream:
    """One streamed request, and the tokens that came of it."""

    def __init__(self, client: httpx.AsyncClient, seed: int, tokens: int) -> None:
        self.at: list[float] = []
        self.answer: list[tuple[int, float]] = []
        self.moved = asyncio.Event()
        self._body = {
            "model": MODEL,
            "prompt": [token + seed for token in PROMPT[:100]],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "logprobs": 0,
            **(STATEFUL if seed % 4 == 3 else {}),
        }
        self.task = asyncio.create_task(self._run(client))

    async def _run(self, client: httpx.AsyncClient) -> int:
        try:
            async with client.stream("POST", "/v1/completions", json=self._body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        self.answer += answer_of(json.loads(line[6:])["choices"][0])
                        self.at.append(time.monotonic())
                        self.moved.set()
        finally:
            self.moved.set()
        return len(self.answer)


def begin(client: httpx.AsyncClient, tokens: int) -> list[Stream]:
    """Streams that are begun at once."""
    return [Stream(client, seed, tokens) for seed in range(STREAMS)]


async def all_move(streams: list[Stream]) -> None:
    """Wait until every stream that has not ended has got another token."""
    going = [stream for stream in streams if not stream.task.done()]
    for stream in going:
        stream.moved.clear()
    await asyncio.gather(*(stream.moved.wait() for stream in going))


async def test_every_format_is_offered_and_holds_as_many_tokens_as_its_layout_says(
    client: httpx.AsyncClient,
) -> None:
    assert set(OWN) | {"auto"} <= set(
        (await runtime(client))["envelope"]["kv_cache_dtype"]["values"]
    )
    for dtype in OWN:
        answer = await switch(client, dtype)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["effective"]["kv_cache_dtype"] == dtype
        page = layout_of(dtype).page(BLOCK_SIZE, HEAD_SIZE)
        capacity = document["capacity"]
        assert capacity["bytes_per_token"] == LAYERS * KV_HEADS * page.bytes_per_token
        assert capacity["kv_cache_bytes"] <= KV_BYTES
        blocks = KV_BYTES // (LAYERS * page.block_bytes(KV_HEADS))
        assert capacity["blocks"] == blocks
        assert capacity["kv_cache_tokens"] == pytest.approx(blocks * BLOCK_SIZE, abs=BLOCK_SIZE)
    assert (await switch(client, "auto")).json()["effective"]["kv_cache_dtype"] == "bfloat16"


async def test_formats_switch_while_requests_stream_and_none_is_lost(
    engine: Any, client: httpx.AsyncClient
) -> None:
    fresh = await score(client)
    scores = {}
    streams = begin(client, TOKENS)
    await all_move(streams)
    offered = (await runtime(client))["envelope"]["kv_cache_dtype"]["values"]
    # Another format takes its place for the processor's reasons only.
    fp8 = KVCacheDType.FP8_E4M3
    lacks_fp8 = why_not(fp8, "CPU", "0.32.0", this_machine(), "bfloat16")
    assert (fp8 in offered) == (lacks_fp8 is None)
    print(f"fp8_e4m3: {lacks_fp8 or 'to be had'}")  # noqa: T201
    for dtype in ("int4", "int8" if lacks_fp8 else "fp8_e4m3", "int2", "auto"):
        began = time.monotonic()
        answer = await switch(client, dtype)
        print(f"switch to {dtype}: {time.monotonic() - began:.2f} s")  # noqa: T201
        assert answer.status_code == 200, answer.text
        await all_move(streams)
        assert not all(stream.task.done() for stream in streams)
    assert [TOKENS] * STREAMS == [await stream.task for stream in streams]
    gaps = [b - a for stream in streams for a, b in zip(stream.at, stream.at[1:], strict=False)]
    print(f"longest gap between tokens: {max(gaps):.2f} s")  # noqa: T201
    assert await score(client) == pytest.approx(fresh, abs=1e-3)

    for dtype in ("int8", "int2", "auto"):
        await switch(client, dtype)
        scores[dtype] = await score(client)
    assert scores["auto"] == pytest.approx(fresh, abs=1e-3)
    # Random weights hardly look at the past, but two bits must show.
    assert 0 < abs(scores["int8"] - fresh) < abs(scores["int2"] - fresh)
    metrics = await asyncio.to_thread(engine.metrics)
    assert metrics["kvserving:kv_cache_info"] == 1
    counters = (await runtime(client))["counters"]
    assert counters["switches"] >= 7
    assert counters["switch_seconds"] > 0
    # Neither a switch nor a request waits for a compiler.
    assert counters["jit_compiles"] == 0
    metrics = await asyncio.to_thread(engine.metrics)
    assert metrics["kvserving:switches_total"] == counters["switches"]


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("reset", marks=FULL),
        pytest.param("drop", marks=FULL),
        pytest.param("backend", marks=FULL),
        "allocate",
        pytest.param("plan", marks=FULL),
        "manager",
        pytest.param("adopt", marks=FULL),
        pytest.param("restore", marks=FULL),
    ],
)
async def test_a_fault_at_any_step_puts_the_old_format_back(
    client: httpx.AsyncClient, fault: Any, step: str
) -> None:
    await switch(client, "int8")
    before, fresh = await runtime(client), await score(client)
    undisturbed = await answers(begin(client, 120))
    streams = begin(client, 120)
    await all_move(streams)
    fault.at(step)
    answer = await switch(client, "int4")
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert f"fault at {step}" in message
    assert "int8 is in force again" in message
    assert not fault.is_pending
    found = await answers(streams)
    assert [120] * STREAMS == list(map(len, found))
    moved, allowed = difference(found, undisturbed), await tolerance(client)
    print(f"moved by {moved}, allowed {allowed}")  # noqa: T201
    assert moved < allowed
    after = await runtime(client)
    assert (before["effective"], before["capacity"]) == (after["effective"], after["capacity"])
    assert await score(client) == pytest.approx(fresh, abs=1e-3)
    assert (await switch(client, "auto")).status_code == 200


async def answers(streams: list[Stream]) -> list[Answer]:
    """What streams got, when they have ended."""
    await asyncio.gather(*(stream.task for stream in streams))
    return [stream.answer for stream in streams]


async def complete(client: httpx.AsyncClient, seed: int, behind: Sequence[int] = ()) -> Answer:
    """An answer to a prompt, which may have other tokens in its first places."""
    prompt = [token + seed for token in PROMPT[: 100 + 20 * seed]]
    body = {
        "model": MODEL, "prompt": [*behind, *prompt[len(behind) :]], "max_tokens": 40,
        "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 0,
    }  # fmt: skip
    return answer_of((await client.post("/v1/completions", json=body)).json()["choices"][0])


async def tolerance(client: httpx.AsyncClient) -> float:
    """How far sums in another order may move an answer, measured by what one wrong block does."""
    wrong = await complete(client, 0, behind=PROMPT[200 : 200 + BLOCK_SIZE])
    mistaken = difference([wrong], [await complete(client, 0)])
    assert mistaken > 0
    return mistaken / 3


async def test_requests_are_alike_alone_and_in_company_in_every_format(
    client: httpx.AsyncClient,
) -> None:
    for dtype in ("int8", "int4_hadamard"):
        await switch(client, dtype)
        allowed = await tolerance(client)
        alone = [await complete(client, seed) for seed in range(6)]
        together = await asyncio.gather(*(complete(client, seed) for seed in range(6)))
        moved = difference(together, alone)
        print(f"{dtype}: moved by {moved}, allowed {allowed}")  # noqa: T201
        assert moved < allowed
    await switch(client, "auto")


@pytest.mark.full
async def test_back_in_its_first_format_an_engine_scores_as_one_that_was_never_switched(
    start_engine: StartEngine, shared_flags: tuple[str, ...], client: httpx.AsyncClient
) -> None:
    for dtype in ("int4", "int2", "auto"):
        assert (await switch(client, dtype)).status_code == 200
    with start_engine(*shared_flags) as fresh:
        async with httpx.AsyncClient(
            base_url=fresh.url, headers=fresh.headers, timeout=600
        ) as other:
            assert (await runtime(other))["counters"]["switches"] == 0
            assert await score(client) == pytest.approx(await score(other), abs=1e-3)


@pytest.mark.full
async def test_an_engine_that_fails_in_its_first_step_after_a_switch_ends(
    start_engine: StartEngine, shared_flags: tuple[str, ...], own_fault: Any
) -> None:
    with start_engine(*shared_flags, **own_fault.variables) as engine:
        async with httpx.AsyncClient(
            base_url=engine.url, headers=engine.headers, timeout=900
        ) as client:
            streams = begin(client, TOKENS)
            await all_move(streams)
            own_fault.at("serve")
            answer = await switch(client, "int4")
            # The switch itself succeeds; whether its answer comes before the end is chance.
            assert answer.status_code in {200, 503}
            ended = await asyncio.gather(
                *(stream.task for stream in streams), return_exceptions=True
            )
            assert not own_fault.is_pending
            # No request gets an answer that looks whole.
            assert [end for end in ended if end == TOKENS] == []
            assert await asyncio.to_thread(engine.process.wait, 300) is not None


@pytest.mark.full
async def test_a_format_may_be_set_at_start(
    start_engine: StartEngine, shared_flags: tuple[str, ...], client: httpx.AsyncClient
) -> None:
    await switch(client, "int4")
    switched = await score(client)
    setting = json.dumps({"kvserving": {"kv_cache_dtype": "int4"}})
    with start_engine(*shared_flags, "--additional-config", setting) as other:
        async with httpx.AsyncClient(
            base_url=other.url, headers=other.headers, timeout=600
        ) as second:
            document = await runtime(second)
            assert document["effective"]["kv_cache_dtype"] == "int4"
            assert document["capacity"] == (await runtime(client))["capacity"]
            assert await score(second) == pytest.approx(switched, abs=1e-3)
            # Back to a format that this process never had.
            assert (await switch(second, "auto")).status_code == 200
            await switch(client, "auto")
            assert await score(second) == pytest.approx(await score(client), abs=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kv-cache-dtype", "bfloat16"), "expected only one of them"),
        (("--block-size", "16"), "block size: int4 expects a multiple of 16 of at least 32"),
    ],
)
def test_a_format_that_cannot_be_had_is_refused_at_start(
    engine_python: str,
    tiny_model: Path,
    engine_environment: dict[str, str],
    flags: tuple[str, ...],
    message: str,
    shared_flags: tuple[str, ...],
) -> None:
    setting = json.dumps({"kvserving": {"kv_cache_dtype": "int4"}})
    command = [
        engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model),
        "--port", "0", "--enforce-eager", *shared_flags, "--additional-config", setting, *flags,
    ]  # fmt: skip
    run = subprocess.run(
        command, env=engine_environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode != 0
    assert message in (run.stdout + run.stderr).strip().splitlines()[-1]


@pytest.mark.full
async def test_of_two_ranks_both_have_the_old_format_again(
    start_engine: StartEngine, shared_flags: tuple[str, ...], own_fault: Any
) -> None:
    flags = (*shared_flags, "--tensor-parallel-size", "2")
    # Else vLLM wants a NUMA node for each rank.
    variables = {**own_fault.variables, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with start_engine(*flags, **variables) as engine:
        async with httpx.AsyncClient(
            base_url=engine.url, headers=engine.headers, timeout=900
        ) as client:
            assert (await switch(client, "int8")).status_code == 200
            before, fresh = await runtime(client), await score(client)
            for rank in (0, 1):
                for step in ("backend", "allocate"):
                    own_fault.at(step, rank=rank)
                    answer = await switch(client, "int4")
                    assert answer.status_code == 500, answer.text
                    message = answer.json()["error"]["message"]
                    assert f"rank {rank} of 2: MemoryError: fault at {step}" in message
                    assert "int8 is in force again" in message
                    assert not own_fault.is_pending
                    # Each answer is one to what was asked.
                    after = await runtime(client)
                    assert after["effective"] == before["effective"]
                    assert after["capacity"] == before["capacity"]
                    assert await score(client) == pytest.approx(fresh, abs=1e-3)
            assert (await switch(client, "int4")).status_code == 200
            assert (await switch(client, "int8")).status_code == 200
            assert await score(client) == pytest.approx(fresh, abs=1e-3)


# The last one: the shared engine is gone afterwards.
async def test_an_engine_that_lost_its_cache_ends_instead_of_answering(
    engine: Any, client: httpx.AsyncClient, fault: Any
) -> None:
    fault.at("allocate", times=2)
    document = {"kv_cache_dtype": "int4", "change_id": "lost"}
    answer = await client.patch(RUNTIME, json=document)
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert "cannot be restored" in message
    assert "in force" not in message
    assert await asyncio.to_thread(engine.process.wait, 300) is not None
