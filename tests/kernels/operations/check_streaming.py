"""The manager of an evicting cache finds the longest prefix that a request can go on from."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvserving_kernels.plugin.adapters.v0_32.streaming import StreamingManager, StreamingSpec

NULL = object()


def spec(size: int, sinks: int, window: int, step: int = 64) -> StreamingSpec:
    """A spec of small pages."""
    return StreamingSpec(
        block_size=size,
        num_kv_heads=2,
        head_size=32,
        dtype=torch.bfloat16,
        sink_tokens=sinks,
        window_tokens=window,
        step_tokens=step,
    )


class Pool:
    """A pool in which blocks with some indices are cached."""

    hash_block_size: int
    null_block = NULL

    def __init__(self, size: int, cached: set[int]) -> None:
        self.hash_block_size = size
        self._cached = cached

    def get_cached_block(self, block_hash: int, groups: list[int]) -> list[str] | None:
        """Hashes are indices here."""
        return [f"block {block_hash}" for _ in groups] if block_hash in self._cached else None


def longest(policy: Any, size: int, cached: set[int], most: int) -> int:
    """Length in blocks, by trying each."""
    fits = [
        blocks
        for blocks in range(most + 1)
        if all(set(part) <= cached for part in policy.kept_blocks(blocks * size, size))
    ]
    return max(fits)


@pytest.mark.parametrize("seed", range(150))
def test_a_hit_supplies_sinks_and_window_and_is_the_longest(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice((4, 16))
    made = spec(size, chance.randrange(0, 4 * size), chance.randrange(size, 5 * size))
    blocks = chance.randrange(0, 20)
    density = chance.choice((0.5, 0.8, 0.95, 1.0))
    cached = {index for index in range(blocks) if chance.random() < density}
    length = blocks * size + chance.randrange(size)

    rows, hit = StreamingManager.find_longest_cache_hit(
        range(blocks), length, [0], Pool(size, cached), made, False, size
    )
    assert hit == size * longest(made.policy, size, cached, blocks)
    [row] = rows
    assert len(row) * size == hit
    needed = {index for part in made.policy.kept_blocks(hit, size) for index in part}
    for index, block in enumerate(row):
        assert block == f"block {index}" if index in needed else block is NULL or index in cached


def test_layers_of_one_group_are_merged_or_refused() -> None:
    assert StreamingSpec.merge([spec(16, 4, 64), spec(16, 4, 64)]) == spec(16, 4, 64)
    with pytest.raises(ValueError, match="differ in their eviction"):
        StreamingSpec.merge([spec(16, 4, 64), spec(16, 4, 80)])
    whole = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="differ in their eviction"):
        StreamingSpec.merge([spec(16, 4, 64), whole])


@pytest.mark.parametrize(("length", "blocks"), [(10_000, 1 + 8 + 1), (100, 7), (64, 4)])
def test_memory_of_a_request_is_its_peak(length: int, blocks: int) -> None:
    made = spec(16, 4, 64, step=64)
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=length))
    assert made.max_memory_usage_bytes(config) == blocks * made.page_size_bytes
