"""Prefill chunks by Triton's kernel, which queries of 16 bits take; test_operations.py runs it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelkit import Cache, attention, random_tokens, tokens_of
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.ops import triton_chunks
from kvserving_kernels.ops.pages import Batch, records
from kvserving_kernels.ops.records import keys_and_values
from kvserving_kernels.ops.registry import Implementation
from kvserving_kernels.ops.rotation import rotate_back
from kvserving_kernels.ops.triton_chunks import Tuning, takes_chunks

FORMATS = list(LAYOUTS)
ERROR_LIMIT = 1e-3
"""As in decode steps: queries, weights and outputs have 11 bits, tiles too."""

Sequences = Sequence[tuple[int, int, Sequence[int]]]
every_format = pytest.mark.parametrize("dtype", FORMATS)

_FILLER = Cache.make("int8", Implementation.TORCH)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the kernel cut in another way; so many programs share a tile."""

    def use(tuning: Tuning, shares: int = 1) -> None:
        monkeypatch.setattr(triton_chunks, "tuning", lambda *_: tuning)
        monkeypatch.setattr(triton_chunks, "_shares", lambda *_: shares)

    return use


@pytest.fixture(autouse=True)
def no_other_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that took the kernel for any shape would be right, and not the test."""

    def refuse(*_: Any) -> None:
        raise AssertionError("attend_rows was asked")

    monkeypatch.setattr("kvserving_kernels.ops.triton_operations.attend_rows", refuse)


def _made(
    dtype: str, sequences: Sequence[tuple[int, int]], **sizes: int
) -> tuple[Cache, list[tuple[int, int, list[int]]]]:
    """A cache with sequences of so many queries and tokens, whose blocks are in no order."""
    block_size = sizes.get("block_size", 32)
    counts = [-(-length // block_size) for _, length in sequences]
    cache = Cache.make(dtype, Implementation.TRITON, blocks=sum(counts) + 1, **sizes)
    free = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).tolist()
    # Bytes do not depend on who stores them (check_store.py); this one is fast.
    filler = Cache(cache.page, _FILLER.operations, cache.pages, cache.memory)
    made = []
    for seed, ((queries, length), count) in enumerate(zip(sequences, counts, strict=True)):
        blocks = [free.pop() for _ in range(count)]
        if length:
            filler.store(*tokens_of(cache, length, seed), blocks)
        made.append((queries, length, blocks))
    return cache, made


def _queries(cache: Cache, count: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    return random_tokens(count, cache.pages.shape[1] * group, cache.page.head_size, 9, dtype)


def _stored(cache: Cache, blocks: Sequence[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `Cache.stored` gives, which takes minutes for so many tokens (check_attend.py)."""
    page = cache.page
    key, value = keys_and_values(page, records(cache.pages, page)[list(blocks)])
    key, value = (part.transpose(1, 2).flatten(0, 1)[:length] for part in (key, value))
    return (
        rotate_back(key) if page.layout.k_rotated else key,
        rotate_back(value) if page.layout.v_rotated else value,
    )


def _check(cache: Cache, sequences: Sequences, group: int, limit: float = ERROR_LIMIT) -> None:
    dtype = torch.float16
    query = _queries(cache, sum(count for count, _, _ in sequences), group, dtype)
    got = cache.attend(query, sequences)
    start = 0
    for count, length, blocks in sequences:
        part = slice(start, start + count)
        start += count
        if not length:
            assert (got[part] == 0).all()
            continue
        exact = attention(query[part], *_stored(cache, blocks, length), cache.page.head_size**-0.5)
        # Every row by itself: one that sees a token too many is lost among others.
        error = (got[part].double() - exact).flatten(1).norm(dim=1)
        assert (error < 3 * limit * exact.flatten(1).norm(dim=1)).all(), error
        assert error.norm() < limit * exact.norm()


@every_format
def test_tiles_across_the_causal_edge_in_one_ragged_batch(dtype: KVCacheDType) -> None:
    # A whole prompt, a chunk from the middle of a block, padding, more than a tile, an even chunk.
    sequences = [(33, 33), (20, 90), (2, 0), (67, 70), (32, 96)]
    cache, made = _made(dtype, sequences, kv_heads=1, head_size=64)
    _check(cache, made, 2)


@pytest.mark.parametrize(
    ("dtype", "block_size", "head_size", "kv_heads", "group"),
    [
        ("int4", 128, 128, 1, 4),
        ("int4", 64, 64, 2, 1),
        ("int4_hadamard", 64, 128, 1, 3),
        ("int4_hadamard", 32, 32, 1, 2),
        ("int8", 128, 64, 1, 8),
        ("k8v4", 64, 256, 1, 3),
        ("int4_hadamard", 32, 256, 1, 1),
        ("int2", 64, 32, 1, 8),
        ("k2v4", 128, 256, 1, 1),
        ("k2v4", 64, 64, 1, 33),
        ("int4", 32, 32, 1, 16),
    ],
)
def test_blocks_heads_and_groups_of_other_sizes(
    dtype: str, block_size: int, head_size: int, kv_heads: int, group: int
) -> None:
    sizes = {"block_size": block_size, "head_size": head_size, "kv_heads": kv_heads}
    cache, made = _made(dtype, [(11, 2 * block_size + 7)], **sizes)
    _check(cache, made, group)


