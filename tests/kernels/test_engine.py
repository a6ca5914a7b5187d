"""The plugin in a real vLLM server: live changes under load, readiness, refusals at start."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.engine

MODEL = "tiny"
FLAGS = (
    "--max-model-len", "1024", "--max-num-seqs", "64", "--max-num-batched-tokens", "1024",
    "--kv-cache-memory-bytes", str(256 * 1024 * 1024),
)  # fmt: skip
RUNTIME = "/kvserving/v1/runtime"
READY = "/kvserving/v1/ready"
USER_COUNTERS = (
    "vllm:request_success_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
)
StartEngine = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> Iterator[Any]:
    with start_engine(*FLAGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def counted_at_first_ready(engine: Any) -> dict[str, float]:
    """Metrics of an engine that has proven its readiness and served nobody."""
    answer = httpx.get(engine.url + READY, timeout=60)
    assert (answer.status_code, answer.json()["proof"]) == (200, "Completion")
    metrics: dict[str, float] = engine.metrics()
    return metrics


@pytest.fixture
async def client(engine: Any, counted_at_first_ready: dict[str, float]) -> Any:
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(
        base_url=engine.url, headers=engine.headers, timeout=600, limits=limits
    ) as client:
        yield client


async def _complete(client: httpx.AsyncClient, seed: int, tokens: int) -> tuple[int, int]:
    body = {
        "model": MODEL,
        "prompt": [5 + seed % 900] * 20,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = await client.post("/v1/completions", json=body)
    return answer.status_code, answer.json().get("usage", {}).get("completion_tokens", 0)


async def _patch(client: httpx.AsyncClient, value: object, change_id: str) -> httpx.Response:
    return await client.patch(RUNTIME, json={"max_active_seqs": value, "change_id": change_id})


async def _queue(engine: Any) -> tuple[int, int]:
    metrics = await asyncio.to_thread(engine.metrics)
    return int(metrics["vllm:num_requests_running"]), int(metrics["vllm:num_requests_waiting"])


def test_our_own_completion_is_in_no_statistic_of_users(
    counted_at_first_ready: dict[str, float],
) -> None:
    assert counted_at_first_ready["kvserving:ready_completions_total"] == 1
    assert {name: counted_at_first_ready[name] for name in USER_COUNTERS} == dict.fromkeys(
        USER_COUNTERS, 0.0
    )


async def test_the_document_is_the_running_engines(client: httpx.AsyncClient) -> None:
    document = (await client.get(RUNTIME)).json()
    assert document["effective"] == {
        "kv_cache_dtype": "bfloat16",
        "max_active_seqs": 64,
        "max_scheduled_tokens": 1024,
        "eviction": {"policy": "None"},
    }
    envelope = document["envelope"]
    assert envelope["max_active_seqs"] == {"minimum": 1, "maximum": 64}
    assert envelope["max_scheduled_tokens"] == {"minimum": 64, "maximum": 1024}
    assert {"auto", "bfloat16", "int8", "int4"} <= set(envelope["kv_cache_dtype"]["values"])
    # Four layers of two KV heads of 32 elements, keys and values, two bytes each.
    assert document["capacity"]["bytes_per_token"] == 4 * 2 * 32 * 2 * 2
    assert document["capacity"]["kv_cache_bytes"] == 256 * 1024 * 1024
    assert document["capacity"]["kv_cache_tokens"] == 256 * 1024
    assert document["startup"]["max_model_len"] == 1024
    assert document["versions"]["vllm"].startswith("0.32.")


async def test_the_cap_moves_under_load_and_nothing_is_lost(
    engine: Any, client: httpx.AsyncClient
) -> None:
    requests = [asyncio.create_task(_complete(client, seed, 400)) for seed in range(48)]
    while (await _queue(engine))[0] < 48:
        assert not any(request.done() for request in requests)
    assert (await _patch(client, 8, "down")).status_code == 200
    requests += [asyncio.create_task(_complete(client, seed, 200)) for seed in range(48, 80)]
    # Those that run go on; as they end, no more than eight are let in.
    while (await _queue(engine))[0] > 8:
        assert (await client.get(READY)).status_code == 200
    seen = [await _queue(engine) for _ in range(10)]
    while_waiting = [running for running, waiting in seen if waiting > 0]
    assert while_waiting
    assert max(while_waiting) <= 8
    raised = await _patch(client, 64, "up")
    assert raised.json()["effective"]["max_active_seqs"] == 64
    while (await _queue(engine))[0] <= 8:
        assert not all(request.done() for request in requests)
    answers = await asyncio.gather(*requests)
    assert answers == [(200, 400)] * 48 + [(200, 200)] * 32


@pytest.mark.parametrize("authorization", ["", "Bearer wrong"])
async def test_without_the_token_nothing_is_shown(
    client: httpx.AsyncClient, authorization: str
) -> None:
    answer = await client.get(RUNTIME, headers={"Authorization": authorization})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"max_active_seqs": 65, "change_id": "x"}, "max_active_seqs"),
        ({"max_active_seqs": 0, "change_id": "x"}, "max_active_seqs"),
        ({"max_active_seqs": 8}, "change_id"),
        ({"kv_cache_dtype": "nuq4", "max_active_seqs": 8, "change_id": "x"}, "kv_cache_dtype"),
        ({"eviction": {"policy": "StreamingLLM"}, "change_id": "x"}, "eviction.window_tokens"),
        ({"nonsense": 1, "change_id": "x"}, "nonsense"),
    ],
)
async def test_a_wrong_change_names_its_field_and_changes_nothing(
    client: httpx.AsyncClient, document: dict[str, Any], field: str
) -> None:
    before = (await client.get(RUNTIME)).json()
    answer = await client.patch(RUNTIME, json=document)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    assert (await client.get(RUNTIME)).json() == before


async def test_a_repeated_change_is_made_once(client: httpx.AsyncClient) -> None:
    first = (await _patch(client, 32, "once")).json()
    await _patch(client, 64, "after")
    repeated = await _patch(client, 32, "once")
    assert (repeated.status_code, first["effective"]["max_active_seqs"]) == (200, 32)
    assert repeated.json()["effective"]["max_active_seqs"] == 64
    assert repeated.json()["last_change"]["change_id"] == "after"


async def test_of_changes_at_once_one_is_made_and_the_others_are_told_to_wait(
    engine: Any, client: httpx.AsyncClient
) -> None:
    # Under load an answer waits for the step that runs, so that the changes overlap.
    load = [asyncio.create_task(_complete(client, seed, 300)) for seed in range(32)]
    while (await _queue(engine))[0] < 32:
        assert not all(request.done() for request in load)
    answers = await asyncio.gather(*(_patch(client, 40 + i, f"race-{i}") for i in range(8)))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 409}
    await asyncio.gather(*load)
    await _patch(client, 64, "race-over")


async def test_metrics_follow_a_change(engine: Any, client: httpx.AsyncClient) -> None:
    await _patch(client, 12, "metric")
    metrics = await asyncio.to_thread(engine.metrics)
    assert metrics["kvserving:max_active_seqs"] == 12
    assert metrics["kvserving:kv_cache_info"] == 1
    assert metrics["kvserving:changes_total"] >= 1


@pytest.mark.full
async def test_an_engine_that_names_the_plugin_answers_as_one_that_does_not(
    start_engine: StartEngine, client: httpx.AsyncClient
) -> None:
    body = {
        "model": MODEL,
        "prompt": list(range(5, 205)),
        "max_tokens": 48,
        "temperature": 0,
        "logprobs": 1,
    }
    with start_engine(*FLAGS, VLLM_PLUGINS=None) as stock:
        async with httpx.AsyncClient(base_url=stock.url, timeout=600) as other:
            assert (await other.get(RUNTIME, headers=stock.headers)).status_code == 404
            plain = (await other.post("/v1/completions", json=body)).json()["choices"][0]
            names = await asyncio.to_thread(stock.metrics)
    assert not [name for name in names if name.startswith("kvserving:")]
    ours = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    assert ours["text"] == plain["text"]
    assert ours["logprobs"]["token_logprobs"] == plain["logprobs"]["token_logprobs"]


@pytest.mark.full
async def test_one_flag_is_enough_for_a_format(start_engine: StartEngine) -> None:
    setting = json.dumps({"kvserving": {"kv_cache_dtype": "int4"}})
    flags = (*FLAGS, "--block-size", "64")
    body = {"model": MODEL, "prompt": list(range(5, 205)), "max_tokens": 8, "temperature": 0}
    tokens = {}
    for name, more in (("stock", ()), ("int4", ("--additional-config", setting))):
        with start_engine(*flags, *more, VLLM_PLUGINS=None) as engine:
            async with httpx.AsyncClient(base_url=engine.url, timeout=600) as other:
                answer = await other.post("/v1/completions", json=body)
                assert answer.json()["usage"]["completion_tokens"] == 8
                metrics = (await other.get("/metrics")).text
            [blocks] = set(re.findall(r'num_gpu_blocks="(\d+)"', metrics))
            tokens[name] = int(blocks)
    assert tokens["int4"] > 3 * tokens["stock"]


@pytest.mark.parametrize(
    "dtype", ["int8_per_token_head", pytest.param("float16", marks=pytest.mark.full)]
)
def test_a_cache_that_vllm_would_fill_with_the_wrong_bytes_is_refused_at_start(
    engine_python: str, tiny_model: Path, engine_environment: dict[str, str], dtype: str
) -> None:
    command = [
        engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model),
        "--port", "0", "--enforce-eager", "--kv-cache-dtype", dtype, *FLAGS,
    ]  # fmt: skip
    run = subprocess.run(
        command, env=engine_environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode != 0
    last = (run.stdout + run.stderr).strip().splitlines()[-1]
    assert "UnsupportedKVDTypeError: --kv-cache-dtype: " in last
    assert "Supported here: auto, bfloat16" in last


@pytest.mark.parametrize(
    ("flags", "status", "verdict"),
    [
        (FLAGS, 0, {"ok": True, "unchecked": []}),
        (
            (*FLAGS, "--max-numseqs", "3"),
            2,
            {"field": "--max-numseqs", "reason": "UnknownFlag"},
        ),
        pytest.param(
            (*FLAGS, "--quantization", "awq"),
            2,
            {"reason": "EngineRefused"},
            marks=pytest.mark.full,
        ),
    ],
)
def test_preflight_says_what_vllm_says(
    engine_python: str,
    tiny_model: Path,
    engine_environment: dict[str, str],
    flags: tuple[str, ...],
    status: int,
    verdict: dict[str, Any],
) -> None:
    command = [engine_python, "-m", "kvserving_kernels.preflight", "--", str(tiny_model), *flags]
    run = subprocess.run(
        command, env=engine_environment, capture_output=True, text=True, timeout=900, check=False
    )
    lines = run.stdout.splitlines()
    assert (run.returncode, len(lines)) == (status, 1)
    assert verdict.items() <= json.loads(lines[0]).items()


WAITS_WITHOUT_A_MESSAGE = """
import os, sys, time, zmq
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
condition = SpinCondition(is_reader=True, context=zmq.Context(), notify_address="inproc://none")
condition.record_read()
began, used, longest = time.monotonic(), time.process_time(), 0.0
while time.monotonic() - began < 2:
    before = time.monotonic()
    condition.wait(timeout_ms=5000)
    longest = max(longest, time.monotonic() - before)
