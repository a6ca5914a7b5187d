"""Triton kernels of attention in a decode step: a few queries per sequence, and all that is stored.

One program takes all query heads of a KV head, all query tokens of a sequence and some of its
blocks; `triton_plan` says which. What makes it fast on Hopper:

- Scores and outputs are computed transposed, tokens or channels by columns, a column being a query
  head of a query token: so few columns fill the tensor core's narrow side.
- Codes are read in pairs of bytes and masked in place. The bits that are left are the code times a
  power of two as a subnormal 16-bit float, so that nothing is converted; the power is taken back
  from queries and outputs.
- Scales and zero points are folded into scores and weights, the center of a run of keys into one
  number per column: the mean of the scores of the run before.
"""

import triton
import triton.language as tl

from kvserving_kernels.ops.triton_codes import symmetric_scale
from kvserving_kernels.ops.triton_unpack import (
    POINTS,
    UNIT8,
    affine_scale,
    fold,
    gain,
    largest_word,
    lift_exponent,
    lift_of_part,
    power,
    share,
    unit_exponent,
    unpack,
    zero_point,
)

LOG2_E = tl.constexpr(1.4426950408889634)
FLOOR = tl.constexpr(-1e30)
"""A maximum before any score; finite, so that the difference of two is never NaN."""


