"""Batches that Triton's store cuts into segments; test_operations.py runs it.

What `check_store.py` asks of every implementation is not repeated here.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from kernelkit import Cache, random_tokens, tokens_of
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.ops.quantize import new_counters
from kvserving_kernels.ops.registry import Implementation

every_format = pytest.mark.parametrize("dtype", list(LAYOUTS))
TORCH, TRITON = Implementation.TORCH, Implementation.TRITON


@dataclass(frozen=True)
class Part:
    """Tokens of a batch: `count` places of a block from `first` on; padding where block is -1."""

    block: int
    first: int
    count: int


SEGMENTS = (
    # Its slot follows that of the next part's block, but not in one block; both are decode steps.
    Part(2, 31, 1),
    Part(3, 0, 1),
    # From within the anchors over two edges of runs.
    Part(5, 2, 8),
    Part(-1, 0, 2),
    # From within a run to the end of the block, and on in a block that is not the next one.
    Part(0, 21, 11),
    Part(7, 0, 3),
    # Places that go on where those before end, but in another block.
    Part(4, 3, 2),
    Part(6, 5, 1),
    Part(-1, 0, 3),
)


def _stored(
    cache: Cache, parts: Sequence[Part], counters: torch.Tensor | None = None, odd: bool = False
) -> torch.Tensor:
    """Pages after the earlier tokens of each block were stored, by torch, and then the batch."""
    size = cache.page.block_size
    filler = Cache.make("int8", TORCH).operations
    keys, values, slots = [], [], []
    for part in parts:
        key, value = tokens_of(cache, size, part.block + 1)
        if part.block >= 0 and part.first:
            early = torch.arange(part.first) + part.block * size
            filler.store(cache.page, key[: part.first], value[: part.first], cache.pages, early)
        places = torch.arange(part.first, part.first + part.count)
        keys.append(key[places])
        values.append(value[places])
        slots.append(places + part.block * size if part.block >= 0 else torch.full_like(places, -1))
    key, value, slot = torch.cat(keys), torch.cat(values), torch.cat(slots)
    if odd:
        key[0, 0, 3], key[3, 1, 5], value[4, 0, 0] = torch.nan, torch.inf, -torch.inf
        key[5, 0, 7], value[5, 1, 8] = 1e20, -70000
        key[slot < 0], value[slot < 0] = torch.nan, 1e30
    cache.operations.store(cache.page, key, value, cache.pages, slot, counters)
    return cache.pages


@pytest.mark.parametrize("scan", [1, 16])
@every_format
def test_any_mix_of_segments_has_the_bytes_and_counts_of_torch(
    dtype: KVCacheDType, scan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvserving_kernels.ops import triton_store

    monkeypatch.setattr(triton_store, "MANY_TOKENS", 1000 if scan == 1 else 0)
    assert triton_store.tuning(20).scan == scan
    pages, counts = [], []
    for implementation in (TORCH, TRITON):
        counters = new_counters("cpu")
        cache = Cache.make(dtype, implementation, head_size=32, padding_bytes=48)
        pages.append(_stored(cache, SEGMENTS, counters, odd=True))
        counts.append(counters.tolist())
    assert torch.equal(*pages)
    assert counts == [[3, 4], [3, 4]]


@pytest.mark.parametrize(
    ("block_size", "head_size", "parts"),
    [
        (48, 48, (Part(1, 40, 8), Part(0, 5, 9))),
        (64, 96, (Part(1, 63, 1), Part(0, 6, 12))),
        (80, 144, (Part(1, 55, 1), Part(0, 9, 2))),
        (128, 128, (Part(1, 127, 1), Part(0, 30, 20))),
        (144, 32, (Part(1, 143, 1), Part(0, 126, 4))),
        # Nine runs and more are read in two goes.
        (256, 32, (Part(1, 250, 1), Part(0, 142, 4))),
    ],
)
@every_format
def test_blocks_and_heads_of_other_sizes(
    dtype: KVCacheDType, block_size: int, head_size: int, parts: Sequence[Part]
) -> None:
    sizes = {"block_size": block_size, "head_size": head_size, "kv_heads": 1, "blocks": 2}
    pages = [_stored(Cache.make(dtype, name, **sizes), parts) for name in (TORCH, TRITON)]
    assert torch.equal(*pages)


@every_format
def test_a_whole_block_has_the_same_bytes_in_one_call_and_in_chunks(dtype: KVCacheDType) -> None:
    once, chunked = (
        Cache.make(dtype, TRITON, kv_heads=1, head_size=32, blocks=1) for _ in range(2)
    )
    key, value = tokens_of(once, 32)
    once.store(key, value, [0])
    # Within the anchors, single tokens in and at the end of a run, over several runs.
    edges = (0, 3, 6, 7, 8, 19, 31, 32)
    for first, end in itertools.pairwise(edges):
        chunked.store(key[first:end], value[first:end], [0], first)
    assert torch.equal(once.pages, chunked.pages)


@every_format
def test_memory_that_nobody_wrote_is_never_read(dtype: KVCacheDType) -> None:
    parts = (Part(1, 2, 8), Part(0, 9, 1))
    fills = (0xFF, 0x00, 0x7F)
    first, *others = (
        _stored(Cache.make(dtype, TRITON, head_size=32, kv_heads=1, blocks=2, fill=fill), parts)
        for fill in fills
    )
    for fill, other in zip(fills[1:], others, strict=True):
        assert ((first == other) | ((first == fills[0]) & (other == fill))).all()


@every_format
def test_slices_of_one_projection_are_read_where_they_lie(dtype: KVCacheDType) -> None:
    heads, head_size = 2, 32
    caches = [Cache.make(dtype, name, head_size=head_size) for name in (TORCH, TRITON)]
    _, *sliced = random_tokens(6, 4 + 2 * heads, head_size).split([4, heads, heads], 1)
    # Channels that are apart, as no engine has them.
    apart = random_tokens(6, heads, 2 * head_size).unflatten(2, (head_size, 2)).unbind(3)
    for key, value in (sliced, apart):
        assert not key.is_contiguous()
        for cache in caches:
            cache.store(key, value, [6])
        assert torch.equal(caches[0].pages, caches[1].pages)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_blocks_beyond_two_gibibytes_are_found(dtype: str) -> None:
    blocks, stride = 2100, 1 << 20
    pages = []
    for implementation in (TORCH, TRITON):
        small = Cache.make(dtype, implementation, kv_heads=1, head_size=32, blocks=1)
        # Never touched but for a few pages, so that it takes no memory.
        memory = torch.empty(blocks * stride, dtype=torch.uint8)
        far = memory.as_strided(
            (blocks, *small.pages.shape[1:]), (stride, *small.pages.stride()[1:])
        )
        cache = Cache(small.page, small.operations, far, memory)
        far[blocks - 1].fill_(0xFF)
        cache.store(*tokens_of(cache, 6), [blocks - 1])
        pages.append(far[blocks - 1].clone())
    assert torch.equal(*pages)


def test_an_empty_batch_is_no_fault() -> None:
    cache = Cache.make("int4", TRITON)
    key, value = tokens_of(cache, 0)
    cache.store(key, value, [0])
    assert (cache.pages == 0xFF).all()