@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(rows=64, warps=4),
        Tuning(rows=64, blocks=2, apart=True),
        Tuning(rows=256, stages=1, registers=None),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "int4_hadamard", "int2"])
def test_any_cut_gives_the_same_attention(
    dtype: str, tuning: Tuning, tuned: Callable[..., None]
) -> None:
    tuned(tuning)
    cache, made = _made(dtype, [(70, 190), (9, 33)], kv_heads=1, head_size=32)
    _check(cache, made, 4)


@pytest.mark.parametrize(
    ("dtype", "shares", "blocks"), [("int8", 2, 1), ("int4_hadamard", 3, 2), ("int2", 8, 1)]
)
def test_programs_that_share_a_tile_give_the_same_attention(
    dtype: str, shares: int, blocks: int, tuned: Callable[..., None]
) -> None:
    tuned(Tuning(rows=64, blocks=blocks), shares)
    # Shares of eight blocks and more, and a tile that nobody shares.
    sequences = [(30, 25 * 32 - 3), (9, 40), (2, 0), (12, 16 * 32)]
    cache, made = _made(dtype, sequences, kv_heads=1, head_size=32)
    _check(cache, made, 3)


@pytest.mark.parametrize("group", [1, 3])
def test_decode_steps_beside_chunks_are_each_written_once(group: int) -> None:
    sequences = [(1, 40), (12, 12), (1, 0), (1, 33), (50, 80), (1, 1)]
    cache, made = _made("int4", sequences, kv_heads=2, head_size=32)
    _check(cache, made, group)


@pytest.mark.parametrize("shares", [1, 2])
@every_format
def test_memory_that_nobody_wrote_is_never_read(
    dtype: KVCacheDType, shares: int, tuned: Callable[..., None]
) -> None:
    tuned(Tuning(rows=64, blocks=2), shares)
    sequences = [(20, 34), (9, 17 * 32 + 1 if shares > 1 else 10)]
    outputs = []
    for fill in (0xFF, 0x00, 0x7F):
        cache, made = _made(dtype, sequences, kv_heads=1, head_size=32, fill=fill)
        query = _queries(cache, 29, 3, torch.bfloat16)
        outputs.append(cache.attend(query, made))
    assert outputs[0].isfinite().all()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("extra", [1, 40, 200])
@pytest.mark.parametrize("sequences", [[(20, 34)], [(9, 9), (1, 5), (40, 40)]])
def test_rows_that_belong_to_no_sequence_become_zero(
    sequences: list[tuple[int, int]], extra: int
) -> None:
    cache, made = _made("int4", sequences, kv_heads=1, head_size=32)
    counts = [count for count, _, _ in made]
    query = _queries(cache, sum(counts) + extra, 4, torch.float16)
    table = torch.zeros((len(made), 2), dtype=torch.int32)
    for row, (_, _, blocks) in zip(table, made, strict=True):
        row[: len(blocks)] = torch.tensor(blocks)
    start = torch.tensor([0, *counts]).cumsum(0).int()
    lengths = torch.tensor([length for _, length, _ in made], dtype=torch.int32)
    out = torch.full_like(query, torch.nan)
    batch = Batch(start, lengths, table, max(counts))
    cache.operations.attend(cache.page, query, cache.pages, batch, 32**-0.5, out)
    assert (out[sum(counts) :] == 0).all()
    assert torch.equal(out[: sum(counts)], cache.attend(query[: sum(counts)], made))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("size", [1.0, 2e3])
def test_small_weights_count_however_large_values_are(dtype: str, size: float) -> None:
    # As with an attention sink: the first token has nearly all of the weight and no value.
    cache, ((_, _, blocks),) = _made(dtype, [(9, 96)], kv_heads=1, head_size=32)
    key, value = tokens_of(cache, 96)
    key, value = torch.zeros_like(key), value.float() * size
    key[0] += 4
    value[0] = 0
    filler = Cache(cache.page, _FILLER.operations, cache.pages, cache.memory)
    filler.store(key, value, blocks)
    query = torch.full((9, 2, 32), 0.75, dtype=torch.float16)
    got = cache.attend(query, [(9, 96, blocks)])
    exact = attention(query, *_stored(cache, blocks, 96), 32**-0.5)
    assert exact.norm() > 0
    # The output itself may be below what 16 bits hold exactly.
    assert (got.double() - exact).norm() < 5e-3 * exact.norm() + 1e-7


