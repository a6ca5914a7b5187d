"""Rows of keys or values to codes and words in a record, a tile of tokens at a time.

Whatever rounds is done in the order of `ops.quantize`, `ops.rotation` and `ops.reference`, so that
a token's codes do not depend on the tile it is in. Kernels that use it are compiled without fused
multiply-adds, which round once where those round twice.
"""

import triton
import triton.language as tl

from kvserving_kernels.formats.parameters import (
    MAXIMUM_VALUE,
    SCALE_MAXIMUM,
    SCALE_SHIFT,
    SYMMETRIC_LIMIT,
    ZERO_POINT_MAXIMUM,
)
from kvserving_kernels.ops.triton_codes import (
    BIAS,
    POINT_BITS,
    POINTS,
    SHIFT,
    affine_scale,
    symmetric_scale,
)

_SCALE_MAXIMUM = tl.constexpr(SCALE_MAXIMUM)
_BELOW_SHIFT = tl.constexpr((1 << SCALE_SHIFT) - 1)
_LIMIT = tl.constexpr(float(SYMMETRIC_LIMIT))
_POINT_MAXIMUM = tl.constexpr(float(ZERO_POINT_MAXIMUM))
_LARGEST = tl.constexpr(MAXIMUM_VALUE)
_TINY = tl.constexpr(2.0**-126)


@triton.jit
def sanitize_rows(rows):
    """Finite rows: NaN becomes zero, large magnitudes the largest one."""
    rows = tl.where(rows == rows, rows, 0.0)
    return tl.minimum(tl.maximum(rows, -_LARGEST), _LARGEST)


@triton.jit
def count_odd(keys, values, counters):
    """Add the values that were not finite, and those that were saturated, to the counters [2]."""
    if tl.max(tl.maximum(_magnitudes(keys), _magnitudes(values))) > _LARGEST:
        odd = tl.sum(_is_nonfinite(keys) + _is_nonfinite(values))
        large = tl.sum(_is_large(keys) + _is_large(values))
        tl.atomic_add(counters, odd.to(tl.int64), sem="relaxed")
        tl.atomic_add(counters + 1, large.to(tl.int64), sem="relaxed")


@triton.jit
def _magnitudes(rows):
    # What is not a number compares as unlike itself.
    return tl.where(rows == rows, tl.abs(rows), float("inf"))


@triton.jit
def _is_nonfinite(rows):
    return (_magnitudes(rows) == float("inf")).to(tl.int32)


@triton.jit
def _is_large(rows):
    return (tl.abs(rows) > _LARGEST).to(tl.int32)


@triton.jit
def rotate_rows(rows, signs, ROWS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr):
    """Rotated rows [ROWS, LANES], by the additions of `rotation.rotate`; `signs` [LANES].

    The diagonal blocks have 2 ** STAGES channels.
    """
    rows = rows * signs[None, :]
    for stage in tl.static_range(STAGES):
        rows = _sums_and_differences(rows, ROWS, LANES, 1 << stage)
    return rows * (1 << STAGES) ** -0.5


@triton.jit
def rotate_both(k, v, signs, ROWS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr):
    """Both tiles [ROWS, LANES] rotated together: threads then meet half as often."""
    both = tl.reshape(tl.permute(tl.join(k, v), (0, 2, 1)), (2 * ROWS, LANES))
    both = rotate_rows(both, signs, 2 * ROWS, LANES, STAGES)
    return tl.split(tl.permute(tl.reshape(both, (ROWS, 2, LANES)), (0, 2, 1)))


