"""Attention of prompts by a library's kernel, on keys and values that are 16-bit for one layer.

The tensor cores' time is what counts there, and FlashAttention makes the most of it. Of the context
only what fits `MOST_BYTES` is expanded at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Protocol

import torch
from torch.nn.functional import pad

from kvserving_kernels.errors import OperationError
from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.formats.rotation import block_of
from kvserving_kernels.ops.pages import Batch
from kvserving_kernels.ops.rotation import rotate
from kvserving_kernels.ops.triton_expand import expand
from kvserving_kernels.ops.triton_step import BLOCK_SIZES
from kvserving_kernels.ops.triton_step import takes as takes_step

MOST_BYTES: Final = 256 << 20
"""For keys and values of a layer: 65,536 tokens of 8 KV heads with 128 channels."""

HEAD_SIZES: Final = (64, 128, 256)


class Flash(Protocol):
    """Causal attention of sequences whose last tokens are the queries."""

    def __call__(
        self,
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
        """Write attention [tokens, heads, head_size] of queries to keys and values of their own.

        `query_starts` and `key_starts` [sequences + 1] are the first rows of sequences.
        """


@dataclass
class _Chosen:
    flash: Flash | None = None


_CHOSEN: Final = _Chosen()


def use(flash: Flash | None) -> None:
    """Have prompts computed by a library from now on, or not."""
    _CHOSEN.flash = flash


@dataclass(frozen=True)
class Group:
    """Sequences [first, end) that are expanded together, and what the host knows of them."""

    first: int
    end: int
    first_query: int
    end_query: int
    most_queries: int
    tokens: int
    longest: int


def takes(page: PageLayout, query: torch.Tensor, kv_heads: int, batch: Batch) -> list[Group] | None:
    """Groups of all sequences but leading ones with one query; None where it cannot be done.

    That is where no library was named, the host does not know the lengths, or one sequence does not
    fit.
    """
    if (
        _CHOSEN.flash is None
        or batch.on_host is None
        or query.dtype not in (torch.float16, torch.bfloat16)
        or page.head_size not in HEAD_SIZES
        or page.block_size not in BLOCK_SIZES
    ):
        return None
    most = MOST_BYTES // (2 * query.element_size() * kv_heads * page.head_size)
    groups: list[Group] | None = batch.plans.get(("groups", most))
    if groups is None:
        groups = list(_groups(*batch.on_host, most))
        batch.plans["groups", most] = groups
    leading = not groups or groups[0].first > 0
    if any(group.tokens > most for group in groups) or (
        leading and not takes_step(page, query, kv_heads, 1)
    ):
        return None
    return groups


def _groups(starts: list[int], lengths: list[int], most: int) -> Iterator[Group]:
    first = 0
    while first < len(lengths) and starts[first + 1] - starts[first] <= 1:
        first += 1
    while first < len(lengths):
        end, tokens = first + 1, lengths[first]
        while end < len(lengths) and tokens + lengths[end] <= most:
            tokens += lengths[end]
            end += 1
        counts = [starts[i + 1] - starts[i] for i in range(first, end)]
        yield Group(
            first, end, starts[first], starts[end], max(counts), tokens, max(lengths[first:end])
        )
        first = end


def singles(batch: Batch, groups: list[Group]) -> Batch:
    """The leading sequences with one query, which no group has."""
    starts = batch.on_host[0] if batch.on_host else []
    count = groups[0].first if groups else len(starts) - 1
    return replace(
        batch,
        query_start=batch.query_start[: count + 1],
        context_lengths=batch.context_lengths[:count],
        block_table=batch.block_table[:count],
        max_queries=1,
        on_host=None,
    )


def prefill(
    page: PageLayout,
    query: torch.Tensor,
    records: torch.Tensor,
    batch: Batch,
    groups: list[Group],
    scale: float,
    output: torch.Tensor,
) -> None:
    """Write the output of the sequences of all groups, and zero after all queries."""
    flash = _CHOSEN.flash
    if flash is None or batch.on_host is None:
        raise OperationError("expected a batch that `takes` has groups for")
    size = page.head_size
    for group in groups:
        part = slice(group.first, group.end)
        rows = slice(group.first_query, group.end_query)
        key_starts = _key_starts(batch, group)
        shape = (group.tokens, records.shape[1], size)
        keys, values = (query.new_empty(shape) for _ in range(2))
        expand(page, records, batch.block_table[part], key_starts, group.longest, keys, values)
        asked, out = query[rows], output[rows]
        about = (size, query.dtype, query.device)
        if page.layout.k_rotated:
            asked = _turned(asked, _matrix(*about, back=False), None)
        mixed = torch.empty_like(out) if page.layout.v_rotated else out
        query_starts = batch.query_start[group.first : group.end + 1] - group.first_query
        flash(
            asked, keys, values, query_starts, key_starts, group.most_queries, group.longest, scale,
            mixed,
        )  # fmt: skip
        if page.layout.v_rotated:
            _turned(mixed, _matrix(*about, back=True), out)
    output[batch.on_host[0][-1] :].zero_()


def compile_for(page: PageLayout, kv_heads: int, dtype: torch.dtype, device: torch.device) -> None:
    """Compile what turns blocks into 16 bits, where a library was named."""
    if _CHOSEN.flash is None or page.block_size not in BLOCK_SIZES:
        return
    keys = torch.empty((1, kv_heads, page.head_size), dtype=dtype, device=device)
    records = torch.empty((1, kv_heads, page.record_bytes), dtype=torch.uint8, device=device)
    numbers = torch.zeros(2, dtype=torch.int32, device=device)
    expand(page, records, numbers[None, :1], numbers, 1, keys, keys, compile_only=True)


def _key_starts(batch: Batch, group: Group) -> torch.Tensor:
    """First rows [sequences + 1] of the keys of sequences, once for all layers of a step."""
    key = ("key starts", group.first, group.end)
    found: torch.Tensor | None = batch.plans.get(key)
    if found is None:
        lengths = batch.context_lengths[group.first : group.end]
        found = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        batch.plans[key] = found
    return found


def _turned(rows: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Rows [tokens, heads, size] times a matrix of 1 and -1, over the root of its size."""
    size = rows.shape[2]
    flat = rows.reshape(-1, size)
    target = torch.empty_like(flat) if out is None else out.view(-1, size)
    torch.addmm(flat, flat, matrix, beta=0, alpha=size**-0.5, out=target)
    return target.view(rows.shape)


@cache
def _matrix(size: int, dtype: torch.dtype, device: torch.device, back: bool) -> torch.Tensor:
    """The rotation without its factor, which 16 bits hold exactly."""
    matrix = rotate(torch.eye(size, device=device)) * block_of(size) ** 0.5
    return (matrix.mT if back else matrix).round().to(dtype).contiguous()