@pytest.mark.parametrize("size", [5e-3, 4e4])
@pytest.mark.parametrize("dtype", ["int8", "int4", "int4_hadamard"])
def test_values_of_any_size_keep_their_digits(dtype: str, size: float) -> None:
    cache, ((_, _, blocks),) = _made(dtype, [(9, 40)], kv_heads=1, head_size=32)
    key, value = tokens_of(cache, 40)
    filler = Cache(cache.page, _FILLER.operations, cache.pages, cache.memory)
    filler.store(key, value.float() * size / value.abs().max(), blocks)
    _check(cache, [(9, 40, blocks)], 2, 2 * ERROR_LIMIT)


@every_format
def test_a_chunk_reads_what_a_decode_step_reads(dtype: KVCacheDType) -> None:
    cache, ((_, length, blocks),) = _made(dtype, [(9, 70)], kv_heads=1, head_size=64)
    query = _queries(cache, 9, 4, torch.float16)
    chunk = cache.attend(query, [(9, length, blocks)])
    step = cache.attend(query[-1:], [(1, length, blocks)])
    assert (chunk[-1:] - step).norm() < 2 * ERROR_LIMIT * step.norm()


def test_queries_and_outputs_may_be_parts_of_wider_rows() -> None:
    cache, made = _made("int4", [(20, 34)], kv_heads=1, head_size=32)
    query = _queries(cache, 20, 2, torch.bfloat16)
    wide = torch.full((20, 6, 32), torch.nan, dtype=torch.bfloat16)
    wide[:, :2] = query
    assert torch.equal(cache.attend(wide[:, :2], made), cache.attend(query, made))


def test_shapes_without_a_kernel_are_left_to_the_other() -> None:
    page = LAYOUTS[KVCacheDType.INT4].page(32, 64)
    query = torch.empty((9, 8, 64), dtype=torch.bfloat16)
    assert takes_chunks(page, query, 2)
    assert not takes_chunks(page, query.float(), 2)
    assert not takes_chunks(LAYOUTS[KVCacheDType.INT4].page(48, 64), query, 2)
    assert not takes_chunks(page, torch.empty((9, 128, 64), dtype=torch.bfloat16), 1)
    # Rows that begin anywhere cannot be read in vectors.
    anywhere = torch.empty((9, 516), dtype=torch.bfloat16)[:, :512].view(9, 8, 64)
    assert not takes_chunks(page, anywhere, 2)


@every_format
def test_what_a_chunk_asks_for_was_compiled_before(
    dtype: KVCacheDType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[bool, list[tuple[Any, ...]]] = {True: [], False: []}

    def note(kernel: Any, _: Any, arguments: Any, options: Any, compile_only: bool) -> None:
        kinds = [getattr(argument, "dtype", type(argument)) for argument in arguments]
        asked[compile_only].append((kernel, kinds, options))

    monkeypatch.setattr(triton_chunks, "launch", note)
    page = LAYOUTS[dtype].page(64, 128)
    device = torch.device("cpu")
    triton_chunks.compile_chunks_for(page, 8, 2, torch.bfloat16, device)
    records_ = torch.empty((3, 2, page.record_bytes), dtype=torch.uint8)
    for rows, lengths in ((100, [300]), (9, [9, 0, 70])):
        query = torch.empty((rows, 8, 128), dtype=torch.bfloat16)
        start = torch.arange(len(lengths) + 1, dtype=torch.int32)
        table = torch.zeros((len(lengths), 5), dtype=torch.int32)
        batch = Batch(start, torch.tensor(lengths, dtype=torch.int32), table, rows)
        for shares in (1, 3):
            monkeypatch.setattr(triton_chunks, "_shares", lambda *_, shares=shares: shares)
            for least in (1, 2):
                triton_chunks.prefill(page, query, records_, batch, least, 0.5, query)
    assert len(asked[True]) == 2
    assert all(kernel in asked[True] for kernel in asked[False])
    assert len(asked[False]) == 12


@pytest.mark.parametrize(("kib", "expected"), [(227, True), (99, False)])
def test_gpus_with_little_shared_memory_keep_the_other_kernel(
    kib: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_gpu(monkeypatch, shared_memory_per_block_optin=kib << 10)
    triton_chunks._has_room.cache_clear()
    assert triton_chunks._has_room(torch.device("cuda")) is expected
    triton_chunks._has_room.cache_clear()


def _on_gpu(monkeypatch: pytest.MonkeyPatch, **properties: int) -> None:
    found = SimpleNamespace(**properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)


def test_a_tile_is_shared_where_tiles_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    _on_gpu(monkeypatch, multi_processor_count=132)
    device = torch.device("cuda")
    # Eight tiles of eight heads, as many as fill the processors, and a table of one block.
    assert triton_chunks._shares(device, 64, 512) == 4
    assert triton_chunks._shares(device, 300, 512) == 1
    assert triton_chunks._shares(device, 64, 1) == 1
    assert triton_chunks._shares(device, 1, 512) == triton_chunks.MOST_SHARES
