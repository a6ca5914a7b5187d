"""Shapes that all implementations take, and the view of pages that they work on."""

from dataclasses import dataclass, field
from typing import Any

import torch

from kvserving_kernels.errors import OperationError
from kvserving_kernels.formats.layout import ALIGNMENT_BYTES, PageLayout


@dataclass(frozen=True)
class Batch:
    """Which queries belong to which sequence, and where its blocks are.

    `query_start` [sequences + 1] are offsets into the query tokens, `context_lengths` [sequences]
    count all tokens of a sequence including its queries, `block_table` [sequences, blocks] names
    pages. The queries of a sequence are its last tokens and see no later ones. A sequence of length
    zero is padding: its output is zero. `max_queries` is the most queries that a sequence has,
    where the caller knows it without asking a device. What an implementation works out of a batch
    for all layers of a step it keeps in `plans`. `on_host` are `query_start` and `context_lengths`
    where the caller has them there too.
    """

    query_start: torch.Tensor
    context_lengths: torch.Tensor
    block_table: torch.Tensor
    max_queries: int | None = None
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    on_host: tuple[list[int], list[int]] | None = None


def records(pages: torch.Tensor, page: PageLayout) -> torch.Tensor:
    """Records [blocks, kv_heads, record_bytes] of uint8 pages [blocks, kv_heads, tokens, bytes].

    Pages may be padded and strided in any way between records; the bytes of one record must be
    adjacent and start at a multiple of 16 bytes. A view, never a copy. OperationError where the
    pages do not fit the layout.
    """
    expected = (page.block_size, page.bytes_per_token)
    if pages.dtype is not torch.uint8 or pages.dim() != 4 or tuple(pages.shape[2:]) != expected:
        raise OperationError(
            f"pages: expected uint8 [blocks, kv_heads, {expected[0]}, {expected[1]}], "
            f"got {pages.dtype} {list(pages.shape)}"
        )
    if pages.stride(3) != 1 or pages.stride(2) != page.bytes_per_token:
        raise OperationError(
            "pages: expected the bytes of a block and KV head to be adjacent (strides "
            f"{page.bytes_per_token}, 1), got strides {pages.stride(2)}, {pages.stride(3)}"
        )
    if any(stride % ALIGNMENT_BYTES for stride in pages.stride()[:2]):
        raise OperationError(
            f"pages: expected blocks and heads to start at multiples of {ALIGNMENT_BYTES} bytes, "
            f"got strides {pages.stride(0)} and {pages.stride(1)}"
        )
    return pages.flatten(2)


def check_store(
    page: PageLayout,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Records of the pages, once keys and values [tokens, kv_heads, head_size] are found to fit."""
    found = records(pages, page)
    expected = (slots.shape[0], found.shape[1], page.head_size)
    for name, tensor in (("key", key), ("value", value)):
        if tuple(tensor.shape) != expected:
            raise OperationError(
                f"{name}: expected {list(expected)} for these slots and pages, "
                f"got {list(tensor.shape)}"
            )
    return found


def check_attend(
    page: PageLayout, query: torch.Tensor, pages: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """Records of the pages, once queries [tokens, heads, head_size] and batch are found to fit."""
    found = records(pages, page)
    kv_heads = found.shape[1]
    if query.dim() != 3 or query.shape[2] != page.head_size or query.shape[1] % kv_heads:
        raise OperationError(
            f"query: expected [tokens, a multiple of {kv_heads} heads, {page.head_size}], "
            f"got {list(query.shape)}"
        )
    sequences = batch.context_lengths.shape[0]
    starts, tables = batch.query_start.shape[0], batch.block_table.shape[0]
    if (starts, tables) != (sequences + 1, sequences):
        raise OperationError(
            f"batch: expected {sequences + 1} query offsets and {sequences} rows of blocks for "
            f"{sequences} lengths, got {starts} and {tables}"
        )
    return found


def delivered(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result, in `out` where the caller gave one."""
    if out is None:
        return result
    return out.copy_(result)
