"""A decode step on the host: which kernels, on what grid, and what is compiled before."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import triton

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.formats.rotation import signs
from kvserving_kernels.ops.pages import Batch
from kvserving_kernels.ops.triton_decode import decode_kernel
from kvserving_kernels.ops.triton_merge import merge_kernel, rotate_kernel
from kvserving_kernels.ops.triton_plan import Plan, make_plan

MOST_TOKENS: Final = 8
"""Query tokens of a sequence that one program takes."""

MOST_COLUMNS: Final = 64
"""Query heads times query tokens that one program takes."""

HEAD_SIZES: Final = (32, 64, 128, 256)
BLOCK_SIZES: Final = (32, 64, 128)
"""Tensor cores take powers of two; the others are left to `triton_attend`."""

PROGRAMS_PER_PROCESSOR: Final = 4
"""Of two warps each: each of a multiprocessor's four schedulers then has two. Five are slower."""

PROGRAMS_FOR_ONE: Final = 2
"""The same for a single sequence, most of whose time is the latency of few blocks."""

MANY_ROWS: Final = 1024
"""So many query heads fill the GPU when they are merged by one warp each."""


@dataclass(frozen=True)
class Tuning:
    """Warps of a program, and stages of its loop: 4 hold one block in advance, 5 and 6 two."""

    warps: int
    stages: int


def tuning(page: PageLayout, columns: int) -> Tuning:
    """The fastest of those tried on an H200 (benchmarks/attention.py)."""
    # Blocks of more bytes leave less room for others: more programs gain more than a second one.
    return Tuning(2 if columns <= 8 else 4, 4 if page.layout.k_bits == 8 or columns > 8 else 6)


def takes(page: PageLayout, query: torch.Tensor, kv_heads: int, tokens: int) -> bool:
    """Whether there is a decode kernel for so many query tokens per sequence.

    Queries of 32 bits are left to `triton_attend`, which keeps their precision. `tokens` is 1 or
    MOST_TOKENS, so that there are few kernels to compile.
    """
    return (
        query.dtype in (torch.float16, torch.bfloat16)
        and page.head_size in HEAD_SIZES
        and page.block_size in BLOCK_SIZES
        and tokens <= MOST_TOKENS
        and query.shape[1] // kv_heads * tokens <= MOST_COLUMNS
        and query.stride(2) == 1
        and query.stride(1) == page.head_size
    )


def decode(
    page: PageLayout,
    query: torch.Tensor,
    records: torch.Tensor,
    batch: Batch,
    tokens: int,
    scale: float,
    output: torch.Tensor,
    *,
    cover: bool,
    compile_only: bool = False,
) -> None:
    """Write the output of all sequences with 1 to `tokens` queries.

    With `cover`, rows that belong to no sequence become zero.
    """
    kv_heads, heads = records.shape[1], query.shape[1]
    sequences, layout = batch.context_lengths.shape[0], page.layout
    plan = _plan(page, batch, tokens, kv_heads, compile_only)
    turn = signs_on(page.head_size, query.device)
    columns = heads // kv_heads * tokens
    if layout.k_rotated:
        plain = query
        query = torch.empty(plain.shape, dtype=torch.float32, device=plain.device)
        arguments: tuple[Any, ...] = (plain, turn, query, plain.stride(0))
        options: dict[str, Any] = {"HEAD": page.head_size, "num_warps": 1}
        launch(rotate_kernel, tuple(plain.shape[:2]), arguments, options, compile_only)
    means = records.new_empty(
        (plan.capacity, kv_heads, columns, page.head_size), dtype=torch.float32
    )
    stats = records.new_empty((plan.capacity, kv_heads, columns), dtype=torch.float32)
    lanes = max(8, triton.next_power_of_2(columns))
    tuned = tuning(page, lanes)
    arguments = (
        query, records, batch.block_table, plan.items, means, stats, scale, query.stride(0),
        batch.block_table.stride(0), records.stride(0), records.stride(1),
    )  # fmt: skip
    options = {
        "HEAD": page.head_size,
        "BLOCK": page.block_size,
        "GROUP": heads // kv_heads,
        "TOKENS": tokens,
        "COLUMNS": lanes,
        "ANCHORS": page.anchor_tokens,
        "K_BITS": layout.k_bits,
        "V_BITS": layout.v_bits,
        "K_CODES": page.k_codes.offset_bytes,
        "K_WORDS": page.k_params.offset_bytes,
        "V_CODES": page.v_codes.offset_bytes,
        "V_WORDS": page.v_params.offset_bytes,
        # Triton's interpreter has no assembler.
        "ASSEMBLY": os.environ.get("TRITON_INTERPRET") != "1",
        "STAGES": tuned.stages,
        "WARPS": tuned.warps,
        "num_warps": tuned.warps,
    }
    programs = min(slots(query.device, kv_heads, sequences), plan.capacity)
    launch(decode_kernel, (kv_heads, programs), arguments, options, compile_only)
    many = sequences * heads * tokens >= MANY_ROWS
    arguments = (
        means, stats, batch.query_start, plan.shares, turn, output, sequences, query.shape[0],
        output.stride(0),
    )  # fmt: skip
    for steps, warps in ((4, 1), (32, 4)) if compile_only else ((4, 1) if many else (32, 4),):
        options = {
            "HEAD": page.head_size,
            "GROUP": heads // kv_heads,
            "TOKENS": tokens,
            "STEP": steps,
            "ROTATED": layout.v_rotated,
            "COVER": cover,
            "num_warps": warps,
        }
        launch(merge_kernel, (sequences, heads, tokens), arguments, options, compile_only)


@cache
def compile_for(
    page: PageLayout, heads: int, kv_heads: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Compile, without running anything, what decode steps with these shapes will ask for."""
    query = torch.empty((1, heads, page.head_size), dtype=dtype, device=device)
    records = torch.empty((1, kv_heads, page.record_bytes), dtype=torch.uint8, device=device)
    numbers = torch.zeros(2, dtype=torch.int32, device=device)
    batch = Batch(numbers, numbers[:1], numbers[None, :1])
    for tokens, cover in ((1, True), (1, False), (MOST_TOKENS, True)):
        if takes(page, query, kv_heads, tokens):
            decode(page, query, records, batch, tokens, 1.0, query, cover=cover, compile_only=True)


@cache
def signs_on(head_size: int, device: torch.device) -> torch.Tensor:
    """Signs [head_size] of the rotation on a device."""
    return torch.tensor(signs(head_size), dtype=torch.float32, device=device)


@cache
def slots(device: torch.device, kv_heads: int, sequences: int) -> int:
    """Programs per KV head that run at a time."""
    if device.type != "cuda":
        return 2
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    each = PROGRAMS_FOR_ONE if sequences == 1 else PROGRAMS_PER_PROCESSOR
    return max(1, int(processors) * each // kv_heads)


def _plan(page: PageLayout, batch: Batch, tokens: int, kv_heads: int, compile_only: bool) -> Plan:
    device = batch.context_lengths.device
    # What is made while a graph is captured is remade whenever it runs, and else is not.
    captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    key = (page.block_size, tokens, kv_heads, captured)
    found = batch.plans.get(key)
    if found is None:
        found = make_plan(
            batch.query_start,
            batch.context_lengths,
            page.block_size,
            tokens,
            slots(device, kv_heads, batch.context_lengths.shape[0]),
            compile_only=compile_only,
        )
        if not compile_only:
            batch.plans[key] = found
    return found


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    compile_only: bool,
) -> None:
    """Run a kernel, or with `compile_only` compile it for such arguments."""
    if compile_only:
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)