print((time.process_time() - used) / 2, longest)
"""


def test_on_few_processors_a_process_that_waits_sleeps_but_looks_again(
    engine_python: str, engine_environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [engine_python, "-c", WAITS_WITHOUT_A_MESSAGE, "2"],
        env=engine_environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    share_of_a_processor, longest_seconds = map(float, done.stdout.split()[-2:])
    # Spinning would take a whole one; a lost notification must not cost vLLM's five seconds.
    assert share_of_a_processor < 0.5
    assert longest_seconds < 2


def test_a_hung_core_loses_readiness_and_regains_it(engine: Any) -> None:
    assert _ready(engine).status_code == 200
    pids = engine.core_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        # Tokens count for 30 s; then a completion of its own is waited for.
        answer = _poll(engine, lambda answer: answer.status_code == 503)
        assert "has been waiting for" in answer.json()["reason"]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    _poll(engine, lambda answer: answer.status_code == 200)


def test_a_dead_core_is_not_ready(engine: Any) -> None:
    assert _ready(engine).status_code == 200
    for pid in engine.core_pids():
        os.kill(pid, signal.SIGKILL)
    # The server says so until it has ended itself.
    with suppress(httpx.TransportError):
        answer = _poll(engine, lambda answer: answer.status_code == 503)
        assert answer.json()["reason"] == "the engine core is dead"
    assert engine.process.wait(300) is not None


def _ready(engine: Any) -> httpx.Response:
    return httpx.get(engine.url + READY, timeout=60)


def _poll(engine: Any, wanted: Callable[[httpx.Response], bool]) -> httpx.Response:
    """Ask for readiness until the answer is the wanted one."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        answer = _ready(engine)
        if wanted(answer):
            return answer
        time.sleep(0.2)
    pytest.fail(f"the last answer was {answer.status_code}: {answer.text}")
