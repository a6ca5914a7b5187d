"""Keys and values to codes in the pages, compiled by Numba: bit for bit what the reference stores.

So nothing here may be reassociated or fused. Tokens of a KV head go one after the other, which is
the order of their places; the center of a run grows with them.
"""

from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import njit, prange

from kvserving_kernels.formats.parameters import (
    MAXIMUM_VALUE,
    SCALE_BIAS,
    SCALE_MAXIMUM,
    SCALE_SHIFT,
    SYMMETRIC_LIMIT,
    ZERO_POINT_BITS,
    ZERO_POINT_MAXIMUM,
    zero_points_per_code,
)
from kvserving_kernels.ops.numba_plan import BYTES, PLAN, SIGNS, WORDS, compiled

LARGEST: Final = np.float32(MAXIMUM_VALUE)
NORMAL: Final = np.finfo(np.float32).tiny
INFINITE: Final = np.float32(np.inf)
HALF: Final = np.float32(0.5)
ZERO: Final = np.float32(0.0)
LIMIT: Final = np.int32(SYMMETRIC_LIMIT)
PER_CODE_4: Final = zero_points_per_code(4)
PER_CODE_2: Final = zero_points_per_code(2)


@njit(nogil=True, error_model="numpy")
def _take(values, row, counts):
    """Finite numbers of a vector into a row, and how many were not finite or too large."""
    odd = large = 0
    for place in range(row.shape[0]):
        number = values[place]
        size = abs(number)
        odd += not (size < INFINITE)
        large += size > LARGEST
        number = number if number == number else ZERO
        number = min(number, LARGEST)
        row[place] = max(number, -LARGEST)
    counts[0] += odd
    counts[1] += large


@njit(nogil=True, error_model="numpy")
def _rotate(row, signs, factor):
    """As `ops.rotation.rotate`, in its order; `factor` is the last of its steps."""
    size = row.shape[0]
    block = size & -size
    for place in range(size):
        row[place] *= signs[place]
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


@njit(nogil=True, error_model="numpy")
def _bounds(row):
    """Smallest and largest number of a row, zero among them."""
    l0 = l1 = l2 = l3 = ZERO
    h0 = h1 = h2 = h3 = ZERO
    for place in range(0, row.shape[0], 4):
        a, b, c, d = row[place], row[place + 1], row[place + 2], row[place + 3]
        l0, l1, l2, l3 = min(l0, a), min(l1, b), min(l2, c), min(l3, d)
        h0, h1, h2, h3 = max(h0, a), max(h1, b), max(h2, c), max(h3, d)
    return min(min(l0, l1), min(l2, l3)), max(max(h0, h1), max(h2, h3))


@njit(nogil=True, error_model="numpy")
def _round(row, divisor, offset, low, high, codes):
    """floor(number / divisor + offset + 1/2) of a row, within bounds."""
    for place in range(row.shape[0]):
        number = row[place] / divisor + offset + HALF
        code = np.int32(number)
        code = code - np.int32(np.float32(code) > number)
        codes[place] = min(max(code, low), high)


@njit(nogil=True, error_model="numpy")
def _write_symmetric(row, codes, target, words, at, cell, cell_bits):
    """Eight-bit codes of a row and its word."""
    low, high = _bounds(row)
    cell[0] = max(-low, high) / np.float32(SYMMETRIC_LIMIT)
    word = (np.int64(cell_bits[0]) + 0xFFFF) >> 16
    words[at] = word
    cell_bits[0] = word << 16
    divisor = cell[0] if cell[0] >= NORMAL else INFINITE
    # Adding a zero changes no number that is rounded down afterwards.
    _round(row, divisor, ZERO, -LIMIT, LIMIT, codes)
    for place in range(row.shape[0]):
        target[place] = np.uint8(codes[place])


@njit(nogil=True, error_model="numpy")
def _write_affine(row, bits, codes, target, words, at, cell, cell_bits):
    """Codes of a row in `bits` bits, packed, and its word."""
    top = (1 << bits) - 1
    per_code = np.float32(PER_CODE_4 if bits == 4 else PER_CODE_2)
    low, high = _bounds(row)
    wanted = (high - low) / np.float32(top)
    cell[0] = wanted
    upper = ((np.int64(cell_bits[0]) + ((1 << SCALE_SHIFT) - 1)) >> SCALE_SHIFT) - SCALE_BIAS
    upper = min(max(upper, 1), SCALE_MAXIMUM) if wanted > ZERO else 0
    cell_bits[0] = (upper + SCALE_BIAS) << SCALE_SHIFT if upper > 0 else 0
    divisor = cell[0] if cell[0] >= NORMAL else INFINITE
    point = np.int64(np.floor(-low / divisor * per_code + HALF))
    point = min(max(point, 0), ZERO_POINT_MAXIMUM)
    words[at] = upper << ZERO_POINT_BITS | point
    _round(row, divisor, np.float32(point) / per_code, np.int32(0), np.int32(top), codes)
    if bits == 4:
        width = row.shape[0] // 2
        for place in range(width):
            target[place] = np.uint8(codes[place] | codes[place + width] << 4)
    else:
        width = row.shape[0] // 4
        for place in range(width):
            lower = codes[place] | codes[place + width] << 2
            target[place] = np.uint8(
                lower | codes[place + 2 * width] << 4 | codes[place + 3 * width] << 6
            )


