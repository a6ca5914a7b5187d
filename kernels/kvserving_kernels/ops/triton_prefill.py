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

from kvserving_kernels.ops.triton_prefill_step import pages_of, step, words_of
from kvserving_kernels.ops.triton_tile import as_tile, hadamard_rows, key_unit, natural, value_unit

LOG2_E = tl.constexpr(1.4426950408889634)
FLOOR = tl.constexpr(-1e30)
"""A maximum before any score; finite, so that the difference of two is never NaN."""

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
    ids = pages_of(table, first, end, BLOCKS)
    k_words, v_words = words_of(
        at_head, ids, block_stride, BLOCK, BLOCKS, ANCHORS, K_WORDS, V_WORDS
    )
    ids = pages_of(table, first + BLOCKS, end, BLOCKS)
    for index in tl.range(first, whole, BLOCKS, num_stages=STAGES):
        top, total, sums, ids, k_words, v_words = step(
            query, unit, table, at_head, block_stride, index, end, length, seen, top, total, sums,
            ids, k_words, v_words, False, HEAD, BLOCK, ROWS, BLOCKS, APART, ANCHORS, K_BITS, V_BITS,
            K_CODES, K_WORDS, V_CODES, V_WORDS, ASSEMBLY,
        )  # fmt: skip
    for index in tl.range(whole, end, BLOCKS, num_stages=STAGES):
        top, total, sums, ids, k_words, v_words = step(
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
