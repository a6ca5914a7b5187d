"""How a decode step is cut into items: some blocks of one sequence, for each KV head a program.

Sizes are decided on the device, from lengths that the host does not know. The number of programs
depends on shapes only, so that one CUDA graph serves all lengths, and a batch gives the same output
each time.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

WIDTH: Final = 128
"""Sequences that are planned at a time."""

WAVES: Final = 4
"""Items per slot at most: where sequences differ in length, the last to end is then a short one."""

MOST_ITEMS: Final = 128
"""More items of one sequence cost more to merge than they gain."""

ITEM_WORDS: Final = 8


@dataclass(frozen=True)
class Plan:
    """Items of a batch: `items` [1 + capacity, 8] and `shares` [sequences, 2], 32-bit integers.

    The first row of `items` begins with their number; each other row is sequence, first block, end,
    tokens of the sequence, its first query, its queries, and nothing. A share is the first item of
    a sequence and how many it has.
    """

    items: torch.Tensor
    shares: torch.Tensor

    @property
    def capacity(self) -> int:
        """Most items that there can be."""
        return int(self.items.shape[0]) - 1


def make_plan(
    query_start: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    tokens: int,
    slots: int,
    *,
    compile_only: bool = False,
) -> Plan:
    """Plan sequences with 1 to `tokens` queries; the others get no items.

    `slots` programs per KV head run at a time.
    """
    sequences = lengths.shape[0]
    # ceil(blocks / size), summed, is at most one per sequence above the whole.
    capacity = sequences + min(WAVES, sequences) * slots
    like = {"dtype": torch.int32, "device": lengths.device}
    items = torch.empty((1 + capacity, ITEM_WORDS), **like)
    plan = Plan(items, torch.empty((sequences, 2), **like))
    arguments = (query_start, lengths, plan.items, plan.shares, sequences, slots)
    options = {
        "BLOCK": block_size,
        "TOKENS": tokens,
        "STEP": WIDTH,
        "MOST_WAVES": WAVES,
        "MOST": MOST_ITEMS,
    }
    if compile_only:
        plan_kernel.warmup(*arguments, grid=(1,), **options)
    else:
        plan_kernel[(1,)](*arguments, **options)
    return plan


@triton.jit(
    do_not_specialize=["sequences", "slots"],
    do_not_specialize_on_alignment=["query_start", "lengths", "items", "shares"],
)
def plan_kernel(
    query_start,
    lengths,
    items,
    shares,
    sequences,
    slots,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    MOST_WAVES: tl.constexpr,
    MOST: tl.constexpr,
):
    """Cut all sequences into items of nearly equal size, as many as keep the GPU busy."""
    total = tl.full([], 0, tl.int32)
    longest = tl.full([], 0, tl.int32)
    active = tl.full([], 0, tl.int32)
    for start in range(0, sequences, STEP):
        blocks, _, _, _ = _blocks(query_start, lengths, start, sequences, BLOCK, TOKENS, STEP)
        total += tl.sum(blocks)
        longest = tl.maximum(longest, tl.max(blocks))
        active += tl.sum((blocks > 0).to(tl.int32))
    size = tl.cdiv(total, tl.minimum(MOST_WAVES, sequences) * slots)
    # Programs run in waves: sequences of like lengths fill one or two of them almost exactly.
    for wave in tl.static_range(MOST_WAVES, 0, -1):
        splits = tl.maximum(wave * slots // tl.maximum(active, 1), 1)
        even = tl.cdiv(longest, splits)
        if (active <= wave * slots) & (wave <= sequences) & (8 * wave * even * slots <= 9 * total):
            size = even
    size = tl.maximum(tl.maximum(size, tl.cdiv(longest, MOST)), 1)
    before = tl.full([], 0, tl.int32)
    for start in range(0, sequences, STEP):
        owners = start + tl.arange(0, STEP)
        blocks, length, first, count = _blocks(
            query_start, lengths, start, sequences, BLOCK, TOKENS, STEP
        )
        counts = tl.cdiv(blocks, size)
        firsts = before + tl.cumsum(counts, 0) - counts
        tl.store(shares + 2 * owners, firsts, mask=owners < sequences)
        tl.store(shares + 2 * owners + 1, counts, mask=owners < sequences)
        for index in range(tl.max(counts)):
            place = items + 8 * (1 + firsts + index)
            inside = index < counts
            parts = tl.maximum(counts, 1)
            tl.store(place, owners, mask=inside)
            tl.store(place + 1, index * blocks // parts, mask=inside)
            tl.store(place + 2, (index + 1) * blocks // parts, mask=inside)
            tl.store(place + 3, length, mask=inside)
            tl.store(place + 4, first, mask=inside)
            tl.store(place + 5, count, mask=inside)
        before += tl.sum(counts)
    tl.store(items, before)


@triton.jit
def _blocks(
    query_start,
    lengths,
    start,
    sequences,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Blocks of sequences, zero if they are not planned; their tokens, first query and queries."""
    owners = start + tl.arange(0, STEP)
    inside = owners < sequences
    length = tl.load(lengths + owners, mask=inside, other=0).to(tl.int32)
    first = tl.load(query_start + owners, mask=inside, other=0).to(tl.int32)
    end = tl.load(query_start + owners + 1, mask=inside, other=0).to(tl.int32)
    count = end - first
    blocks = tl.where((count > 0) & (count <= TOKENS), tl.cdiv(length, BLOCK), 0)
    return blocks, length, first, count
