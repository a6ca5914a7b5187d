"""Triton kernel of attention of prefill chunks: many queries per sequence, read in tiles.

One program takes a tile of query rows of one sequence and KV head, tokens times the query heads of
the group, and goes over the blocks that its last row sees. Keys and values of a block become 16-bit
tiles once for all rows, and nothing of the context is written to memory. What the tile does about
codes is in `triton_tile`; what is particular here:

- Rows of a tile of keys are in an order in which each thread of a tensor core's tile of scores has
  whole runs. The sums over runs, of which the centers of keys are made, then move little.
- Weights are 2 ** 15 at most, not 1, so that small ones beside a sink still count in 16 bits.
- A mask is applied in the last blocks only.
- Where tiles are few, several programs share the blocks of one, and `join_kernel` merges them.
"""

import triton
import triton.language as tl

from kvserving_kernels.ops.triton_tile import (
    as_tile,
    hadamard_rows,
    joined,
    key_unit,
    multipliers,
    natural,
    pairs_of,
    some_pairs_of,
    value_unit,
    values_of,
    with_anchors,
)

LOG2_E = tl.constexpr(1.4426950408889634)
FLOOR = tl.constexpr(-1e30)
"""A maximum before any score; finite, so that the difference of two is never NaN."""

LIFT = tl.constexpr(15.0)
"""Weights are at most 2 ** this."""

LEAST_SHARE = tl.constexpr(8)
"""Blocks of a share at least: fewer cost more to merge than they gain."""

_RUNTIME = [
    "scale", "most_shares", "least", "rows", "sequences", "query_stride", "table_stride",
    "block_stride", "record_stride", "output_stride",
]  # fmt: skip
"""Arguments whose values must not lead to another compilation."""

