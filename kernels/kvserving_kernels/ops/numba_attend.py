"""Attention of one query per sequence to stored codes, compiled by Numba: a CPU's decode step.

One pass over a sequence's blocks, per KV head. A few tokens' codes at a time become 32-bit floats
in a buffer that stays in the first-level cache, and meet all queries that share the head there.
Scales, zero points and centers are folded into scores and probabilities; the softmax goes along.
"""

import math
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import njit, prange

from kvserving_kernels.formats.parameters import (
    SCALE_BIAS,
    SCALE_SHIFT,
    ZERO_POINT_BITS,
    ZERO_POINT_MAXIMUM,
    zero_points_per_code,
)
from kvserving_kernels.ops.numba_plan import BYTES, FAST, PLAN, SIGNS, WORDS, compiled

TILE: Final = 16
"""Tokens unpacked at a time: up to 16 KiB, half of a usual first-level cache."""

ROUND: Final = np.float32(1.5 * 2**23)
"""Added to a small 32-bit float it leaves the nearest integer in the lower bits."""

EXPONENT_OFFSET: Final = np.int32(127 - int(np.float32(1.5 * 2**23).view(np.int32)))
SMALLEST: Final = np.float32(-126.0)
ZERO: Final = np.float32(0.0)
LOWEST: Final = np.float32(-np.inf)
LN2: Final = math.log(2.0)
# Of the Taylor series of 2 ** x: exact to a 32-bit float between -1/2 and 1/2.
C1, C2, C3, C4, C5, C6, C7 = (np.float32(LN2**k / math.factorial(k)) for k in range(1, 8))
PER_CODE_4: Final = zero_points_per_code(4)
PER_CODE_2: Final = zero_points_per_code(2)
MIDDLE_4: Final = np.int32(8)
MIDDLE_2: Final = np.int32(2)


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _unpack(memory, start, count, size, bits, tile):
    """Codes of `count` rows from a byte of memory on, less their middle, as floats [count * size].

    With both signs they add up to less, so that less is lost by rounding.
    """
    if bits == 8:
        codes = memory[start : start + count * size]
        for place in range(count * size):
            tile[place] = np.float32(np.int8(codes[place]))
    elif bits == 4:
        width = size // 2
        for row in range(count):
            codes = memory[start + row * width : start + (row + 1) * width]
            low = tile[row * size : row * size + width]
            high = tile[row * size + width : (row + 1) * size]
            for place in range(width):
                byte = np.int32(codes[place])
                low[place] = np.float32(np.int32(byte & 15) - MIDDLE_4)
                high[place] = np.float32(np.int32(byte >> 4) - MIDDLE_4)
    else:
        width = size // 4
        for row in range(count):
            codes = memory[start + row * width : start + (row + 1) * width]
            first = tile[row * size : row * size + width]
            second = tile[row * size + width : row * size + 2 * width]
            third = tile[row * size + 2 * width : row * size + 3 * width]
            fourth = tile[row * size + 3 * width : (row + 1) * size]
            for place in range(width):
                byte = np.int32(codes[place])
                first[place] = np.float32(np.int32(byte & 3) - MIDDLE_2)
                second[place] = np.float32(np.int32((byte >> 2) & 3) - MIDDLE_2)
                third[place] = np.float32(np.int32((byte >> 4) & 3) - MIDDLE_2)
                fourth[place] = np.float32(np.int32(byte >> 6) - MIDDLE_2)


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _dots(queries, tile, count, size, scores, at):
    """Products of queries [group, size] and rows [count * size] into scores[:, at:]."""
    for head in range(queries.shape[0]):
        query = queries[head]
        row = 0
        while row + 4 <= count:
            k0 = tile[row * size : (row + 1) * size]
            k1 = tile[(row + 1) * size : (row + 2) * size]
            k2 = tile[(row + 2) * size : (row + 3) * size]
            k3 = tile[(row + 3) * size : (row + 4) * size]
            s0 = s1 = s2 = s3 = ZERO
            for place in range(size):
                number = query[place]
                s0 += number * k0[place]
                s1 += number * k1[place]
                s2 += number * k2[place]
                s3 += number * k3[place]
            scores[head, at + row] = s0
            scores[head, at + row + 1] = s1
            scores[head, at + row + 2] = s2
            scores[head, at + row + 3] = s3
            row += 4
        while row < count:
            k0 = tile[row * size : (row + 1) * size]
            s0 = ZERO
            for place in range(size):
                s0 += query[place] * k0[place]
            scores[head, at + row] = s0
            row += 1


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _add_rows(weights, at, tile, count, size, sums):
    """Add rows [count * size] by weights[:, at:] to sums [group, size]."""
    for head in range(weights.shape[0]):
        out = sums[head]
        row = 0
        while row + 4 <= count:
            v0 = tile[row * size : (row + 1) * size]
            v1 = tile[(row + 1) * size : (row + 2) * size]
            v2 = tile[(row + 2) * size : (row + 3) * size]
            v3 = tile[(row + 3) * size : (row + 4) * size]
            w0 = weights[head, at + row]
            w1 = weights[head, at + row + 1]
            w2 = weights[head, at + row + 2]
            w3 = weights[head, at + row + 3]
            for place in range(size):
                out[place] += (w0 * v0[place] + w1 * v1[place]) + (w2 * v2[place] + w3 * v3[place])
            row += 4
        while row < count:
            v0 = tile[row * size : (row + 1) * size]
            w0 = weights[head, at + row]
            for place in range(size):
                out[place] += w0 * v0[place]
            row += 1


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _parameters(words, first, count, symmetric, bits, scales, scale_bits, zeros):
    """Scales and zero points less the middle; the first tokens have symmetric words."""
    for token in range(symmetric):
        scale_bits[token] = np.int32(words[first + token]) << 16
        zeros[token] = ZERO
    step = np.float32(1.0 / PER_CODE_4) if bits == 4 else np.float32(1.0 / PER_CODE_2)
    middle = np.float32(MIDDLE_4) if bits == 4 else np.float32(MIDDLE_2)
    for token in range(symmetric, count):
        word = np.int32(words[first + token])
        upper = word >> ZERO_POINT_BITS
        scale_bits[token] = (upper + SCALE_BIAS) << SCALE_SHIFT if upper > 0 else 0
        zeros[token] = np.float32(np.int32(word & ZERO_POINT_MAXIMUM)) * step - middle


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _fold_scores(scores, count, totals, scales, zeros, anchors):
    """Products with codes to products with keys."""
    for head in range(scores.shape[0]):
        row, total = scores[head], totals[head]
        for token in range(count):
            row[token] = (row[token] - total * zeros[token]) * scales[token]
        if anchors == 0:
            continue
        # The product with a center is the sum of the means of products over all runs before.
        center = ZERO
        for start in range(0, count, anchors):
            end = min(start + anchors, count)
            total = ZERO
            for token in range(start, end):
                total += row[token]
                row[token] += center
            center += total / np.float32(anchors)


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _highest(row, count, top):
    """The larger of `top` and the first numbers of a row; NaN is passed over."""
    t0 = t1 = t2 = t3 = top
    place = 0
    while place + 4 <= count:
        t0 = max(t0, row[place])
        t1 = max(t1, row[place + 1])
        t2 = max(t2, row[place + 2])
        t3 = max(t3, row[place + 3])
        place += 4
    while place < count:
        t0 = max(t0, row[place])
        place += 1
    return max(max(t0, t1), max(t2, t3))


