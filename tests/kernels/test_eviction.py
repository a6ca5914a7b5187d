"""Arithmetic of StreamingLLM and reading of eviction settings."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_kernels.errors import InvalidChangeError
from kvserving_kernels.eviction import NO_EVICTION, EvictionBounds, StreamingLLM, read_eviction
from kvserving_kernels.eviction.streaming_llm import smallest_window_tokens

POLICIES = st.builds(StreamingLLM, st.integers(0, 200), st.integers(1, 400))
BLOCK_SIZES = st.sampled_from([1, 4, 16, 32, 64])
STEPS = st.lists(st.integers(1, 300), min_size=1, max_size=12)
BOUNDS = EvictionBounds.of_engine(block_size=32, max_model_len=2048)


def visible(policy: StreamingLLM, position: int, block_size: int) -> set[int]:
    """Blocks that hold a token which the one at `position` must see, by the tokens themselves."""
    sinks = range(min(policy.sink_tokens, position + 1))
    window = range(max(0, position + 1 - policy.window_tokens), position + 1)
    return {token // block_size for token in (*sinks, *window)}


def shown(policy: StreamingLLM, position: int, block_size: int) -> set[int]:
    """Blocks that the policy shows the token at `position`."""
    first = policy.first_window_block(position, block_size)
    last = position // block_size
    return {*range(min(policy.sink_blocks(block_size), last + 1)), *range(first, last + 1)}


@given(POLICIES, BLOCK_SIZES, st.integers(0, 2000))
def test_a_token_sees_the_blocks_of_its_sinks_and_window_and_no_others(
    policy: StreamingLLM, block_size: int, position: int
) -> None:
    found = shown(policy, position, block_size)
    assert found == visible(policy, position, block_size)
    tokens = sum(min(block_size, position + 1 - block * block_size) for block in found)
    assert tokens <= policy.visible_tokens(block_size)
    assert tokens >= min(position + 1, policy.window_tokens)


@given(POLICIES, BLOCK_SIZES, STEPS)
def test_no_step_reads_what_was_freed_and_none_holds_more_than_the_formula(
    policy: StreamingLLM, block_size: int, steps: list[int]
) -> None:
    held: set[int] = set()
    freed: set[int] = set()
    computed, peak = 0, 0
    for new in steps:
        sinks, window = policy.kept_blocks(computed, block_size)
        freed |= held - {*sinks, *window}
        blocks = -(-(computed + new) // block_size)
        held = {*range(blocks)} - freed
        assert len(held) == policy.held_blocks(computed, new, block_size)
        for position in range(computed, computed + new):
            assert shown(policy, position, block_size) <= held
        computed += new
        peak = max(peak, len(held))
    assert peak <= policy.peak_blocks(computed, max(steps), block_size)


@given(POLICIES, BLOCK_SIZES, st.integers(1, 100))
def test_the_formula_of_the_peak_is_reached(
    policy: StreamingLLM, block_size: int, step: int
) -> None:
    long = policy.sink_tokens + policy.window_tokens + step + 4 * block_size
    # Steps of any length may begin anywhere in a block.
    reached = max(
        policy.held_blocks(computed, step, block_size)
        for computed in range(long, long + block_size)
    )
    assert reached == policy.peak_blocks(10 * long, step, block_size)


@given(POLICIES, BLOCK_SIZES, st.integers(0, 60))
def test_a_cached_prefix_needs_so_many_blocks_before_its_end(
    policy: StreamingLLM, block_size: int, blocks: int
) -> None:
    _, window = policy.kept_blocks(blocks * block_size, block_size)
    sinks = policy.sink_blocks(block_size)
    assert len(window) == max(0, min(policy.hit_blocks(block_size), blocks - sinks))


@given(POLICIES, BLOCK_SIZES, st.integers(1, 2000), st.integers(1, 300))
def test_a_window_as_long_as_the_context_frees_nothing(
    policy: StreamingLLM, block_size: int, length: int, step: int
) -> None:
    whole = StreamingLLM(policy.sink_tokens, length)
    assert all(
        len(whole.kept_blocks(n, block_size)[0]) + len(whole.kept_blocks(n, block_size)[1])
        == -(-n // block_size)
        for n in range(0, length, 37)
    )
    assert whole.peak_blocks(length, step, block_size) == -(-length // block_size)


@pytest.mark.parametrize(
    ("under_way", "blocks", "where"), [(512, 26, "on a CPU"), (1024, 34, "on a\nGPU")]
)
def test_the_page_counts_the_blocks_of_its_example(under_way: int, blocks: int, where: str) -> None:
    assert StreamingLLM(64, 1024).peak_blocks(32_768, under_way, 64) == blocks
    page = Path(__file__).parents[2] / "docs" / "eviction.md"
    assert f"{blocks} blocks {where}" in page.read_text() or f"{blocks} {where}" in page.read_text()


def test_the_smallest_window_is_one_block() -> None:
    assert smallest_window_tokens(64) == 64
    assert StreamingLLM(4, 64).kept_blocks(10_000, 64) == (range(1), range(155, 157))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"policy": "None"}, NO_EVICTION),
        ({"policy": "StreamingLLM", "window_tokens": 32}, StreamingLLM(4, 32)),
        (
            {"policy": "StreamingLLM", "sink_tokens": 0, "window_tokens": 2048},
            StreamingLLM(0, 2048),
        ),
    ],
)
def test_a_setting_is_read_and_written_alike(document: dict[str, Any], expected: object) -> None:
    found = read_eviction("eviction", document, BOUNDS, InvalidChangeError)
    assert found == expected
    assert read_eviction("eviction", found.to_json(), BOUNDS, InvalidChangeError) == found


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        (None, "eviction", "object"),
        ("StreamingLLM", "eviction", "object"),
        ({}, "eviction.policy", "None, StreamingLLM"),
        ({"policy": None}, "eviction.policy", "None, StreamingLLM"),
        ({"policy": ["None"]}, "eviction.policy", "None, StreamingLLM"),
        ({"policy": "H2O", "budget_percent": 20}, "eviction.policy", "not available"),
        ({"policy": "SnapKV"}, "eviction.policy", "not available"),
        ({"policy": "streamingllm", "window_tokens": 64}, "eviction.policy", "StreamingLLM"),
        ({"policy": "None", "window_tokens": 64}, "eviction.window_tokens", "no field but policy"),
        ({"policy": "StreamingLLM"}, "eviction.window_tokens", "from 32 to 2048"),
        ({"policy": "StreamingLLM", "window_tokens": 31}, "eviction.window_tokens", "from 32"),
        ({"policy": "StreamingLLM", "window_tokens": 2049}, "eviction.window_tokens", "2048"),
        ({"policy": "StreamingLLM", "window_tokens": True}, "eviction.window_tokens", "true"),
        ({"policy": "StreamingLLM", "window_tokens": 64.0}, "eviction.window_tokens", "64.0"),
        (
            {"policy": "StreamingLLM", "window_tokens": 64, "sink_tokens": -1},
            "eviction.sink_tokens",
            "from 0",
        ),
        (
            {"policy": "StreamingLLM", "window_tokens": 64, "budget_percent": 5},
            "eviction.budget_percent",
            "no field but",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_work(
    document: object, field: str, words: str
) -> None:
    with pytest.raises(InvalidChangeError) as refused:
        read_eviction("eviction", document, BOUNDS, InvalidChangeError)
    assert refused.value.field == field
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"{field}: expected ")


def test_the_docs_promise_what_the_engines_tests_ask_for() -> None:
    root = Path(__file__).parents[2]
    [promised] = re.findall(r"to within ([\d.]+\d)", (root / "docs/eviction.md").read_text())
    tests = (root / "tests/kernels/test_engine_eviction.py").read_text()
    [asked] = re.findall(r"^EXACT = (\S+)$", tests, re.MULTILINE)
    assert float(promised) == float(asked)
    # Every comparison that is meant goes by it.
    compared = re.findall(r"assert worst\(.*\) < (\S+)", tests)
    assert compared
    assert set(compared) == {"EXACT"}
