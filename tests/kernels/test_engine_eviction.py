"""StreamingLLM in a real engine: memory by the formula, tokens by a reference model, live changes."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvserving_kernels.eviction import StreamingLLM

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).parent / "eviction" / "in_process.py"
RUNTIME = "/kvserving/v1/runtime"
MODEL = "tiny"
StartEngine = Callable[..., AbstractContextManager[Any]]

# As in the program.
BLOCK_SIZE, BUDGET, LENGTH, SEQUENCES = 32, 256, 2048, 16
POLICY = StreamingLLM(40, 100)
NEW_TOKENS = 60

EVICTION = {"policy": "StreamingLLM", "sink_tokens": 64, "window_tokens": 128}
NONE = {"policy": "None"}
FLAGS = (
    "--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "512",
    "--kv-cache-memory-bytes", str(16 * 1024 * 1024), "--block-size", "64",
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


def worst(run: dict[str, Any], references: list[dict[str, Any]]) -> float:
    """Largest difference between a run's log-probabilities and a reference's last ones."""
    return max(
        abs(a - b)
        for logprobs, reference in zip(run["logprobs"], references, strict=True)
        for a, b in zip(logprobs, reference["logprobs"][-len(logprobs) :], strict=True)
    )


def mean(run: dict[str, Any], references: list[dict[str, Any]]) -> float:
    """Mean difference likewise."""
    differences = [
        abs(a - b)
        for logprobs, reference in zip(run["logprobs"], references, strict=True)
        for a, b in zip(logprobs, reference["logprobs"][-len(logprobs) :], strict=True)
    ]
    return sum(differences) / len(differences)


def test_tokens_are_those_of_a_model_with_the_same_mask(found: dict[str, Any]) -> None:
    masked, whole = found["evicting_masked"], found["evicting_whole"]
    for tokens, reference in zip(found["evicting"]["tokens"], masked, strict=True):
        assert reference["greedy"][-NEW_TOKENS - 1 : -1] == tokens
    assert worst(found["evicting"], masked) < 1e-4
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
    assert worst(found["small_steps"], found["evicting_masked"]) < 1e-4


def test_a_prefix_hit_computes_what_a_cold_run_computed(found: dict[str, Any]) -> None:
    assert found["hit"]["tokens"] == found["evicting"]["tokens"]
    assert worst(found["hit"], found["evicting_masked"]) < 1e-4
    assert all(cached > 0 for cached in found["hit"]["cached"])
    # The second turn of a conversation whose middle was freed.
    assert found["grown"]["cached"][0] >= 1000
    assert worst(found["grown"], found["grown_masked"]) < 1e-4
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
    assert run["tokens"] == found["evicting"]["tokens"]
    # Of four bits, with random weights, the codes themselves are most of the difference.
    share = {"int8": 0.3, "int4": 0.8}[dtype]
    assert mean(run, found["evicting_masked"]) < share * mean(run, found["evicting_whole"])


def test_without_eviction_everything_is_as_before(found: dict[str, Any]) -> None:
    assert found["none_again"]["tokens"] == found["none"]["tokens"]
    assert found["none_again"]["peaks"] == found["none"]["peaks"]