# Reassociated, the rounding by addition would be optimized away.
@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _powers(row, count, top, powers, power_bits):
    """2 ** (number - top) of the first numbers of a row in their place; NaN stays NaN."""
    for place in range(count):
        number = row[place] - top
        number = SMALLEST if number < SMALLEST else number
        shifted = number + ROUND
        powers[place] = shifted
        x = number - (shifted - ROUND)
        one = np.float32(1.0)
        row[place] = one + x * (C1 + x * (C2 + x * (C3 + x * (C4 + x * (C5 + x * (C6 + x * C7))))))
    for place in range(count):
        power_bits[place] = np.int32(power_bits[place] + EXPONENT_OFFSET) << 23
    for place in range(count):
        row[place] *= powers[place]


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _fold_weights(row, count, scales, zeros):
    """Probabilities to weights of codes in their place; returns their sum and what zeros take."""
    total = taken = ZERO
    for token in range(count):
        total += row[token]
        row[token] *= scales[token]
        taken += row[token] * zeros[token]
    return total, taken


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _mix(row, factor):
    """The sums and differences of a rotation, by the factor that keeps lengths; its own inverse."""
    size = row.shape[0]
    block = size & -size
    half = 1
    while half < block:
        for start in range(0, size, 2 * half):
            upper = row[start : start + half]
            lower = row[start + half : start + 2 * half]
            for place in range(half):
                first, second = upper[place], lower[place]
                upper[place] = first + second
                lower[place] = first - second
        half *= 2
    for place in range(size):
        row[place] *= factor


