"""A small paged cache whose memory is poisoned, and dense attention to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from kernelkit.device import operations_for
from kvserving_kernels.formats import KVLayout, PageLayout, layout_of
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch, records
from kvserving_kernels.ops.reference import read_block
from kvserving_kernels.ops.registry import Implementation
from kvserving_kernels.ops.rotation import rotate_back

IMPLEMENTATIONS: Final = (
    Implementation.REFERENCE,
    Implementation.TORCH,
    Implementation.CPU,
    Implementation.TRITON,
)

POISON: Final = 0xFF
"""Fills memory that nobody wrote: a NaN as a symmetric word, the largest scale as an affine one."""

PADDING: Final = 0xA5
"""Fills bytes between records, which nobody may write."""


@dataclass(frozen=True)
class Cache:
    """Pages of one layer, the operations under test, and the memory around the pages."""

    page: PageLayout
    operations: Operations
    pages: torch.Tensor
    memory: torch.Tensor

    @classmethod
    def make(
        cls,
        dtype: str | KVLayout,
        implementation: Implementation,
        *,
        block_size: int = 32,
        head_size: int = 64,
        kv_heads: int = 2,
        blocks: int = 8,
        padding_bytes: int = 0,
        fill: int = POISON,
    ) -> "Cache":
        """A cache of poisoned pages; `padding_bytes` follow each record and each block."""
        layout = dtype if isinstance(dtype, KVLayout) else layout_of(dtype)
        page = layout.page(block_size, head_size)
        head_stride = page.record_bytes + padding_bytes
        block_stride = head_stride * kv_heads + padding_bytes
        memory = torch.full((blocks * block_stride,), PADDING, dtype=torch.uint8)
        pages = memory.as_strided(
            (blocks, kv_heads, block_size, page.bytes_per_token),
            (block_stride, head_stride, page.bytes_per_token, 1),
        )
        pages.fill_(fill)
        return cls(page, operations_for(page, implementation), pages, memory)

    def slots(self, blocks: Sequence[int], first: int, count: int) -> torch.Tensor:
        """Slots of `count` tokens from position `first` of a sequence with these blocks."""
        positions = torch.arange(first, first + count)
        size = self.page.block_size
        return torch.tensor(blocks)[positions // size] * size + positions % size

    def store(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        blocks: Sequence[int],
        first: int = 0,
        counters: torch.Tensor | None = None,
    ) -> None:
        """Store consecutive tokens of one sequence."""
        slots = self.slots(blocks, first, len(key))
        self.operations.store(self.page, key, value, self.pages, slots, counters)

    def attend(
        self, query: torch.Tensor, sequences: Sequence[tuple[int, int, Sequence[int]]]
    ) -> torch.Tensor:
        """Attention for sequences of (queries, length, blocks), whose queries follow each other."""
        counts = [count for count, _, _ in sequences]
        width = max(len(blocks) for _, _, blocks in sequences)
        # What follows the blocks of a sequence in its row names no block at all.
        table = torch.full((len(sequences), width), 1 << 20, dtype=torch.int32)
        for row, (_, _, blocks) in enumerate(sequences):
            table[row, : len(blocks)] = torch.tensor(blocks)
        batch = Batch(
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor([length for _, length, _ in sequences], dtype=torch.int32),
            table,
        )
        scale = self.page.head_size**-0.5
        return self.operations.attend(self.page, query, self.pages, batch, scale)

    def stored(self, blocks: Sequence[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [length, kv_heads, head_size] as the stored codes say."""
        found = records(self.pages, self.page)
        size = self.page.block_size
        keys, values = [], []
        for index in range(-(-length // size)):
            count = min(size, length - index * size)
            heads = [
                read_block(self.page, found[blocks[index], head], count)
                for head in range(found.shape[1])
            ]
            keys.append(torch.stack([key for key, _ in heads], 1))
            values.append(torch.stack([value for _, value in heads], 1))
        key, value = torch.cat(keys), torch.cat(values)
        layout = self.page.layout
        return (
            rotate_back(key) if layout.k_rotated else key,
            rotate_back(value) if layout.v_rotated else value,
        )


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Dense causal attention of the last tokens [tokens, heads, channels], in 64 bits."""
    group = query.shape[1] // key.shape[1]
    keys = key.double().repeat_interleave(group, 1)
    values = value.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhc,khc->hqk", query.double(), keys) * scale
    count, length = len(query), len(key)
    seen = torch.ones(count, length, dtype=torch.bool).tril(length - count)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khc->qhc", weights, values)


def random_tokens(
    count: int, heads: int, head_size: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Vectors whose channels differ in offset and spread, as keys of real models do."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, heads, head_size)
    spread = torch.rand(shape[1:], generator=generator) * 2 + 0.1
    offset = torch.randn(shape[1:], generator=generator) * 3
    return (torch.randn(shape, generator=generator) * spread + offset).to(dtype)


def tokens_of(cache: Cache, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values for a cache."""
    kv_heads, head_size = cache.pages.shape[1], cache.page.head_size
    return (
        random_tokens(count, kv_heads, head_size, 2 * seed),
        random_tokens(count, kv_heads, head_size, 2 * seed + 1),
    )
