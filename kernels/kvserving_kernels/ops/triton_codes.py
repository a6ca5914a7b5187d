"""What the Triton kernels share: parameter words, and rows of codes to numbers.

The portable form: shifts and masks only, no inline assembly. All loads are masked, so that memory
that was never written is never read.
"""

import triton
import triton.language as tl

from kvserving_kernels.formats.parameters import (
    SCALE_BIAS,
    SCALE_SHIFT,
    ZERO_POINT_BITS,
    ZERO_POINT_MAXIMUM,
)

BIAS = tl.constexpr(SCALE_BIAS)
SHIFT = tl.constexpr(SCALE_SHIFT)
POINT_BITS = tl.constexpr(ZERO_POINT_BITS)
POINTS = tl.constexpr(1 << ZERO_POINT_BITS)
_POINT_MAXIMUM = tl.constexpr(ZERO_POINT_MAXIMUM)


@triton.jit
def symmetric_scale(words):
    """Scales of symmetric words."""
    return (words.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def affine_scale(words):
    """Scales of affine words."""
    scale_words = words.to(tl.int32) >> POINT_BITS
    scales = ((scale_words + BIAS) << SHIFT).to(tl.float32, bitcast=True)
    return tl.where(scale_words > 0, scales, 0.0)


@triton.jit
def affine_zero_point(words, BITS: tl.constexpr):
    """Zero points of affine words, in codes."""
    return (words.to(tl.int32) & _POINT_MAXIMUM).to(tl.float32) * (1.0 / (POINTS >> BITS))


@triton.jit
def load_words(section, tokens, valid):
    """Words [tokens] of a section of a record; zero, which means zero scale, where not valid."""
    words = section.to(tl.pointer_type(tl.uint16)) + tokens
    return tl.load(words, mask=valid, other=0).to(tl.int32)


@triton.jit
def load_codes(section, rows, valid, HEAD: tl.constexpr, LANES: tl.constexpr, BITS: tl.constexpr):
    """Codes [rows, lanes] as 32-bit floats; zero where not valid and beyond the head size."""
    ROW_BYTES: tl.constexpr = HEAD * BITS // 8
    lanes = tl.arange(0, LANES)
    mask = valid[:, None] & (lanes < HEAD)[None, :]
    places = section + rows[:, None] * ROW_BYTES + (lanes % ROW_BYTES)[None, :]
    raw = tl.load(places, mask=mask, other=0)
    if BITS == 8:
        codes = raw.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        shifts = (lanes // ROW_BYTES * BITS)[None, :]
        codes = ((raw.to(tl.int32) >> shifts) & ((1 << BITS) - 1)).to(tl.float32)
        codes = tl.where(mask, codes, 0.0)
    return codes
