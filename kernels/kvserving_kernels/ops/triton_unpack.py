"""Codes and parameter words as the decode kernel takes them: in place, in few instructions.

What the arithmetic unit for integers must do is what bounds the kernel on Hopper, so a code costs
half an instruction: pairs of bytes are masked, and what is left is a 16-bit float below the
smallest normal one, code * 2 ** -24, which tensor cores multiply at full speed.
"""

import triton
import triton.language as tl

from kvserving_kernels.formats.parameters import (
    SCALE_BIAS,
    SCALE_SHIFT,
    ZERO_POINT_BITS,
    ZERO_POINT_MAXIMUM,
)

UNIT8 = tl.constexpr(2.0**24)
"""One over the unit of masked 8-bit codes."""

POINTS = tl.constexpr(1 << ZERO_POINT_BITS)
_POINT_MASK = tl.constexpr(ZERO_POINT_MAXIMUM)
_SCALE_MASK = tl.constexpr(0xFFFF ^ ZERO_POINT_MAXIMUM)
_SCALE_STEP = tl.constexpr(1 << (SCALE_SHIFT - ZERO_POINT_BITS))
_BIAS = tl.constexpr(SCALE_BIAS)
_BIAS_BITS = tl.constexpr(SCALE_BIAS << SCALE_SHIFT)
_POINT_BITS = tl.constexpr(ZERO_POINT_BITS)
_EXPONENT = tl.constexpr(23 - SCALE_SHIFT)


@triton.constexpr_function
def gain(part, bits):
    """What queries of a part are multiplied by, so that the products of all parts have one unit."""
    return 2.0 ** ((8 - bits) // 2 - part * bits)


@triton.constexpr_function
def share(part, bits):
    """What a masked code of a part adds to the sum of the codes' channels, gain aside."""
    return (2 ** (bits * (part + 1)) - 1) / (2**bits - 1) / gain(0, bits)


@triton.constexpr_function
def unit_exponent(bits):
    """Products of queries and masked codes of so many bits lack 2 ** this."""
    return 24 - (8 - bits) // 2


@triton.constexpr_function
def lift_of_part(part, bits):
    """What a sum of masked codes of a part is multiplied by."""
    return 2.0 ** (24 - part * bits)


@triton.jit
def unpack(pairs, BITS: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Masked codes of pairs of bytes as 16-bit floats: those of the lower bytes, then the upper.

    All bits up to the end of the code times 2 ** -24: to leave those of lower codes where they are
    saves an instruction. 8-bit codes come out 128 too large, so that they have no sign.
    """
    if not ASSEMBLY:
        parts = ()
        if BITS == 8:
            pairs = pairs ^ 0x8080
        for i in tl.static_range(16 // BITS):
            shifted = (pairs >> (8 * (i * BITS // 8))).to(tl.uint16)
            code = shifted & ((1 << (i * BITS % 8 + BITS)) - 1)
            parts = parts + (code.to(tl.uint16).to(tl.float16, bitcast=True),)  # noqa: RUF005
        return parts
    # The same on two pairs at a time.
    if BITS == 8:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x; xor.b32 x, $2, 0x80808080; and.b32 $0, x, 0x00ff00ff;
            prmt.b32 $1, x, 0, 0x4341; }""",
            "=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    elif BITS == 4:  # noqa: RET505  one branch is compiled
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x; and.b32 $0, $4, 0x000f000f; and.b32 $1, $4, 0x00ff00ff;
            prmt.b32 x, $4, 0, 0x4341; and.b32 $2, x, 0x000f000f; mov.b32 $3, x; }""",
            "=r,=r,=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x; and.b32 $0, $8, 0x00030003; and.b32 $1, $8, 0x000f000f;
            and.b32 $2, $8, 0x003f003f; and.b32 $3, $8, 0x00ff00ff; prmt.b32 x, $8, 0, 0x4341;
            and.b32 $4, x, 0x00030003; and.b32 $5, x, 0x000f000f;
            and.b32 $6, x, 0x003f003f; mov.b32 $7, x; }""",
            "=r,=r,=r,=r,=r,=r,=r,=r,r",
            [pairs],
            dtype=(
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
            ),
            is_pure=True,
            pack=2,
        )


@triton.jit
def affine_scale(words, exponent):
    """Scales of affine words times 2 ** exponent.

    That of zero is not zero, but all codes beside it are.
    """
    upper = (words & _SCALE_MASK) * _SCALE_STEP + (_BIAS_BITS + (exponent << 23))
    return upper.to(tl.float32, bitcast=True)


@triton.jit
def zero_point(words):
    """Zero point words. A 32-bit float of 2 ** 23 and more counts in its lowest bits."""
    number = (words & _POINT_MASK) | 0x4B000000
    return number.to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def lift_exponent(word, BITS: tl.constexpr):
    """Of the power of two that brings the scale of a word to 2 ** 13 or just above."""
    exponent = word >> 7 if BITS == 8 else ((word >> _POINT_BITS) + _BIAS) >> _EXPONENT
    # A scale of less than 2 ** -99 is nothing beside any other.
    return 140 - tl.maximum(exponent, 28)


@triton.jit
def power(exponent):
    """2 ** exponent, from -127, which gives zero, to 127."""
    return ((tl.maximum(exponent, -127) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def largest_word(fours, first, left):
    """The largest of the words, of which four are in each 64-bit number, of the tokens left."""
    # Of a number that is partly beyond, only the words before count.
    bits = tl.minimum(tl.maximum(left - first, 0), 4) * 16
    inside = (1 << tl.minimum(bits, 63).to(tl.int64)) - 1
    fours = tl.where(bits < 64, fours & inside, fours)
    low = tl.maximum(fours & 0xFFFF, (fours >> 16) & 0xFFFF)
    high = tl.maximum((fours >> 32) & 0xFFFF, (fours >> 48) & 0xFFFF)
    return tl.max(tl.maximum(low.to(tl.int32), high.to(tl.int32)), 0)


@triton.jit
def fold(values, ROWS: tl.constexpr):
    """Sums [ROWS, columns] of rows that are ROWS apart: they lie in one thread."""
    return tl.sum(tl.reshape(values, (values.shape[0] // ROWS, ROWS, values.shape[1])), 0)