@triton.jit
def _sums_and_differences(rows, ROWS: tl.constexpr, LANES: tl.constexpr, HALF: tl.constexpr):
    """In place of lanes that are HALF apart, their sum and their difference."""
    pairs = tl.reshape(rows, (ROWS, LANES // (2 * HALF), 2, HALF))
    first, second = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    pairs = tl.permute(tl.join(first + second, first - second), (0, 1, 3, 2))
    return tl.reshape(pairs, (ROWS, LANES))


@triton.jit
def write_rows(
    rows,
    section,
    places,
    words,
    valid,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    BITS: tl.constexpr,
):
    """Write rows [ROWS, LANES] to rows `places` of a section and to pointers `words`, where valid.

    Lanes beyond the head size must hold zero.
    """
    if BITS == 8:
        packed, bits = _symmetric(rows)
    else:
        numbers, bits = _affine(rows, BITS)
        packed = _pack(numbers, ROWS, HEAD, LANES, BITS)
    ROW_BYTES: tl.constexpr = HEAD * BITS // 8
    bytes_ = tl.arange(0, LANES * BITS // 8)[None, :]
    targets = section + places[:, None] * ROW_BYTES + bytes_
    tl.store(targets, packed.to(tl.uint8), mask=valid[:, None] & (bytes_ < ROW_BYTES))
    tl.store(words, bits.to(tl.uint16), mask=valid)


@triton.jit
def _symmetric(rows):
    wanted = tl.div_rn(tl.max(tl.abs(rows), 1), _LIMIT)
    bits = (wanted.to(tl.int32, bitcast=True) + 0xFFFF) >> 16
    scale = symmetric_scale(bits)
    divisor = tl.where(scale >= _TINY, scale, float("inf"))
    numbers = tl.floor(tl.div_rn(rows, divisor[:, None]) + 0.5)
    numbers = tl.minimum(tl.maximum(numbers, -_LIMIT), _LIMIT).to(tl.int32)
    return numbers & 255, bits


@triton.jit
def _affine(rows, BITS: tl.constexpr):
    TOP: tl.constexpr = ((1 << BITS) - 1) * 1.0
    PER_CODE: tl.constexpr = (POINTS >> BITS) * 1.0
    # Lanes beyond the head size hold zero, which is always inside the range.
    low = tl.minimum(tl.min(rows, 1), 0.0)
    high = tl.maximum(tl.max(rows, 1), 0.0)
    wanted = tl.div_rn(high - low, TOP)
    shifted = (wanted.to(tl.int32, bitcast=True) + _BELOW_SHIFT) >> SHIFT
    scale_word = tl.minimum(tl.maximum(shifted - BIAS, 1), _SCALE_MAXIMUM)
    scale_word = tl.where(wanted > 0, scale_word, 0)
    scale = affine_scale(scale_word << POINT_BITS)
    divisor = tl.where(scale >= _TINY, scale, float("inf"))
    point = tl.floor(tl.div_rn(-low, divisor) * PER_CODE + 0.5)
    point = tl.minimum(tl.maximum(point, 0.0), _POINT_MAXIMUM)
    numbers = tl.floor(
        tl.div_rn(rows, divisor[:, None]) + (point * (1.0 / PER_CODE))[:, None] + 0.5
    )
    numbers = tl.minimum(tl.maximum(numbers, 0.0), TOP).to(tl.int32)
    return numbers, (scale_word << POINT_BITS) | point.to(tl.int32)


@triton.jit
def _pack(numbers, ROWS: tl.constexpr, HEAD: tl.constexpr, LANES: tl.constexpr, BITS: tl.constexpr):
    """Bytes [ROWS, LANES * BITS / 8] of codes [ROWS, LANES], as `quantize.pack` has them."""
    PARTS: tl.constexpr = 8 // BITS
    WIDTH: tl.constexpr = LANES // PARTS
    if HEAD == LANES:
        shifts = (tl.arange(0, PARTS) * BITS)[None, :, None]
        packed = tl.sum(tl.reshape(numbers, (ROWS, PARTS, WIDTH)) << shifts, 1)
    else:
        packed = tl.zeros([ROWS, WIDTH], tl.int32)
        for part in tl.static_range(PARTS):
            # Bytes beyond the row are not written, so any lane does for them.
            lanes = tl.minimum(tl.arange(0, WIDTH) + part * (HEAD // PARTS), LANES - 1)
            lanes = tl.broadcast_to(lanes[None, :], (ROWS, WIDTH))
            packed |= tl.gather(numbers, lanes, 1) << (part * BITS)
    return packed