_RUNTIME = ["scale", "token_stride", "table_stride", "block_stride", "record_stride"]
"""Arguments whose values must not lead to another compilation."""


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=["block_table", "items"])
def decode_kernel(
    queries,
    records,
    block_table,
    items,
    sums,
    stats,
    scale,
    token_stride,
    table_stride,
    block_stride,
    record_stride,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ANCHORS: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    K_CODES: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_CODES: tl.constexpr,
    V_WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Mean values [items, kv_heads, columns, channels] by weight, and log-sum-exps (base 2).

    `items` are those of a plan (`triton_plan`), which the programs of a head take in turn.
    """
    head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    K_PAIRS: tl.constexpr = HEAD * K_BITS // 16
    V_PAIRS: tl.constexpr = HEAD * V_BITS // 16
    K_PARTS: tl.constexpr = 8 // K_BITS
    V_PARTS: tl.constexpr = 8 // V_BITS
    K_LANES: tl.constexpr = max(16, K_PAIRS)
    V_LANES: tl.constexpr = max(16, V_PAIRS)
    # Rows that lie in different threads of a program.
    ROWS: tl.constexpr = min(BLOCK, 16 * WARPS)

    # As many programs as run at a time: more of them, even idle ones, would be dealt out unevenly.
    for item in range(tl.program_id(1), tl.load(items), tl.num_programs(1)):
        row = items + 8 * (item + 1)
        owner = tl.load(row).to(tl.int64)
        first = tl.load(row + 1)
        end = tl.load(row + 2)
        length = tl.load(row + 3)
        start = tl.load(row + 4)
        count = tl.load(row + 5)
        columns = tl.arange(0, COLUMNS)
        token = columns // GROUP
        asked = (columns < GROUP * TOKENS) & (token < count)
        seen = tl.minimum(length - (count - 1 - token), length)
        pairs = tl.arange(0, K_LANES)
        places = (start + token).to(tl.int64) * token_stride + (
            head * GROUP + columns % GROUP
        ) * HEAD
        # [lanes, columns] per part of the channels: what the masked codes are multiplied by. A
        # masked code has those of the parts below in its lower bits, which these must take off.
        query = ()
        query_sum = tl.zeros([COLUMNS], tl.float32)
        mask = (pairs < K_PAIRS)[:, None] & asked[None, :]
        for i in tl.static_range(2 * K_PARTS):
            channel = (i % K_PARTS) * (2 * K_PAIRS) + 2 * pairs + i // K_PARTS
            rows = queries + places[None, :] + channel[:, None]
            part = tl.load(rows, mask=mask, other=0.0).to(tl.float32) * gain(i % K_PARTS, K_BITS)
            if i % K_PARTS < K_PARTS - 1:
                above = tl.load(rows + 2 * K_PAIRS, mask=mask, other=0.0).to(tl.float32)
                part -= above * gain(i % K_PARTS + 1, K_BITS)
            part = (part * (scale * LOG2_E)).to(tl.float16)
            query_sum += tl.sum(part.to(tl.float32), 0) * share(i % K_PARTS, K_BITS)
            query = query + (part,)  # noqa: RUF005  Triton knows no other way

        top = tl.full([COLUMNS], FLOOR, tl.float32)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        zeros = tl.zeros([ROWS, COLUMNS], tl.float32)
        largest = tl.full([], 0, tl.int32)
        output = ()
        for _ in tl.static_range(2 * V_PARTS):
            output = output + (tl.zeros([V_LANES, COLUMNS], tl.float32),)  # noqa: RUF005
        table = block_table + owner * table_stride
        for index in tl.range(first, end, num_stages=STAGES):
            block = tl.load(table + index).to(tl.int64)
            record = records + tl.multiple_of(block * block_stride + head * record_stride, 16)
            left = length - index * BLOCK
            scores = _score(
                query, query_sum, record, left, seen - index * BLOCK,
                HEAD, BLOCK, TOKENS, COLUMNS, ANCHORS, K_BITS, K_CODES, K_WORDS, ASSEMBLY,
            )  # fmt: skip
            top, total, zeros, largest, output = _add(
                scores, top, total, zeros, largest, output, record, left,
                HEAD, BLOCK, ROWS, V_BITS, V_CODES, V_WORDS, ASSEMBLY,
            )  # fmt: skip

        sum_ = tl.sum(total, 0)
        zero = tl.sum(zeros, 0) * (128.0 if V_BITS == 8 else 1.0 / (POINTS >> V_BITS))
        # Without a score the sums are zero already.
        factor = 1.0 / (tl.where(sum_ > 0, sum_, 1.0) * power(lift_exponent(largest, V_BITS)))
        place = (item * kv_heads + head) * (GROUP * TOKENS) + columns
        inside = columns < GROUP * TOKENS
        tl.store(stats + place, tl.where(sum_ > 0, top + tl.log2(sum_), -float("inf")), mask=inside)
        v_pairs = tl.arange(0, V_LANES)
        for i in tl.static_range(2 * V_PARTS):
            channel = (i % V_PARTS) * (2 * V_PAIRS) + 2 * v_pairs + i // V_PARTS
            values = output[i]
            if i % V_PARTS > 0:
                values -= output[i - 1]
            values = values * lift_of_part(i % V_PARTS, V_BITS) - zero[None, :]
            tl.store(
                sums + place.to(tl.int64)[None, :] * HEAD + channel[:, None],
                values * factor[None, :],
                mask=(v_pairs < V_PAIRS)[:, None] & inside[None, :],
            )


@triton.jit
def _add(
    scores,
    top,
    total,
    zeros,
    largest,
    output,
    record,
    left,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    """The state of the online softmax after the values of another block."""
    PAIRS: tl.constexpr = HEAD * BITS // 16
    LANES: tl.constexpr = max(16, PAIRS)
    tokens = tl.arange(0, BLOCK)
    pairs = tl.arange(0, LANES)
    fours = tl.arange(0, BLOCK // 4)
    places = (record + CODES).to(tl.pointer_type(tl.uint16))
    places += pairs[:, None] + tokens[None, :] * PAIRS
    if PAIRS < LANES:
        codes = tl.load(places, mask=(pairs < PAIRS)[:, None], other=0)
    else:
        codes = tl.load(places)
    words = tl.load((record + WORDS).to(tl.pointer_type(tl.uint16)) + tokens).to(tl.int32)
    words_by_four = tl.load((record + WORDS).to(tl.pointer_type(tl.int64)) + fours)
    words = tl.where(tokens < left, words, 0)

    new_top = tl.maximum(top, tl.max(scores, 0))
    keep = tl.exp2(top - new_top)
    weights = tl.exp2(scores - new_top[None, :])
    total = total * keep[None, :] + fold(weights, ROWS)

    # Weights times scales must fit a 16-bit float, whatever the scales are: the largest scale so
    # far is brought to 2 ** 13.
    old = lift_exponent(largest, BITS)
    largest = tl.maximum(largest, largest_word(words_by_four, fours * 4, left))
    lift = lift_exponent(largest, BITS)
    keep = keep * power(lift - old)
    if BITS == 8:
        scale = symmetric_scale(words) * power(lift)
        scaled = (weights * scale[:, None]).to(tl.float16)
        # Of what was rounded, since 128 is much beside a code.
        zero_terms = scaled.to(tl.float32)
    else:
        scale = affine_scale(words, lift)
        scaled = (weights * scale[:, None]).to(tl.float16)
        zero_terms = weights * (scale * zero_point(words))[:, None]
    zeros = zeros * keep[None, :] + fold(zero_terms, ROWS)
    parts = unpack(codes, BITS, ASSEMBLY)
    added = ()
    for i in tl.static_range(16 // BITS):
        # Tensor cores cut off what does not fit, which would add up over the blocks.
        sum_ = tl.dot(parts[i], scaled)
        kept = tl.fma(output[i], tl.broadcast_to(keep[None, :], sum_.shape), sum_)
        added = added + (kept,)  # noqa: RUF005
    return new_top, total, zeros, largest, added


@triton.jit
def _score(
    query,
    query_sum,
    record,
    left,
    seen,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ANCHORS: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    """Scores [tokens of a block, columns] in base 2; minus infinity from token `seen` on."""
    PAIRS: tl.constexpr = HEAD * BITS // 16
    PARTS: tl.constexpr = 8 // BITS
    LANES: tl.constexpr = max(16, PAIRS)
    RUNS: tl.constexpr = BLOCK // ANCHORS if ANCHORS > 0 else 0
    tokens = tl.arange(0, BLOCK)
    pairs = tl.arange(0, LANES)
    # Rows of anchors hold something else here, and are replaced below.
    rows = (record + (CODES - ANCHORS * PAIRS * 2)).to(tl.pointer_type(tl.uint16))
    places = rows + tokens[:, None] * PAIRS + pairs[None, :]
    if PAIRS < LANES:
        codes = tl.load(places, mask=(pairs < PAIRS)[None, :], other=0)
    else:
        codes = tl.load(places)
    words = tl.load((record + WORDS).to(tl.pointer_type(tl.uint16)) + tokens).to(tl.int32)
    # Words that nobody wrote may be NaN; the smallest scale is harmless.
    words = tl.where(tokens < left, words, 0)
    parts = unpack(codes, BITS, ASSEMBLY)
    scores = tl.dot(parts[0], query[0])
    for i in tl.static_range(1, 2 * PARTS):
        scores = tl.dot(parts[i], query[i], scores)
    if BITS == 8:
        scale = symmetric_scale(words)
        scores = scores * UNIT8
        zero = tl.full([BLOCK], 128.0, tl.float32)
    else:
        # The unit of the products is taken back by the scale, and from the zero points too.
        scale = affine_scale(words, unit_exponent(BITS))
        zero = zero_point(words)
        query_sum = query_sum * (2.0 ** -unit_exponent(BITS) / (POINTS >> BITS))
    if ANCHORS > 0:
        anchor = tl.arange(0, 16)
        early = tl.zeros([16, COLUMNS], tl.float32)
        for i in tl.static_range(PARTS):
            anchors = record.to(tl.pointer_type(tl.uint16)) + i * PAIRS
            anchors += anchor[:, None] * (HEAD // 2) + pairs[None, :]
            if PAIRS < LANES:
                anchors = tl.load(anchors, mask=(pairs < PAIRS)[None, :], other=0)
            else:
                anchors = tl.load(anchors)
            low, high = unpack(anchors, 8, ASSEMBLY)
            products = tl.zeros([16, COLUMNS], tl.float32)
            for j in tl.static_range(i, PARTS):
                products = tl.dot(low, query[j], products)
                products = tl.dot(high, query[j + PARTS], products)
            early += products * (UNIT8 / gain(i, BITS))
        spread = tl.broadcast_to(early[None, :, :], (BLOCK // 16, 16, COLUMNS))
        is_anchor = tokens < ANCHORS
        scores = tl.where(is_anchor[:, None], tl.reshape(spread, (BLOCK, COLUMNS)), scores)
        scale = tl.where(is_anchor, symmetric_scale(words), scale)
        all_zero: tl.constexpr = 128.0 * 2.0 ** unit_exponent(BITS) * (POINTS >> BITS)
        zero = tl.where(is_anchor, all_zero, zero)
    scores = (scores - zero[:, None] * query_sum[None, :]) * scale[:, None]
    if ANCHORS > 0:
        # The center of a run: the sum of the means of all runs before. Two 16-bit floats hold the
        # half of one.
        means = tl.sum(tl.reshape(scores, (RUNS, ANCHORS, COLUMNS)), 1) * (0.5 / ANCHORS)
        halves = tl.broadcast_to(means[:, None, :], (RUNS, 16 // RUNS, COLUMNS))
        halves = tl.reshape(halves, (16, COLUMNS))
        coarse = halves.to(tl.float16)
        fine = (halves - coarse.to(tl.float32)).to(tl.float16)
        half = tl.arange(0, 16)
        before = (half[None, :] // 2 < tokens[:, None] // ANCHORS).to(tl.float16)
        scores = tl.dot(before, coarse, scores)
        scores = tl.dot(before, fine, scores)
    visible = tokens[:, None] < (seen[None, :] if TOKENS > 1 else left)
    return tl.where(visible, scores, -float("inf"))