_UNALIGNED = ["query_start", "lengths", "block_table"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_UNALIGNED)
def prefill_kernel(
    queries,
    records,
    block_table,
    query_start,
    lengths,
    signs,
    turned,
    output,
    means,
    stats,
    scale,
    least,
    rows,
    sequences,
    query_stride,
    table_stride,
    block_stride,
    record_stride,
    output_stride,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
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
    K_ROTATED: tl.constexpr,
    V_ROTATED: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Output of a tile, or of a share of it: means [shares, rows, heads, HEAD] and log-sum-exps.

    Sequences with fewer than `least` queries are left alone. Rows after all queries become zero.
    """
    head = tl.program_id(0)
    heads = tl.num_programs(0) * GROUP
    owner, start, count, length, token, shares = _tile(
        query_start, lengths, tl.program_id(1), tl.num_programs(2), least, rows, sequences,
        BLOCK, GROUP, ROWS,
    )  # fmt: skip
    share = tl.program_id(2)
    if share >= shares:
        return
    TOKENS: tl.constexpr = ROWS // GROUP
    row = tl.arange(0, ROWS)
    tokens = token + row // GROUP
    inside = (row < TOKENS * GROUP) & (tokens < count)
    # Tokens that a row sees, and all rows.
    seen = length - count + 1 + tokens
    blocks = _blocks(length, count, token, TOKENS, BLOCK)
    first = (blocks.to(tl.int64) * share // shares).to(tl.int32)
    end = (blocks.to(tl.int64) * (share + 1) // shares).to(tl.int32)
    seen = tl.minimum(seen, end * BLOCK)
    whole = tl.minimum(tl.maximum(length - count + 1 + token, 0) // BLOCK, end)
    whole = first + tl.maximum(whole - first, 0) // BLOCKS * BLOCKS

    channels = tl.arange(0, HEAD)
    asked = (start + tokens).to(tl.int64)
    member = head * GROUP + row % GROUP
    places = asked * tl.multiple_of(query_stride, 8) + member * HEAD
    query = tl.load(
        queries + places[:, None] + channels[None, :], mask=inside[:, None], other=0.0
    ).to(tl.float32)
    if K_ROTATED:
        query = query * tl.load(signs + channels)[None, :]
        query = hadamard_rows(query.to(tl.float16), HEAD) * (1.0 / HEAD**0.5)
    query = as_tile(query.to(tl.float16), K_BITS)
    # Only what was loaded stays in shared memory; else each block would bring it to registers.
    own = turned + (asked * heads + member)[:, None] * HEAD + channels[None, :]
    tl.store(own, query, mask=inside[:, None])
    tl.debug_barrier()
    query = tl.load(own, mask=inside[:, None], other=0.0)
    unit = scale * (LOG2_E / key_unit(K_BITS))

    top = tl.full([ROWS], FLOOR, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, HEAD], tl.float32)
    table = block_table + owner.to(tl.int64) * table_stride
    at_head = records + tl.multiple_of(head * record_stride.to(tl.int64), 16)
    ids = _ids(table, first, end, BLOCKS)
    k_words, v_words = _words(at_head, ids, block_stride, BLOCK, BLOCKS, ANCHORS, K_WORDS, V_WORDS)
    ids = _ids(table, first + BLOCKS, end, BLOCKS)
    for index in tl.range(first, whole, BLOCKS, num_stages=STAGES):
        top, total, sums, ids, k_words, v_words = _step(
            query, unit, table, at_head, block_stride, index, end, length, seen, top, total, sums,
            ids, k_words, v_words, False, HEAD, BLOCK, ROWS, BLOCKS, APART, ANCHORS, K_BITS, V_BITS,
            K_CODES, K_WORDS, V_CODES, V_WORDS, ASSEMBLY,
        )  # fmt: skip
    for index in tl.range(whole, end, BLOCKS, num_stages=STAGES):
        top, total, sums, ids, k_words, v_words = _step(
            query, unit, table, at_head, block_stride, index, end, length, seen, top, total, sums,
            ids, k_words, v_words, True, HEAD, BLOCK, ROWS, BLOCKS, APART, ANCHORS, K_BITS, V_BITS,
            K_CODES, K_WORDS, V_CODES, V_WORDS, ASSEMBLY,
        )  # fmt: skip

    # Without a score the sums are zero already.
    result = natural(sums / tl.where(total > 0, total, 1.0)[:, None], V_BITS)
    if V_ROTATED:
        # As a mean of a tile's rows it fits 16 bits, and two such parts have its digits.
        coarse = result.to(tl.float16)
        fine = (result - coarse.to(tl.float32)).to(tl.float16)
        result = hadamard_rows(coarse, HEAD) + hadamard_rows(fine, HEAD)
        result *= tl.load(signs + channels)[None, :] * (1.0 / HEAD**0.5)
    result *= 1.0 / value_unit(V_BITS)
    if shares == 1:
        first_of = output + asked * tl.multiple_of(output_stride, 8) + member * HEAD
        target = first_of[:, None] + channels[None, :]
        tl.store(target, result.to(output.dtype.element_ty), mask=inside[:, None])
    else:
        at = (share.to(tl.int64) * rows + asked) * heads + member
        logs = tl.where(total > 0, top + tl.log2(total), -float("inf"))
        tl.store(stats + at, logs, mask=inside)
        tl.store(means + at[:, None] * HEAD + channels[None, :], result, mask=inside[:, None])


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_UNALIGNED)
def join_kernel(
    query_start,
    lengths,
    output,
    means,
    stats,
    most_shares,
    least,
    rows,
    sequences,
    output_stride,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
):
    """Output of PART rows of a tile that several programs share: by their log-sum-exp."""
    head = tl.program_id(0)
    heads = tl.num_programs(0) * GROUP
    _, start, count, _, token, shares = _tile(
        query_start, lengths, tl.program_id(1), most_shares, least, rows, sequences,
        BLOCK, GROUP, ROWS,
    )  # fmt: skip
    if shares <= 1:
        return
    row = tl.program_id(2) * PART + tl.arange(0, PART)
    tokens = token + row // GROUP
    inside = (row < ROWS // GROUP * GROUP) & (tokens < count)
    channels = tl.arange(0, HEAD)
    asked = (start + tokens).to(tl.int64)
    member = head * GROUP + row % GROUP
    top = tl.full([PART], FLOOR, tl.float32)
    total = tl.zeros([PART], tl.float32)
    result = tl.zeros([PART, HEAD], tl.float32)
    for share in range(shares):
        places = (tl.cast(share, tl.int64) * rows + asked) * heads + member
        stat = tl.load(stats + places, mask=inside, other=-float("inf"))
        part = tl.load(
            means + places[:, None] * HEAD + channels[None, :], mask=inside[:, None], other=0.0
        )
        new_top = tl.maximum(top, stat)
        keep = tl.exp2(top - new_top)
        weight = tl.exp2(stat - new_top)
        top = new_top
        total = total * keep + weight
        result = result * keep[:, None] + part * weight[:, None]
    result = result / tl.where(total > 0, total, 1.0)[:, None]
    first_of = output + asked * tl.multiple_of(output_stride, 8) + member * HEAD
    target = first_of[:, None] + channels[None, :]
    tl.store(target, result.to(output.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _tile(
    query_start,
    lengths,
    place,
    most_shares,
    least,
    rows,
    sequences,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Which tile lies at a place of the grid, and by how many programs it is shared.

    Its sequence, that one's first query, queries and tokens, and the tile's first token among
    these queries; no program without a tile. Each sequence has room for its tiles from place
    `first query // tokens of a tile + its number` on. What follows all queries counts as a
    sequence without tokens.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    owner = tl.full([], 0, tl.int32)
    high = sequences.to(tl.int32)
    while owner < high:
        middle = (owner + high + 1) // 2
        before = tl.load(query_start + middle).to(tl.int32) // TOKENS + middle <= place
        owner = tl.where(before, middle, owner)
        high = tl.where(before, high, middle - 1)
    real = owner < sequences
    start = tl.load(query_start + owner).to(tl.int32)
    after = tl.load(query_start + owner + 1, mask=real, other=0).to(tl.int32)
    count = tl.where(real, after, rows) - start
    length = tl.load(lengths + owner, mask=real, other=0).to(tl.int32)
    tiles = tl.cdiv(count, TOKENS)
    # The last tiles have most to do, and begin first.
    token = (tiles - 1 - (place - start // TOKENS - owner)) * TOKENS
    blocks = _blocks(length, count, token, TOKENS, BLOCK)
    shares = tl.maximum(tl.minimum(blocks // LEAST_SHARE, most_shares), 1)
    shares = tl.where((token >= 0) & ((count >= least) | (owner >= sequences)), shares, 0)
    return owner, start, count, length, token, shares


@triton.jit
def _blocks(length, count, token, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """Blocks that the last row of a tile sees."""
    most = length - count + tl.minimum(token + TOKENS, count)
    return tl.cdiv(tl.maximum(most, 0), BLOCK)


@triton.jit
def _place(BLOCK: tl.constexpr, BLOCKS: tl.constexpr, ANCHORS: tl.constexpr):
    """Place in its block of the token in each row of a tile."""
    place = tl.arange(0, BLOCK * BLOCKS) % BLOCK
    if ANCHORS > 0:
        # Of eight neighbors, the tensor core gives each of four threads two.
        place = (place // 2 % 4) * (BLOCK // 4) + place // 8 * 2 + place % 2
    return place


@triton.jit
def _ids(table, index, end, BLOCKS: tl.constexpr):
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
def _words(
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
def _step(
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
    next_words = _words(records, ids, block_stride, BLOCK, BLOCKS, ANCHORS, K_WORDS, V_WORDS)
    ids = _ids(table, index + 2 * BLOCKS, end, BLOCKS)
    column = tl.arange(0, BLOCK * BLOCKS)
    place = _place(BLOCK, BLOCKS, ANCHORS)
    position = index * BLOCK + column // BLOCK * BLOCK + place
    record = _records(records, _ids(table, index, end, BLOCKS), block_stride, BLOCK, BLOCKS)
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
