"""What the 16-bit parameter word of a token means, and how values become codes.

There are two kinds of words:

- *Symmetric*, for 8-bit codes: the upper half of a 32-bit float scale, rounded up, which is a
  bfloat16. Value = code * scale, codes from -127 to 127. It has all exponents of a 32-bit float,
  so that no scale overflows or loses its precision as a subnormal.
- *Affine*, for 2- and 4-bit codes: in the upper ten bits a scale of 5 exponent and 5 mantissa bits,
  rounded up, and a zero point of six bits below. Value = (code - zero point) * scale. The zero
  point counts 2 ** (bits - 6) of a code, and zero always lies in the range of the codes. A scale of
  all zero bits is zero.

Defined for every input: a NaN is stored as zero, and magnitudes above `MAXIMUM_VALUE`, infinity
among them, as that value. Both are counted. A group of equal values has scale zero or a scale that
reaches them; it is no special case for a reader. Codes are floor(x + 1/2) in 32-bit floats, so that
all implementations agree bit for bit.
"""

from typing import Final

MAXIMUM_VALUE: Final = 65504.0
"""Largest magnitude that is stored, the largest of a 16-bit float; larger ones are saturated."""

SYMMETRIC_LIMIT: Final = 127
"""Largest symmetric code; -128 is not used, so that a range is as wide below zero as above."""

SCALE_SHIFT: Final = 18
"""Bits of a 32-bit float below its 5 upper mantissa bits."""

SCALE_BIAS: Final = (127 - 16) << 5
"""Affine scale word 0 in units of the shifted float: the smallest scale is about 2 ** -16."""

SCALE_MAXIMUM: Final = (1 << 10) - 1
"""Largest affine scale word, about 2 ** 16; a range wider than the codes at it is clipped."""

ZERO_POINT_BITS: Final = 6
"""Bits of an affine zero point."""

ZERO_POINT_MAXIMUM: Final = (1 << ZERO_POINT_BITS) - 1
"""Largest affine zero point word."""


def zero_points_per_code(bits: int) -> int:
    """Zero point words per code: 2 ** (6 - bits)."""
    return 1 << (ZERO_POINT_BITS - bits)