def attend_some(
    plan, memory, words, queries, query_start, lengths, table, kv_heads, scale, signs, mixing,
    output, first, last,
):  # fmt: skip
    """Attention of the (sequence, KV head) pairs from `first` to `last`.

    Queries are rotated here, one by one, so that none is rounded differently in other company.
    """
    size, block = plan.head_size, plan.block_size
    group = queries.shape[1] // kv_heads
    query = np.empty((group, size), np.float32)
    sums = np.empty((group, size), np.float32)
    scores = np.empty((group, block), np.float32)
    tile = np.empty(TILE * size, np.float32)
    k_scales, k_zeros = np.empty(block, np.float32), np.empty(block, np.float32)
    v_scales, v_zeros = np.empty(block, np.float32), np.empty(block, np.float32)
    k_scale_bits, v_scale_bits = k_scales.view(np.int32), v_scales.view(np.int32)
    powers = np.empty(block, np.float32)
    power_bits = powers.view(np.int32)
    totals = np.empty(group, np.float32)
    tops = np.empty(group, np.float32)
    norms = np.empty(group, np.float32)
    takens = np.empty(group, np.float32)
    # Scores count powers of two.
    factor = np.float32(scale / LN2)
    for pair in range(first, last):
        sequence, kv_head = pair // kv_heads, pair % kv_heads
        token, length = query_start[sequence], lengths[sequence]
        if length <= 0 or query_start[sequence + 1] - token != 1:
            continue
        for head in range(group):
            total = ZERO
            for place in range(size):
                query[head, place] = queries[token, kv_head * group + head, place] * factor
                sums[head, place] = ZERO
            if plan.k_rotated:
                for place in range(size):
                    query[head, place] *= signs[place]
                _mix(query[head], mixing)
            for place in range(size):
                total += query[head, place]
            totals[head] = total
            tops[head] = LOWEST
            norms[head] = takens[head] = ZERO
        for index in range((length + block - 1) // block):
            count = min(block, length - index * block)
            early = min(count, plan.anchors)
            base = table[sequence, index] * plan.block_stride + kv_head * plan.head_stride
            row = np.int64(0)
            while row < count:
                if row < early:
                    bits, rows = 8, min(TILE, early - row)
                    start = base + plan.k_anchors + row * size
                else:
                    bits, rows = plan.k_bits, min(TILE, count - row)
                    start = base + plan.k_codes + (row - early) * (size * bits // 8)
                _unpack(memory, start, rows, size, bits, tile)
                _dots(query, tile, rows, size, scores, row)
                row += rows
            bits = plan.k_bits
            symmetric = count if bits == 8 else early
            start = (base + plan.k_params) // 2
            _parameters(words, start, count, symmetric, bits, k_scales, k_scale_bits, k_zeros)
            _fold_scores(scores, count, totals, k_scales, k_zeros, plan.anchors)
            bits = plan.v_bits
            symmetric = count if bits == 8 else 0
            start = (base + plan.v_params) // 2
            _parameters(words, start, count, symmetric, bits, v_scales, v_scale_bits, v_zeros)
            for head in range(group):
                top = _highest(scores[head], count, tops[head])
                faded = np.float32(math.exp((tops[head] - top) * np.float32(LN2)))
                tops[head] = top
                _powers(scores[head], count, top, powers, power_bits)
                total, taken = _fold_weights(scores[head], count, v_scales, v_zeros)
                norms[head] = norms[head] * faded + total
                takens[head] = takens[head] * faded + taken
                for place in range(size):
                    sums[head, place] *= faded
            row_bytes = size * plan.v_bits // 8
            for row in range(0, count, TILE):
                rows = min(TILE, count - row)
                start = base + plan.v_codes + row * row_bytes
                _unpack(memory, start, rows, size, plan.v_bits, tile)
                _add_rows(scores, row, tile, rows, size, sums)
        for head in range(group):
            for place in range(size):
                sums[head, place] = (sums[head, place] - takens[head]) / norms[head]
            if plan.v_rotated:
                _mix(sums[head], mixing)
                for place in range(size):
                    sums[head, place] *= signs[place]
            for place in range(size):
                output[token, kv_head * group + head, place] = sums[head, place]


_alone = njit(nogil=True, fastmath=FAST, error_model="numpy")(attend_some)


def attend_together(
    plan, memory, words, queries, query_start, lengths, table, kv_heads, scale, signs, mixing,
    output, shares, last,
):  # fmt: skip
    """The same for all pairs up to `last`, in as many shares as there are threads."""
    for share in prange(shares):
        _alone(
            plan, memory, words, queries, query_start, lengths, table, kv_heads, scale, signs,
            mixing, output, last * share // shares, last * (share + 1) // shares,
        )  # fmt: skip


FLOATS: Final = numba.types.Array(numba.types.float32, 3, "C")
NUMBERS: Final = numba.types.Array(numba.types.int32, 1, "C")
TABLE: Final = numba.types.Array(numba.types.int32, 2, "C")
SIGNATURE: Final = numba.types.void(
    PLAN, BYTES, WORDS, FLOATS, NUMBERS, NUMBERS, TABLE, numba.types.int64, numba.types.float64,
    SIGNS, numba.types.float32, FLOATS, numba.types.int64, numba.types.int64,
)  # fmt: skip


@cache
def attend_kernel(together: bool) -> Any:
    """Compiled `attend_together` or `attend_some`."""
    function = attend_together if together else attend_some
    return compiled(function, SIGNATURE, fastmath=FAST, parallel=together)
