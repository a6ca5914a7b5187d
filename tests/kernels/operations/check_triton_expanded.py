"""Prompts on expanded blocks, by a dense attention in the library's place."""

import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch

from kernelkit import Cache, attention, random_tokens, tokens_of
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.ops import expanded
from kvserving_kernels.ops.pages import Batch
from kvserving_kernels.ops.registry import Implementation

FORMATS = list(LAYOUTS)
CALLS: list[int] = []
ERROR_LIMIT = 2e-3
"""Keys and values have 11 bits there."""


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    CALLS.clear()
    expanded.use(_dense)
    yield
    expanded.use(None)


def _dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    most_queries: int,
    most_keys: int,
    scale: float,
    out: torch.Tensor,
) -> None:
    CALLS.append(len(query_starts) - 1)
    assert most_queries == query_starts.diff().max()
    assert most_keys == key_starts.diff().max()
    assert query_starts[-1] == len(query)
    assert key_starts[-1] == len(keys)
    for asked, stored in zip(
        itertools.pairwise(query_starts),
        itertools.pairwise(key_starts),
        strict=True,
    ):
        part, own = slice(*map(int, asked)), slice(*map(int, stored))
        if part.start < part.stop:
            exact = attention(query[part].cpu(), keys[own].cpu(), values[own].cpu(), scale)
            out[part] = exact.to(out.device, out.dtype)


def _attended(
    dtype: str, sequences: Sequence[tuple[int, int]], rows: int = 0, **sizes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output for sequences of (queries, tokens), with rows after them, and what is right."""
    size = sizes.setdefault("block_size", 32)
    sizes.setdefault("head_size", 64)
    counts = [-(-length // size) for _, length in sequences]
    cache = Cache.make(dtype, Implementation.TRITON, blocks=sum(counts) + 1, **sizes)
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).tolist()
    filler = Cache(cache.page, _FILLER.operations, cache.pages, cache.memory)
    queries = sum(count for count, _ in sequences)
    heads = cache.pages.shape[1] * 2
    query = random_tokens(queries + rows, heads, cache.page.head_size, 9, torch.float16)
    table = torch.full((len(sequences), max(counts)), 1 << 20, dtype=torch.int32)
    exact = torch.zeros(query.shape, dtype=torch.float64)
    start = 0
    scale = cache.page.head_size**-0.5
    for index, ((count, length), blocks) in enumerate(zip(sequences, counts, strict=True)):
        own = [order.pop() for _ in range(blocks)]
        table[index, :blocks] = torch.tensor(own)
        if length:
            filler.store(*tokens_of(cache, length, index), own)
            part = slice(start, start + count)
            exact[part] = attention(query[part], *cache.stored(own, length), scale)
        start += count
    starts = torch.tensor([0, *(count for count, _ in sequences)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32)
    most = max(count for count, _ in sequences)
    batch = Batch(starts, lengths, table, most, on_host=(starts.tolist(), lengths.tolist()))
    out = torch.full_like(query, torch.nan)
    return cache.operations.attend(cache.page, query, cache.pages, batch, scale, out), exact


_FILLER = Cache.make("int8", Implementation.TORCH)


@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("dtype", FORMATS)
def test_prompts_of_all_lengths_beside_decode_steps(dtype: KVCacheDType, block_size: int) -> None:
    sequences = [(1, 40), (1, 3), (7, 7), (1, 33), (12, 100), (0, 0), (32, 64)]
    got, exact = _attended(dtype, sequences, rows=3, block_size=block_size)
    assert CALLS == [5]
    assert (got[-3:] == 0).all()
    assert (got.double() - exact).norm() < ERROR_LIMIT * exact.norm()
    start = 0
    for count, _ in sequences:
        part = slice(start, start + count)
        start += count
        assert (got[part].double() - exact[part]).norm() <= ERROR_LIMIT * exact[part].norm()


def test_what_does_not_fit_at_once_is_expanded_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    # 120 tokens of two heads with 64 channels, in 16 bits.
    monkeypatch.setattr(expanded, "MOST_BYTES", 120 * 2 * 2 * 2 * 64)
    got, exact = _attended("int4", [(1, 9), (15, 70), (3, 50), (14, 90)])
    assert CALLS == [2, 1]
    assert (got.double() - exact).norm() < ERROR_LIMIT * exact.norm()


def test_a_sequence_that_does_not_fit_is_left_to_our_own_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expanded, "MOST_BYTES", 60 * 2 * 2 * 2 * 64)
    got, exact = _attended("int4", [(15, 70), (3, 50)])
    assert not CALLS
    assert (got.double() - exact).norm() < ERROR_LIMIT * exact.norm()
