"""Triton kernel that turns the blocks of some sequences back into 16-bit keys and values.

For the prompts of a step, whose attention is bound by arithmetic: one block and KV head a program,
read once for all queries, then a library's attention works on it. What it reads are the stored
codes, as everything does.
"""

import torch
import triton
import triton.language as tl

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.ops.triton_codes import (
    affine_scale,
    affine_zero_point,
    load_codes,
    load_words,
    symmetric_scale,
)
from kvserving_kernels.ops.triton_step import launch


def expand(
    page: PageLayout,
    records: torch.Tensor,
    block_table: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    compile_only: bool = False,
) -> None:
    """Write keys and values [tokens, kv_heads, head_size] of whole sequences, one after another.

    `starts` [sequences + 1] are their first rows, `longest` the most tokens of one. Rotated formats
    stay rotated.
    """
    layout = page.layout
    grid = (triton.cdiv(longest, page.block_size), block_table.shape[0], records.shape[1])
    options = {
        "BLOCK": page.block_size,
        "HEAD": page.head_size,
        "ANCHORS": page.anchor_tokens,
        "K_BITS": layout.k_bits,
        "V_BITS": layout.v_bits,
        "K_CODES": page.k_codes.offset_bytes,
        "K_WORDS": page.k_params.offset_bytes,
        "V_CODES": page.v_codes.offset_bytes,
        "V_WORDS": page.v_params.offset_bytes,
        "num_warps": 4,
    }
    arguments = (
        records, block_table, starts, keys, values, block_table.stride(0), records.stride(0),
        records.stride(1),
    )  # fmt: skip
    launch(expand_kernel, grid, arguments, options, compile_only)


@triton.jit(
    do_not_specialize=["table_stride", "block_stride", "record_stride"],
    do_not_specialize_on_alignment=["block_table", "starts"],
)
def expand_kernel(
    records,
    block_table,
    starts,
    keys,
    values,
    table_stride,
    block_stride,
    record_stride,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    ANCHORS: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    K_CODES: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_CODES: tl.constexpr,
    V_WORDS: tl.constexpr,
):
    """Keys and values of one block of a sequence and one KV head."""
    index = tl.program_id(0)
    owner = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2)
    heads = tl.num_programs(2)
    start = tl.load(starts + owner).to(tl.int64)
    left = tl.load(starts + owner + 1) - start - index * BLOCK
    if left <= 0:
        return
    block = tl.load(block_table + owner * table_stride + index).to(tl.int64)
    record = records + block * block_stride + head * record_stride
    tokens = tl.arange(0, BLOCK)
    valid = tokens < left
    channels = tl.arange(0, HEAD)
    places = ((start + index * BLOCK + tokens) * heads + head)[:, None] * HEAD + channels[None, :]

    codes = load_codes(record + V_CODES, tokens, valid, HEAD, HEAD, V_BITS)
    value = _values(codes, load_words(record + V_WORDS, tokens, valid), V_BITS)
    tl.store(values + places, value.to(values.dtype.element_ty), mask=valid[:, None])

    words = load_words(record + K_WORDS, tokens, valid)
    # Rows of anchors lie before the section.
    rows = valid & (tokens >= ANCHORS)
    section = record + K_CODES - ANCHORS * (HEAD * K_BITS // 8)
    key = _values(load_codes(section, tokens, rows, HEAD, HEAD, K_BITS), words, K_BITS)
    if ANCHORS > 0:
        RUNS: tl.constexpr = BLOCK // ANCHORS
        is_anchor = tokens < ANCHORS
        codes = load_codes(record, tokens, valid & is_anchor, HEAD, HEAD, 8)
        key = tl.where(is_anchor[:, None], _values(codes, words, 8), key)
        # The center of a run is the sum of the means of the runs before.
        means = tl.sum(tl.reshape(key, (RUNS, ANCHORS, HEAD)), 1) * (1.0 / ANCHORS)
        centers = tl.cumsum(means, 0) - means
        centers = tl.broadcast_to(centers[:, None, :], (RUNS, ANCHORS, HEAD))
        key += tl.reshape(centers, (BLOCK, HEAD))
    tl.store(keys + places, key.to(keys.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _values(codes, words, BITS: tl.constexpr):
    """Numbers that codes [tokens, channels] stand for, without centers."""
    if BITS == 8:
        return codes * symmetric_scale(words)[:, None]
    else:  # noqa: RET505  Triton compiles what follows a return
        return (codes - affine_zero_point(words, BITS)[:, None]) * affine_scale(words)[:, None]
