"""One step of the prefill kernel: the blocks that a tile of query rows reads next.

Keys and values of a block become 16-bit tiles, scores and weights; `triton_prefill` has the loop.
"""

import triton
import triton.language as tl

from kvserving_kernels.ops.triton_tile import (
    joined,
    key_unit,
    multipliers,
    pairs_of,
    some_pairs_of,
    value_unit,
    values_of,
    with_anchors,
)

LIFT = tl.constexpr(15.0)
"""Weights are at most 2 ** this."""


@triton.jit
def _place(BLOCK: tl.constexpr, BLOCKS: tl.constexpr, ANCHORS: tl.constexpr):
    """Place in its block of the token in each row of a tile."""
    place = tl.arange(0, BLOCK * BLOCKS) % BLOCK
    if ANCHORS > 0:
        # Of eight neighbors, the tensor core gives each of four threads two.
        place = (place // 2 % 4) * (BLOCK // 4) + place // 8 * 2 + place % 2
    return place


@triton.jit
def pages_of(table, index, end, BLOCKS: tl.constexpr):
    """Pages of BLOCKS blocks of a sequence, or of its last ones; none where it has none."""
    real = end > 0
    first = tl.load(table + tl.minimum(index, end - 1), mask=real, other=0)
    second = first
    if BLOCKS == 2:
        second = tl.load(table + tl.minimum(index + 1, end - 1), mask=real, other=0)
    return first, second


@triton.jit
def _records(records, ids, block_stride, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Where the record of each row of a tile begins, as pairs of bytes."""
    half = block_stride // 2
    start = records.to(tl.pointer_type(tl.uint16))
    first = start + tl.multiple_of(ids[0].to(tl.int64) * half, 8)
    if BLOCKS == 2:
        second = start + tl.multiple_of(ids[1].to(tl.int64) * half, 8)
        first = tl.where(tl.arange(0, BLOCK * BLOCKS) < BLOCK, first, second)
    return first


@triton.jit
def words_of(
    records,
    ids,
    block_stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    ANCHORS: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_WORDS: tl.constexpr,
):
    """Parameter words of the keys and values of a tile."""
    rows = _records(records, ids, block_stride, BLOCK, BLOCKS) + _place(BLOCK, BLOCKS, ANCHORS)
    return tl.load(rows + K_WORDS // 2), tl.load(rows + V_WORDS // 2)


@triton.jit
def step(
    query,
    unit,
    table,
    records,
    block_stride,
    index,
    end,
    length,
    seen,
    top,
    total,
    sums,
    ids,
    k_words,
    v_words,
    MASKED: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    APART: tl.constexpr,
    ANCHORS: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    K_CODES: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_CODES: tl.constexpr,
    V_WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    """The state of the online softmax after BLOCKS more blocks.

    Parameter words are too small for Triton to load them in advance. So those of the next blocks,
    `ids`, are loaded here, and the pages of the blocks after these.
    """
    next_words = words_of(records, ids, block_stride, BLOCK, BLOCKS, ANCHORS, K_WORDS, V_WORDS)
    ids = pages_of(table, index + 2 * BLOCKS, end, BLOCKS)
    column = tl.arange(0, BLOCK * BLOCKS)
    place = _place(BLOCK, BLOCKS, ANCHORS)
    position = index * BLOCK + column // BLOCK * BLOCK + place
    record = _records(records, pages_of(table, index, end, BLOCKS), block_stride, BLOCK, BLOCKS)
    if MASKED:
        # Words that nobody wrote may be NaN; zero is harmless.
        k_words = tl.where(position < length, k_words, 0)
        v_words = tl.where(position < length, v_words, 0)

    key = _keys(record, place, k_words, HEAD, ANCHORS, K_BITS, K_CODES, ASSEMBLY)
    scores = tl.dot(query, tl.trans(key))
    visible = scores
    if MASKED:
        visible = tl.where(position[None, :] < seen[:, None], scores, -float("inf"))
    if ANCHORS > 0:
        # Centers are added to what is the same for a run, its maximum and what is taken off.
        runs = tl.reshape(scores, (ROWS, BLOCKS, 2, BLOCK // 16, 4, 2))
        center = _centers(runs, 1.0 / ANCHORS)
        runs = tl.reshape(visible, (ROWS, BLOCKS, 2, BLOCK // 16, 4, 2))
        largest = tl.max(tl.max(runs, 5), 3) + center
        new_top = tl.maximum(top, tl.max(tl.max(tl.max(largest, 2), 1), 1) * unit)
        less = (new_top - LIFT)[:, None, None, None] - center * unit
        weights = tl.exp2(runs * unit - less[:, :, :, None, :, None])
        weights = tl.reshape(weights, (ROWS, BLOCKS * BLOCK))
    else:
        new_top = tl.maximum(top, tl.max(visible, 1) * unit)
        weights = tl.exp2(visible * unit - (new_top - LIFT)[:, None])
    keep = tl.exp2(top - new_top)
    total = total * keep + tl.sum(weights, 1)

    PAIRS: tl.constexpr = HEAD * V_BITS // 16
    factor, offset = multipliers(v_words, value_unit(V_BITS), V_BITS)
    pairs = pairs_of(record + V_CODES // 2 + place * PAIRS, PAIRS)
    value = joined(values_of(pairs, offset, factor, V_BITS, ASSEMBLY), 16 // V_BITS)
    weights = weights.to(tl.float16)
    if APART:
        # A sum would be made the tensor core's again.
        added = tl.dot(weights, value)
        sums = tl.fma(sums, tl.broadcast_to(keep[:, None], added.shape), added)
    else:
        sums = tl.dot(weights, value, sums * keep[:, None])
    return new_top, total, sums, ids, next_words[0], next_words[1]


@triton.jit
def _keys(
    record,
    place,
    words,
    HEAD: tl.constexpr,
    ANCHORS: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    """A tile of keys; those after the anchors without their centers."""
    PAIRS: tl.constexpr = HEAD * BITS // 16
    PARTS: tl.constexpr = 8 // BITS
    factor, offset = multipliers(words, key_unit(BITS), BITS)
    if ANCHORS > 0:
        is_anchor = place < ANCHORS
        factor = tl.where(is_anchor, 0.0, factor).to(tl.float16)
    # Rows of anchors hold something else here, which is multiplied by zero.
    pairs = pairs_of(record + (CODES // 2 - ANCHORS * PAIRS) + place * PAIRS, PAIRS)
    parts = values_of(pairs, offset, factor, BITS, ASSEMBLY)
    if ANCHORS > 0:
        factor, _ = multipliers(tl.where(is_anchor, words, 0), key_unit(BITS), 8)
        low, high = (), ()
        for i in tl.static_range(PARTS):
            row = record + i * PAIRS + place * (HEAD // 2)
            pairs = some_pairs_of(row, is_anchor, PAIRS)
            first, second = with_anchors(pairs, factor, parts[i], parts[i + PARTS], ASSEMBLY)
            low = low + (first,)  # noqa: RUF005  Triton knows no other way
            high = high + (second,)  # noqa: RUF005
        parts = low + high
    return joined(parts, 2 * PARTS)


@triton.jit
def _centers(runs, share: tl.constexpr):
    """For each run of scores the sum of the means of all runs before: [rows, blocks, 2, 4].

    `runs` are [rows, blocks, 2, tokens, 4, 2]: of each block a thread has two runs, and the threads
    are four. A run's mean is its sum times `share`.
    """
    means = tl.sum(tl.sum(runs, 5), 3) * share
    both = tl.sum(means, 2)
    thread = tl.arange(0, 4)[None, None, :]
    center = tl.zeros_like(both)
    for i in tl.static_range(3):
        one = tl.sum(tl.where(thread == i, both, 0.0), 2)
        center += tl.where(thread > i, one[:, :, None], 0.0)
    second = tl.arange(0, 2)[None, None, :, None] == 1
    first = tl.sum(tl.where(second, 0.0, means), 2)
    return center[:, :, None, :] + tl.where(second, first[:, :, None, :], 0.0)
