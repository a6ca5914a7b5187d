"""StreamingLLM in a real engine: memory by the formula, tokens by a reference, live changes."""

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import runtime
from kvserving_kernels.eviction import StreamingLLM

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "eviction" / "in_process.py"
RUNTIME = "/kvserving/v1/runtime"
MODEL = "tiny"
EXACT = 1e-4
"""Largest difference, in nats, that docs/eviction.md tells of."""
StartEngine = Callable[..., AbstractContextManager[Any]]

# As in the program.
BLOCK_SIZE, BUDGET, LENGTH, SEQUENCES = 32, 256, 2048, 16
POLICY = StreamingLLM(40, 100)
NEW_TOKENS = 60

EVICTION = {"policy": "StreamingLLM", "sink_tokens": 64, "window_tokens": 128}
NONE = {"policy": "None"}
PROMPT = [(7 * place * place + 3 * place) % 900 + 5 for place in range(700)]
STREAMED = 600
"""Tokens per stream: enough for requests to outlast the changes on a fast machine."""
FLAGS = (
    "--max-model-len", "2048", "--max-num-seqs", "24", "--max-num-batched-tokens", "512",
    # All streams fit without eviction too, so that none has to wait for another's end.
    "--kv-cache-memory-bytes", str(32 * 1024 * 1024), "--block-size", "64",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(
    engine_python: str, tiny_model: Path, engine_environment: dict[str, str]
) -> dict[str, Any]:
    """What the program found."""
    ran = subprocess.run(
        [engine_python, str(PROGRAM), str(tiny_model)],
        env=engine_environment, capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    sys.stderr.write(ran.stderr[-4000:])
    assert ran.returncode == 0
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def differences(run: dict[str, Any], references: list[dict[str, Any]]) -> list[float]:
    """Of a run's log-probabilities from the last ones of a reference."""
    pairs = zip(run["logprobs"], references, strict=True)
    return [
        abs(a - b)
        for logprobs, reference in pairs
        for a, b in zip(logprobs, reference["logprobs"][-len(logprobs) :], strict=True)
    ]


def worst(run: dict[str, Any], references: list[dict[str, Any]]) -> float:
    """Largest difference."""
    return max(differences(run, references))


def mean_in_prompts(run: dict[str, Any], references: list[dict[str, Any]]) -> float:
    """Mean difference over the prompts, which are the same whatever is generated."""
    found: list[float] = [
        abs(a - b)
        for logprobs, reference in zip(run["logprobs"], references, strict=True)
        for a, b in zip(logprobs[:-NEW_TOKENS], reference["logprobs"][:-NEW_TOKENS], strict=True)
    ]
    return sum(found) / len(found)


def test_tokens_are_those_of_a_model_with_the_same_mask(found: dict[str, Any]) -> None:
    masked, whole = found["evicting_masked"], found["evicting_whole"]
    for tokens, reference in zip(found["evicting"]["tokens"], masked, strict=True):
        assert reference["greedy"][-NEW_TOKENS - 1 : -1] == tokens
    assert worst(found["evicting"], masked) < EXACT
    # The mask matters: without it the same tokens score otherwise.
    assert worst(found["evicting"], whole) > 1e-2


def test_blocks_at_the_peak_are_those_of_the_formula(found: dict[str, Any]) -> None:
    lengths = [len(prompt) + NEW_TOKENS for prompt in found["prompts"]]
    peaks = found["evicting"]["peaks"]
    bounds = [POLICY.peak_blocks(length, BUDGET, BLOCK_SIZE) for length in lengths]
    assert all(peak <= bound for peak, bound in zip(peaks, bounds, strict=True))
    # Alone, steps are as long as they may be, and the bound is nearly reached.
    [alone] = found["alone"]["peaks"]
    steps = [(256 * step, 256) for step in range(2)] + [(512, 188)]
    steps += [(700 + new, 1) for new in range(NEW_TOKENS - 1)]
    assert alone == max(POLICY.held_blocks(*step, BLOCK_SIZE) for step in steps)
    small = found["small_steps"]["peaks"]
    bounds = [POLICY.peak_blocks(length, 50, BLOCK_SIZE) for length in lengths]
    assert all(peak <= bound for peak, bound in zip(small, bounds, strict=True))
    assert found["none"]["peaks"] == [-(-(length - 1) // BLOCK_SIZE) for length in lengths]


def test_free_blocks_rise(found: dict[str, Any]) -> None:
    assert found["small_steps"]["free"] > found["evicting"]["free"] >= found["none"]["free"]
    assert found["none"]["evicted"] == 0
    kept = [
        sum(map(len, POLICY.kept_blocks(len(prompt) + NEW_TOKENS - 2, BLOCK_SIZE)))
        for prompt in found["prompts"]
    ]
    whole = [-(-(len(prompt) + NEW_TOKENS - 1) // BLOCK_SIZE) for prompt in found["prompts"]]
    assert found["evicting"]["evicted"] == pytest.approx(sum(whole) - sum(kept), abs=len(kept))


def test_the_length_of_steps_changes_nothing(found: dict[str, Any]) -> None:
    assert found["small_steps"]["tokens"] == found["evicting"]["tokens"]
    assert worst(found["small_steps"], found["evicting_masked"]) < EXACT


def test_a_prefix_hit_computes_what_a_cold_run_computed(found: dict[str, Any]) -> None:
    assert found["hit"]["tokens"] == found["evicting"]["tokens"]
    assert worst(found["hit"], found["evicting_masked"]) < EXACT
    assert all(cached > 0 for cached in found["hit"]["cached"])
    # The second turn of a conversation whose middle was freed.
    assert found["grown"]["cached"][0] >= 1000
    assert worst(found["grown"], found["grown_masked"]) < EXACT
    assert worst(found["grown"], found["grown_whole"]) > 1e-2
    assert found["grown_again"]["tokens"] == found["grown"]["tokens"]
    assert found["grown_again"]["cached"][0] > found["grown"]["cached"][0]


def test_admission_goes_by_the_recycled_size(found: dict[str, Any]) -> None:
    whole, evicting = found["none_crowd"], found["crowd"]
    blocks = found["none_document"]["capacity"]["blocks"]
    assert whole["running"] <= blocks // -(-1000 // BLOCK_SIZE)
    assert evicting["running"] == SEQUENCES
    assert evicting["preempted"] == 0


def test_the_capacity_that_the_engine_reports_follows(found: dict[str, Any]) -> None:
    before, after = (found[name]["capacity"] for name in ("none_document", "document"))
    assert before["blocks"] == after["blocks"]
    assert before["max_concurrency"] == pytest.approx(before["blocks"] * BLOCK_SIZE / LENGTH)
    peak = POLICY.peak_blocks(LENGTH, BUDGET, BLOCK_SIZE)
    assert after["max_concurrency"] == pytest.approx(after["blocks"] / peak, abs=1e-3)
    assert found["document"]["effective"]["eviction"] == POLICY.to_json()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_formats_evict_alike(found: dict[str, Any], dtype: str) -> None:
    run, whole = found[dtype], found[f"{dtype}_none"]
    assert run["peaks"] == found["evicting"]["peaks"]
    assert whole["evicted"] == 0
    assert found[f"{dtype}_whole_context"]["kv_cache_dtype"] == dtype
    assert found[f"{dtype}_whole_context"]["eviction"] == NONE
    masked, unmasked = (found[f"evicting_{mask}"] for mask in ("masked", "whole"))
    # Of four bits, with random weights, the codes themselves are most of the difference.
    share = {"int8": 0.3, "int4": 0.8}[dtype]
    assert mean_in_prompts(run, masked) < share * mean_in_prompts(run, unmasked)


def test_without_eviction_everything_is_as_before(found: dict[str, Any]) -> None:
    assert found["none_again"]["tokens"] == found["none"]["tokens"]
    assert found["none_again"]["peaks"] == found["none"]["peaks"]


@pytest.fixture(scope="module")
def engine(shared_engine: Any) -> Iterator[Any]:
    """The shared engine with eviction."""
    patiently(shared_engine, eviction=EVICTION)
    yield shared_engine
    patiently(shared_engine, eviction=NONE, kv_cache_dtype="auto")


def patiently(engine: Any, **values: object) -> None:
    """Change settings from outside of any test's event loop."""

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=engine.url, headers=engine.headers, timeout=600
        ) as client:
            return await change(client, **values)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asyncio.run, ask()).result()
    assert answer.status_code == 200, answer.text


async def change(client: httpx.AsyncClient, **values: object) -> httpx.Response:
    document = {**values, "change_id": f"change-{time.monotonic_ns()}"}
    return await runtime.change(client, document)


async def score(client: httpx.AsyncClient) -> float:
    """Log-probability of a long prompt."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 0}
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    rows = zip(choice["prompt_logprobs"][1:], PROMPT[1:], strict=True)
    return math.fsum(row[str(token)]["logprob"] for row, token in rows)


async def stream(client: httpx.AsyncClient, seed: int, moved: list[int]) -> int:
    """Stream a request and count its tokens, also while they come."""
    body = {
        "model": MODEL, "prompt": [5 + (seed * 31 + place) % 900 for place in range(400)],
        "max_tokens": STREAMED, "temperature": 0, "ignore_eos": True, "stream": True,
        "return_token_ids": True,
    }  # fmt: skip
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                moved[seed] += len(json.loads(line[6:])["choices"][0]["token_ids"] or ())
    return moved[seed]


@pytest.mark.full
def test_an_engine_may_start_with_eviction(start_engine: StartEngine) -> None:
    setting = json.dumps({"kvserving": {"eviction": EVICTION}})
    with start_engine(*FLAGS, "--additional-config", setting) as engine:
        document = httpx.get(engine.url + RUNTIME, headers=engine.headers, timeout=60).json()
    assert document["effective"]["eviction"] == EVICTION
    assert document["effective"]["kv_cache_dtype"] == "bfloat16"
    assert document["envelope"]["eviction"] == {
        "values": ["None", "StreamingLLM"],
        "sink_tokens": {"minimum": 0, "maximum": 2048, "default": 4},
        "window_tokens": {"minimum": 64, "maximum": 2048},
    }
    peak = StreamingLLM(64, 128).peak_blocks(2048, 512, 64)
    assert document["capacity"]["max_concurrency"] == pytest.approx(
        document["capacity"]["blocks"] / peak, abs=1e-3
    )


async def test_eviction_changes_while_requests_stream_and_none_is_lost(
    engine: Any, client: httpx.AsyncClient
) -> None:
    evicting = await score(client)
    moved = [0] * 16
    streams = [asyncio.create_task(stream(client, seed, moved)) for seed in range(16)]
    scores: dict[str, float] = {}
    capacity = {}
    for name, values in (
        ("none", {"eviction": NONE}),
        ("int8", {"kv_cache_dtype": "int8", "eviction": {**EVICTION, "window_tokens": 256}}),
        ("again", {"kv_cache_dtype": "auto", "eviction": EVICTION}),
    ):
        before = list(moved)
        while not all(now > then for now, then in zip(moved, before, strict=True)):
            assert not any(one.done() for one in streams)
            await asyncio.sleep(0.05)
        answer = await change(client, **values)
        assert answer.status_code == 200, answer.text
        assert answer.json()["effective"]["eviction"] == values["eviction"]
        capacity[name] = answer.json()["capacity"]
        scores[name] = await score(client)
        assert not all(one.done() for one in streams)
    assert await asyncio.gather(*streams) == [STREAMED] * 16
    assert scores["again"] == pytest.approx(evicting, abs=1e-2)
    assert abs(scores["none"] - evicting) > 0.1
    assert capacity["none"]["max_concurrency"] < capacity["again"]["max_concurrency"]
    assert capacity["none"]["blocks"] == capacity["again"]["blocks"] < capacity["int8"]["blocks"]


async def test_a_probe_keeps_every_token(client: httpx.AsyncClient) -> None:
    await change(client, eviction=NONE)
    whole = await score(client)
    await change(client, eviction=EVICTION)
    evicting = await score(client)
    document = {"token_ids": PROMPT, "form": "prefill"}
    for _ in range(2):
        answer = await client.post("/kvserving/v1/probe", json=document)
        assert answer.status_code == 200, answer.text
        probed = math.fsum(answer.json()["logprobs"][1:])
        assert abs(probed - whole) < 0.2 * abs(evicting - whole)
        # Users' requests are evicted from as before.
        assert await score(client) == pytest.approx(evicting, abs=1e-2)


async def test_metrics_tell_policy_and_freed_blocks(engine: Any, client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    assert (
        'kvserving:kv_cache_info{block_size="64",dtype="bfloat16",eviction="StreamingLLM"}' in text
    )

    async def freed_blocks() -> int:
        counters = (await client.get(RUNTIME)).json()["counters"]
        return int(counters["evicted_blocks"])

    before = await freed_blocks()
    await stream(client, 0, [0])
    freed = await freed_blocks()
    assert freed > before
    assert engine.metrics()["kvserving:evicted_blocks_total"] == freed


async def test_a_fault_puts_format_and_eviction_back(client: httpx.AsyncClient, fault: Any) -> None:
    before = (await client.get(RUNTIME)).json()
    fresh = await score(client)
    fault.at("manager")
    answer = await change(client, kv_cache_dtype="int8", eviction=NONE, max_active_seqs=3)
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert "bfloat16, StreamingLLM with 64 sinks and a window of 128 is in force again" in message
    after = (await client.get(RUNTIME)).json()
    assert (after["effective"], after["capacity"]) == (before["effective"], before["capacity"])
    assert await score(client) == pytest.approx(fresh, abs=1e-2)


@pytest.mark.parametrize(
    ("eviction", "field"),
    [
        ({"policy": "H2O", "budget_percent": 20}, "eviction.policy"),
        ({"policy": "StreamingLLM", "window_tokens": 63}, "eviction.window_tokens"),
        ({"policy": "StreamingLLM", "window_tokens": 4096}, "eviction.window_tokens"),
        ({"policy": "None", "sink_tokens": 4}, "eviction.sink_tokens"),
    ],
)
async def test_a_wrong_eviction_changes_nothing(
    client: httpx.AsyncClient, eviction: dict[str, Any], field: str
) -> None:
    before = (await client.get(RUNTIME)).json()
    answer = await change(client, eviction=eviction, kv_cache_dtype="int8")
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    assert (await client.get(RUNTIME)).json()["effective"] == before["effective"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("eviction", "flags", "message"),
    [
        (
            EVICTION,
            ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'),
            "StreamingLLM: speculative decoding is not supported: leave out --speculative-config",
        ),
        (
            {**EVICTION, "window_tokens": 32},
            (),
            "kvserving.eviction.window_tokens: expected an integer from 64 to 2048, got 32",
        ),
    ],
)
def test_an_eviction_that_cannot_be_had_is_refused_at_start(
    engine_python: str,
    tiny_model: Path,
    engine_environment: dict[str, str],
    eviction: dict[str, Any],
    flags: tuple[str, ...],
    message: str,
) -> None:
    setting = json.dumps({"kvserving": {"eviction": eviction}})
    command = [
        engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model),
        "--port", "0", "--enforce-eager", *FLAGS, "--additional-config", setting, *flags,
    ]  # fmt: skip
    run = subprocess.run(
        command, env=engine_environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode != 0
    assert message in (run.stdout + run.stderr).strip().splitlines()[-1]
