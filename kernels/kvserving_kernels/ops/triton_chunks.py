"""Prefill chunks on the host: which queries the kernel takes, on what grid, what is compiled."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.ops.pages import Batch
from kvserving_kernels.ops.triton_prefill import join_kernel, prefill_kernel
from kvserving_kernels.ops.triton_step import BLOCK_SIZES, HEAD_SIZES, launch, signs_on

MOST_GROUP: Final = 64
"""Query heads of a KV head that a tile takes, beside tokens."""

MOST_SHARES: Final = 16
"""More shares of one tile cost more to merge than they gain."""

SHARED_BYTES: Final = 227 << 10
"""Shared memory of a program on Hopper, which tiles of the largest blocks and heads fill."""

JOINED_ROWS: Final = 8
"""Query rows that a program merges."""


@dataclass(frozen=True)
class Tuning:
    """How the kernel is cut; `benchmarks/prefill.py --variants` compares.

    `rows` (query tokens times the query heads of a KV head, a power of two from 64) are those of a
    tile, `blocks` (1 or 2) are read at a time, `warps` and `stages` are Triton's: 5 stages hold the
    next codes in advance, fewer bring them at the end of a step. `apart` adds what a block brings
    outside the tensor cores, which cut off. `registers` per thread at most, None for no limit.
    """

    rows: int = 128
    warps: int = 8
    stages: int = 5
    blocks: int = 1
    apart: bool = False
    registers: int | None = 128


def tuning(page: PageLayout) -> Tuning:
    """What is taken where nothing is asked for: from the compiler's counts, not measured yet."""
    if page.head_size > 128 or page.block_size > 64:
        # Of the largest blocks, two and a tile do not fit into shared memory.
        return Tuning(
            stages=5 if page.head_size * page.block_size <= 128 * 128 else 2, registers=None
        )
    # With 128 registers, one program multiplies while another unpacks.
    return Tuning(blocks=2 if page.block_size == 32 else 1)


def takes_chunks(page: PageLayout, query: torch.Tensor, kv_heads: int) -> bool:
    """Whether there is a prefill kernel for these queries.

    Those of 32 bits are left to `triton_attend`, which keeps their precision, and all of them on
    GPUs with less shared memory than Hopper.
    """
    return (
        _has_room(query.device)
        and query.dtype in (torch.float16, torch.bfloat16)
        and page.head_size in HEAD_SIZES
        and page.block_size in BLOCK_SIZES
        and query.shape[1] // kv_heads <= MOST_GROUP
        and query.stride(2) == 1
        and query.stride(1) == page.head_size
        and query.stride(0) % 8 == 0
    )


def prefill(
    page: PageLayout,
    query: torch.Tensor,
    records: torch.Tensor,
    batch: Batch,
    least: int,
    scale: float,
    output: torch.Tensor,
    *,
    tuned: Tuning | None = None,
    compile_only: bool = False,
) -> None:
    """Write the output of sequences with `least` queries or more, and zero after all queries."""
    tuned = tuned or tuning(page)
    (rows, heads), kv_heads = query.shape[:2], records.shape[1]
    group, sequences = heads // kv_heads, batch.context_lengths.shape[0]
    # Each sequence, and what follows the last one, has at most one tile that is not full.
    tiles = rows // (tuned.rows // group) + sequences + 1
    shares = _shares(query.device, tiles * kv_heads, batch.block_table.shape[1])
    room = (shares, rows, heads) if shares > 1 else (1, 1, 1)
    stats = records.new_empty(room, dtype=torch.float32)
    means = records.new_empty((*room, page.head_size), dtype=torch.float32)
    turned = query.new_empty(query.shape, dtype=torch.float16)
    layout = page.layout
    sizes = {
        "HEAD": page.head_size,
        "BLOCK": page.block_size,
        "GROUP": group,
        "ROWS": tuned.rows,
        "num_warps": tuned.warps,
    }
    options: dict[str, Any] = {
        **sizes,
        "BLOCKS": tuned.blocks,
        "APART": tuned.apart,
        "ANCHORS": page.anchor_tokens,
        "K_BITS": layout.k_bits,
        "V_BITS": layout.v_bits,
        "K_CODES": page.k_codes.offset_bytes,
        "K_WORDS": page.k_params.offset_bytes,
        "V_CODES": page.v_codes.offset_bytes,
        "V_WORDS": page.v_params.offset_bytes,
        "K_ROTATED": layout.k_rotated,
        "V_ROTATED": layout.v_rotated,
        # Triton's interpreter has no assembler.
        "ASSEMBLY": os.environ.get("TRITON_INTERPRET") != "1",
        "STAGES": tuned.stages,
    }
    if tuned.registers is not None:
        options["maxnreg"] = tuned.registers
    lengths, start = batch.context_lengths, batch.query_start
    arguments: tuple[Any, ...] = (
        query, records, batch.block_table, start, lengths, signs_on(page.head_size, query.device),
        turned, output, means, stats, scale, least, rows, sequences, query.stride(0),
        batch.block_table.stride(0), records.stride(0), records.stride(1), output.stride(0),
    )  # fmt: skip
    launch(prefill_kernel, (kv_heads, tiles, shares), arguments, options, compile_only)
    if shares == 1 and not compile_only:
        return
    arguments = (
        start, lengths, output, means, stats, shares, least, rows, sequences, output.stride(0)
    )  # fmt: skip
    grid = (kv_heads, tiles, tuned.rows // JOINED_ROWS)
    launch(
        join_kernel, grid, arguments, {**sizes, "PART": JOINED_ROWS, "num_warps": 4}, compile_only
    )


@cache
def compile_chunks_for(
    page: PageLayout, heads: int, kv_heads: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Compile, without running anything, what prefill chunks with these shapes will ask for."""
    query = torch.empty((1, heads, page.head_size), dtype=dtype, device=device)
    records = torch.empty((1, kv_heads, page.record_bytes), dtype=torch.uint8, device=device)
    numbers = torch.zeros(2, dtype=torch.int32, device=device)
    batch = Batch(numbers, numbers[:1], numbers[None, :1])
    if takes_chunks(page, query, kv_heads):
        prefill(page, query, records, batch, 1, 1.0, query, compile_only=True)


@cache
def _has_room(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return bool(room >= SHARED_BYTES)


def _shares(device: torch.device, programs: int, blocks: int) -> int:
    """Programs that share a tile at most, decided from shapes alone."""
    if device.type != "cuda":
        return 2
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(2 * int(processors) // programs, MOST_SHARES, blocks))
