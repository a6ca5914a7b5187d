"""Decode steps by Triton's kernels, which queries of 16 bits take; test_operations.py runs it."""

from collections.abc import Sequence

import pytest
import torch

from kernelkit import Cache, attention, random_tokens, tokens_of
from kernelkit.device import triton_device
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.ops.registry import Implementation

FORMATS = list(LAYOUTS)
ERROR_LIMIT = 1e-3
"""Queries, weights and outputs have 11 bits."""

Sequences = Sequence[tuple[int, int, Sequence[int]]]
every_format = pytest.mark.parametrize("dtype", FORMATS)


def _made(dtype: str, lengths: Sequence[int], **sizes: int) -> tuple[Cache, list[list[int]]]:
    """A cache with sequences of these lengths, and their blocks, in no order."""
    block_size = sizes.get("block_size", 32)
    counts = [-(-length // block_size) for length in lengths]
    cache = Cache.make(dtype, Implementation.TRITON, blocks=sum(counts) + 1, **sizes)
    free = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).tolist()
    # Bytes do not depend on who stores them (check_store.py); this one is fast.
    filler = Cache(cache.page, _FILLER.operations, cache.pages, cache.memory)
    blocks = []
    for seed, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        blocks.append([free.pop() for _ in range(count)])
        if length:
            filler.store(*tokens_of(cache, length, seed), blocks[-1])
    return cache, blocks


_FILLER = Cache.make("int8", Implementation.TORCH)


def _queries(cache: Cache, count: int, group: int) -> torch.Tensor:
    return random_tokens(
        count, cache.pages.shape[1] * group, cache.page.head_size, 9, torch.float16
    )


def _check(cache: Cache, query: torch.Tensor, got: torch.Tensor, sequences: Sequences) -> None:
    start = 0
    for count, length, blocks in sequences:
        part = slice(start, start + count)
        start += count
        if not length:
            assert (got[part] == 0).all()
            continue
        key, value = cache.stored(blocks, length)
        exact = attention(query[part], key, value, cache.page.head_size**-0.5)
        assert (got[part].double() - exact).norm() < ERROR_LIMIT * exact.norm()


@every_format
def test_lengths_around_the_edges_of_blocks_in_one_ragged_batch(dtype: KVCacheDType) -> None:
    lengths = [31, 0, 1, 33, 32, 3, 100]
    cache, blocks = _made(dtype, lengths, kv_heads=2, head_size=64)
    query = _queries(cache, len(lengths), 4)
    sequences = [(1, length, own) for length, own in zip(lengths, blocks, strict=True)]
    _check(cache, query, cache.attend(query, sequences), sequences)


@pytest.mark.parametrize(
    ("dtype", "block_size", "head_size", "group"),
    [
        ("int4", 128, 128, 4),
        ("int4", 64, 64, 1),
        ("int4_hadamard", 64, 128, 3),
        ("int8", 128, 64, 8),
        ("k8v4", 64, 256, 3),
        ("int2", 64, 64, 8),
        ("k2v4", 128, 256, 1),
        ("int4", 32, 32, 16),
    ],
)
def test_blocks_heads_and_groups_of_other_sizes(
    dtype: str, block_size: int, head_size: int, group: int
) -> None:
    length = block_size + 7
    cache, (blocks,) = _made(
        dtype, [length], block_size=block_size, head_size=head_size, kv_heads=1
    )
    query = _queries(cache, 1, group)
    _check(cache, query, cache.attend(query, [(1, length, blocks)]), [(1, length, blocks)])


@pytest.mark.parametrize("dtype", ["int8", "int4", "k2v4"])
def test_several_query_tokens_each_see_what_is_before_them(dtype: str) -> None:
    lengths, counts = [34, 5, 2, 64], [4, 1, 2, 1]
    cache, blocks = _made(dtype, lengths, kv_heads=1, head_size=32)
    query = _queries(cache, sum(counts), 3)
    sequences = list(zip(counts, lengths, blocks, strict=True))
    _check(cache, query, cache.attend(query, sequences), sequences)


@pytest.mark.parametrize("dtype", ["int8", "int4_hadamard"])
def test_decode_steps_beside_a_prompt(dtype: str) -> None:
    lengths, counts = [40, 12, 0, 33], [1, 12, 1, 1]
    cache, blocks = _made(dtype, lengths, kv_heads=1, head_size=32)
    query = _queries(cache, sum(counts), 2)
    sequences = list(zip(counts, lengths, blocks, strict=True))
    together = cache.attend(query, sequences)
    _check(cache, query, together, sequences)
    # Alone it may be cut into other items.
    alone = cache.attend(query[:1], sequences[:1])
    torch.testing.assert_close(together[:1], alone, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_any_number_of_items_gives_the_same_attention(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvserving_kernels.ops import triton_step

    monkeypatch.setattr(triton_step, "slots", lambda *_: slots)
    lengths = [200, 31, 70]
    cache, blocks = _made("int4", lengths, kv_heads=1, head_size=32)
    query = _queries(cache, 3, 4)
    sequences = [(1, length, own) for length, own in zip(lengths, blocks, strict=True)]
    got = cache.attend(query, sequences)
    _check(cache, query, got, sequences)
    assert torch.equal(got, cache.attend(query, sequences))


@every_format
def test_memory_that_nobody_wrote_is_never_read(dtype: KVCacheDType) -> None:
    outputs = []
    for fill in (0xFF, 0x00, 0x7F):
        cache, blocks = _made(dtype, [34, 2], kv_heads=1, head_size=32, fill=fill)
        query = _queries(cache, 2, 1)
        outputs.append(cache.attend(query, [(1, 34, blocks[0]), (1, 2, blocks[1])]))
    assert outputs[0].isfinite().all()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 2e3])
def test_small_weights_count_however_large_values_are(dtype: str, size: float) -> None:
    # As with an attention sink: the first token has nearly all of the weight and no value.
    cache, (blocks,) = _made(dtype, [96], kv_heads=1, head_size=32)
    key, value = tokens_of(cache, 96)
    key, value = torch.zeros_like(key), value.float() * size
    key[0] += 4
    value[0] = 0
    filler = Cache(cache.page, _FILLER.operations, cache.pages, cache.memory)
    filler.store(key, value, blocks)
    query = torch.full((1, 2, 32), 0.75, dtype=torch.float16)
    got = cache.attend(query * 1.0, [(1, 96, blocks)])
    keys, values = cache.stored(blocks, 96)
    exact = attention(query, keys, values, 32**-0.5)
    assert exact.norm() > 0
    # The output itself may be below what 16 bits hold exactly.
    assert (got.double() - exact).norm() < 5e-3 * exact.norm() + 1e-7


def test_lengths_that_changed_in_place_are_planned_again() -> None:
    from kvserving_kernels.ops.pages import Batch

    cache, (blocks,) = _made("int8", [90], kv_heads=1, head_size=32)
    query = _queries(cache, 1, 2)
    lengths = torch.tensor([90], dtype=torch.int32)
    start, table = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([blocks]).int()
    batch = Batch(start, lengths, table, 1)
    out = torch.empty_like(query)
    for length in (90, 3, 64):
        lengths.fill_(length)
        batch.plans.clear()
        found = cache.operations.attend(cache.page, query, cache.pages, batch, 32**-0.5, out)
        assert found is out
        _check(cache, query, out, [(1, length, blocks)])


@pytest.mark.parametrize("slots", [1, 2, 9, 66])
@pytest.mark.parametrize("sequences", [1, 2, 7, 150])
def test_a_plan_has_every_block_once_and_room_for_it(slots: int, sequences: int) -> None:
    from kvserving_kernels.ops.triton_plan import make_plan

    chance = torch.Generator().manual_seed(sequences * 100 + slots)
    lengths = torch.randint(0, 700, (sequences,), generator=chance, dtype=torch.int32)
    counts = torch.randint(0, 3, (sequences,), generator=chance, dtype=torch.int32)
    start = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()))
    device = triton_device()
    plan = make_plan(start.to(device), lengths.to(device), 32, 1, slots)
    total = int(plan.items[0, 0])
    assert total <= plan.capacity
    items = plan.items[1 : total + 1].tolist()
    for sequence in range(sequences):
        planned = int(counts[sequence]) == 1
        own = [row for row in items if row[0] == sequence]
        first, number = plan.shares[sequence].tolist()
        assert own == items[first : first + number]
        blocks = [block for row in own for block in range(row[1], row[2])]
        length = int(lengths[sequence])
        assert blocks == (list(range(-(-length // 32))) if planned else [])
        assert all(row[3:6] == [length, int(start[sequence]), 1] for row in own)


def test_shapes_without_a_decode_kernel_are_left_to_the_other() -> None:
    from kvserving_kernels.ops.triton_step import takes

    page = LAYOUTS[KVCacheDType.INT4].page(32, 64)
    query = torch.empty((1, 8, 64), dtype=torch.bfloat16)
    assert takes(page, query, 2, 8)
    assert not takes(page, query, 2, 16)
    assert not takes(page, query.float(), 2, 1)
    assert not takes(LAYOUTS[KVCacheDType.INT4].page(48, 64), query, 2, 1)
    assert not takes(page, torch.empty((1, 128, 64), dtype=torch.bfloat16), 1, 1)
