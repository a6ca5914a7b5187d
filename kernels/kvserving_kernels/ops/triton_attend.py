"""Triton kernel of attention over coded keys and values, split over the blocks of a sequence.

One program takes the query heads of one KV head and one query token, and a share of the blocks.
Scales and zero points are folded into scores and probabilities, the center of a run into one number
per query head.
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

TILE_TOKENS = 32
"""Tokens per step: a tile of codes of 256 channels then still fits in registers."""


def attend_rows(
    page: PageLayout,
    queries: torch.Tensor,
    records: torch.Tensor,
    block_table: torch.Tensor,
    owners: torch.Tensor,
    lengths: torch.Tensor,
    splits: int,
) -> torch.Tensor:
    """Attention of each query row [rows, heads, channels] to the first `lengths` [rows] tokens.

    `owners` [rows] are the sequences of the rows. Queries are 32-bit floats, scaled and rotated.
    The shares are merged by their log-sum-exp; a row of length zero gives zeros.
    """
    rows, heads, channels = queries.shape
    kv_heads = records.shape[1]
    group = heads // kv_heads
    shape = (rows, heads, splits)
    sums = queries.new_empty((*shape, channels))
    tops, totals = queries.new_empty(shape), queries.new_empty(shape)
    attend_kernel[(rows, kv_heads, splits)](
        queries,
        records,
        block_table,
        owners,
        lengths,
        sums,
        tops,
        totals,
        block_table.stride(0),
        records.stride(0),
        records.stride(1),
        BLOCK=page.block_size,
        HEAD=channels,
        LANES=triton.next_power_of_2(channels),
        GROUP=group,
        GROUP_LANES=max(16, triton.next_power_of_2(group)),
        ANCHORS=page.anchor_tokens,
        K_BITS=page.layout.k_bits,
        V_BITS=page.layout.v_bits,
        K_CODES=page.k_codes.offset_bytes,
        K_WORDS=page.k_params.offset_bytes,
        V_CODES=page.v_codes.offset_bytes,
        V_WORDS=page.v_params.offset_bytes,
        TILE=TILE_TOKENS,
    )
    top = tops.amax(-1, keepdim=True)
    factors = torch.where(tops > -torch.inf, torch.exp2(tops - top), 0.0)
    total = (totals * factors).sum(-1, keepdim=True)
    merged = (sums * factors[..., None]).sum(-2)
    return torch.where(total > 0, merged / total, 0.0)


@triton.jit
def attend_kernel(
    queries,
    records,
    block_table,
    owners,
    lengths,
    sums,
    tops,
    totals,
    table_stride,
    block_stride,
    record_stride,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_LANES: tl.constexpr,
    ANCHORS: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    K_CODES: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_CODES: tl.constexpr,
    V_WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Partial sums, maxima (base 2) and totals of one query row, KV head and share of blocks."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    length = tl.load(lengths + row)
    owner = tl.load(owners + row).to(tl.int64)
    share = tl.cdiv(tl.cdiv(length, BLOCK), splits)
    first = split * share
    end = tl.minimum(first + share, tl.cdiv(length, BLOCK))

    members = tl.arange(0, GROUP_LANES)
    lanes = tl.arange(0, LANES)
    # [query heads of the KV head, channels]
    heads = (row * tl.num_programs(1) + head) * GROUP + members
    inside = (members < GROUP)[:, None] & (lanes < HEAD)[None, :]
    query = tl.load(queries + heads[:, None] * HEAD + lanes[None, :], mask=inside, other=0.0)
    # exp2 is what the hardware has.
    query = query * 1.4426950408889634
    query_sum = tl.sum(query, 1)

    top = tl.full([GROUP_LANES], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_LANES], tl.float32)
    sum_ = tl.zeros([GROUP_LANES, LANES], tl.float32)
    for index in range(first, end):
        block = tl.load(block_table + owner * table_stride + index).to(tl.int64)
        record = records + block * block_stride + head * record_stride
        left = length - index * BLOCK
        if ANCHORS > 0:
            anchors = tl.arange(0, 16)
            exists = (anchors < ANCHORS) & (anchors < left)
            codes = load_codes(record, anchors, exists, HEAD, LANES, 8)
            scales = symmetric_scale(load_words(record + K_WORDS, anchors, exists))
            products = tl.dot(query, tl.trans(codes), input_precision="ieee") * scales[None, :]
            # The product with a center is the sum of the means of products over all runs before.
            offset = tl.sum(products, 1) / ANCHORS
            top, total, sum_ = _take(
                products,
                record,
                anchors,
                exists,
                top,
                total,
                sum_,
                HEAD,
                LANES,
                V_BITS,
                V_CODES,
                V_WORDS,
            )
            for run in range(1, tl.cdiv(tl.minimum(left, BLOCK), ANCHORS)):
                tokens = run * ANCHORS + tl.arange(0, 16)
                valid = (tl.arange(0, 16) < ANCHORS) & (tokens < left)
                scores = _affine_scores(
                    query,
                    query_sum,
                    record,
                    tokens,
                    valid,
                    ANCHORS,
                    HEAD,
                    LANES,
                    K_BITS,
                    K_CODES,
                    K_WORDS,
                )
                top, total, sum_ = _take(
                    scores + offset[:, None],
                    record,
                    tokens,
                    valid,
                    top,
                    total,
                    sum_,
                    HEAD,
                    LANES,
                    V_BITS,
                    V_CODES,
                    V_WORDS,
                )
                offset += tl.sum(scores, 1) / ANCHORS
        else:
            for start in range(0, tl.minimum(left, BLOCK), TILE):
                tokens = start + tl.arange(0, TILE)
                valid = (tokens < BLOCK) & (tokens < left)
                codes = load_codes(record + K_CODES, tokens, valid, HEAD, LANES, K_BITS)
                scales = symmetric_scale(load_words(record + K_WORDS, tokens, valid))
                scores = tl.dot(query, tl.trans(codes), input_precision="ieee") * scales[None, :]
                top, total, sum_ = _take(
                    scores,
                    record,
                    tokens,
                    valid,
                    top,
                    total,
                    sum_,
                    HEAD,
                    LANES,
                    V_BITS,
                    V_CODES,
                    V_WORDS,
                )

    place = heads * splits + split
    tl.store(tops + place, top, mask=members < GROUP)
    tl.store(totals + place, total, mask=members < GROUP)
    tl.store(sums + place[:, None] * HEAD + lanes[None, :], sum_, mask=inside)


@triton.jit
def _affine_scores(
    query,
    query_sum,
    record,
    tokens,
    valid,
    ANCHORS: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Products of queries with keys less their center; zero where not valid."""
    codes = load_codes(record + CODES, tokens - ANCHORS, valid, HEAD, LANES, BITS)
    words = load_words(record + WORDS, tokens, valid)
    products = tl.dot(query, tl.trans(codes), input_precision="ieee")
    products -= query_sum[:, None] * affine_zero_point(words, BITS)[None, :]
    return products * affine_scale(words)[None, :]


@triton.jit
def _take(
    scores,
    record,
    tokens,
    valid,
    top,
    total,
    sum_,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Running maximum, total and weighted sum after some more tokens (online softmax)."""
    scores = tl.where(valid[None, :], scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # Nothing valid so far: the difference of two infinities would be NaN.
    base = tl.where(new_top > -float("inf"), new_top, 0.0)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(top - base)
    codes = load_codes(record + CODES, tokens, valid, HEAD, LANES, BITS)
    words = load_words(record + WORDS, tokens, valid)
    if BITS == 8:
        scaled = weights * symmetric_scale(words)[None, :]
        added = tl.dot(scaled, codes, input_precision="ieee")
    else:
        scaled = weights * affine_scale(words)[None, :]
        zeros = tl.sum(scaled * affine_zero_point(words, BITS)[None, :], 1)
        added = tl.dot(scaled, codes, input_precision="ieee") - zeros[:, None]
    return new_top, total * keep + tl.sum(weights, 1), sum_ * keep[:, None] + added