@njit(nogil=True, error_model="numpy")
def _read(plan, memory, words, base, place, row, cell, cell_bits):
    """The stored key of a place, less its center if it has one."""
    size = row.shape[0]
    word = np.int64(words[(base + plan.k_params) // 2 + place])
    if place < plan.anchors:
        start = base + plan.k_anchors + place * size
        cell_bits[0] = word << 16
        for channel in range(size):
            row[channel] = np.float32(np.int8(memory[start + channel])) * cell[0]
        return
    bits = plan.k_bits
    mask, parts = (1 << bits) - 1, 8 // bits
    width = size // parts
    upper = word >> ZERO_POINT_BITS
    cell_bits[0] = (upper + SCALE_BIAS) << SCALE_SHIFT if upper > 0 else 0
    scale = cell[0]
    per_code = np.float32(PER_CODE_4 if bits == 4 else PER_CODE_2)
    zero = np.float32(word & ZERO_POINT_MAXIMUM) / per_code
    start = base + plan.k_codes + (place - plan.anchors) * width
    codes = memory[start : start + width]
    for part in range(parts):
        target = row[part * width : (part + 1) * width]
        shift = part * bits
        for channel in range(width):
            code = np.float32(np.int32(codes[channel]) >> shift & mask)
            target[channel] = (code - zero) * scale


@njit(nogil=True, error_model="numpy")
def _add_mean(plan, memory, words, base, run, center, total, row, cell, cell_bits):
    """Add to a center the mean of a run of stored keys, one by one in their order."""
    first = run * plan.anchors
    for place in range(first, first + plan.anchors):
        _read(plan, memory, words, base, place, row, cell, cell_bits)
        if place == first:
            for channel in range(row.shape[0]):
                total[channel] = row[channel]
        else:
            for channel in range(row.shape[0]):
                total[channel] += row[channel]
    for channel in range(row.shape[0]):
        center[channel] += total[channel] / np.float32(plan.anchors)


def store_heads(plan, memory, words, keys, values, slots, signs, factor, counts, first, last):
    """Store tokens of the KV heads from `first` to `last`; `counts` [kv_heads, 2] are added to."""
    size, anchors = plan.head_size, plan.anchors
    row, other = np.empty(size, np.float32), np.empty(size, np.float32)
    center, total = np.zeros(size, np.float32), np.empty(size, np.float32)
    codes = np.empty(size, np.int32)
    cell = np.empty(1, np.float32)
    cell_bits = cell.view(np.int32)
    k_row, v_row = size * plan.k_bits // 8, size * plan.v_bits // 8
    for head in range(first, last):
        open_block, runs = np.int64(-1), np.int64(0)
        for token in range(slots.shape[0]):
            slot = slots[token]
            if slot < 0:
                continue
            block, place = slot // plan.block_size, slot % plan.block_size
            base = block * plan.block_stride + head * plan.head_stride
            _take(values[token, head], row, counts[head])
            if plan.v_rotated:
                _rotate(row, signs, factor)
            start = base + plan.v_codes + place * v_row
            target = memory[start : start + v_row]
            at = (base + plan.v_params) // 2 + place
            if plan.v_bits == 8:
                _write_symmetric(row, codes, target, words, at, cell, cell_bits)
            else:
                _write_affine(row, plan.v_bits, codes, target, words, at, cell, cell_bits)
            _take(keys[token, head], row, counts[head])
            if plan.k_rotated:
                _rotate(row, signs, factor)
            at = (base + plan.k_params) // 2 + place
            if place < anchors or plan.k_bits == 8:
                section = plan.k_anchors if anchors else plan.k_codes
                start = base + section + place * size
                target = memory[start : start + size]
                _write_symmetric(row, codes, target, words, at, cell, cell_bits)
                continue
            if block != open_block or place < runs * anchors:
                open_block, runs = block, np.int64(0)
                for channel in range(size):
                    center[channel] = ZERO
            while anchors and runs < place // anchors:
                _add_mean(plan, memory, words, base, runs, center, total, other, cell, cell_bits)
                runs += 1
            # Keys that are quantized per token have no center: it stays 0.
            for channel in range(size):
                row[channel] -= center[channel]
            start = base + plan.k_codes + (place - anchors) * k_row
            target = memory[start : start + k_row]
            _write_affine(row, plan.k_bits, codes, target, words, at, cell, cell_bits)


_heads = njit(nogil=True, error_model="numpy")(store_heads)


def store_together(plan, memory, words, keys, values, slots, signs, factor, counts, first, last):
    """The same with threads for the heads."""
    for head in prange(first, last):
        _heads(plan, memory, words, keys, values, slots, signs, factor, counts, head, head + 1)


FLOATS: Final = numba.types.Array(numba.types.float32, 3, "C")
SIGNATURE: Final = numba.types.void(
    PLAN, BYTES, WORDS, FLOATS, FLOATS, numba.types.Array(numba.types.int64, 1, "C"),
    SIGNS, numba.types.float32, numba.types.Array(numba.types.int64, 2, "C"),
    numba.types.int64, numba.types.int64,
)  # fmt: skip


@cache
def store_kernel(together: bool) -> Any:
    """Compiled `store_together` or `store_heads`."""
    return compiled(store_together if together else store_heads, SIGNATURE, parallel=together)
