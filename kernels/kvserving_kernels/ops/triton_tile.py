"""Tiles of keys and values for the prefill kernel: codes become 16-bit floats once for many rows.

Codes are masked in place, which leaves a subnormal 16-bit float. One fused multiply-add brings it
to (code - zero point) * 2 ** -9, which is exact, and one product to the value times a unit, which
is rounded. Each instruction takes two codes. Any order of channels does, and a tile has the one
that needs the fewest instructions (`as_tile` and `natural` are the ways there and back).
"""

import triton
import triton.language as tl

from kvserving_kernels.ops.triton_codes import affine_scale, affine_zero_point, symmetric_scale

CODE_UNIT = tl.constexpr(2.0**-9)
LARGEST = tl.constexpr(65504.0)


@triton.constexpr_function
def key_unit(bits):
    """What keys are multiplied by in a tile, anchors beside codes of so many bits too."""
    return {8: 2.0**-3, 4: 2.0**-8, 2: 2.0**-9}[bits]


@triton.constexpr_function
def value_unit(bits):
    """What values are multiplied by in a tile.

    As much as the largest scales allow, so that small values keep their digits: 16-bit floats have
    fewer of them below 2 ** -14.
    """
    return {8: 2.0**-3, 4: 2.0**-7, 2: 2.0**-9}[bits]


@triton.jit
def pairs_of(rows, COUNT: tl.constexpr):
    """Pairs of bytes [rows, COUNT] of the rows that start at these places."""
    return tl.load(rows[:, None] + tl.arange(0, COUNT)[None, :])


@triton.jit
def some_pairs_of(rows, wanted, COUNT: tl.constexpr):
    """The same of the wanted rows; zero in the others."""
    places = rows[:, None] + tl.arange(0, COUNT)[None, :]
    return tl.load(places, mask=wanted[:, None], other=0)


@triton.jit
def multipliers(words, unit: tl.constexpr, BITS: tl.constexpr):
    """Scales as 16-bit floats for a tile in this unit, and what takes off the zero points."""
    if BITS == 8:
        scale = symmetric_scale(words)
        point = tl.full(words.shape, 128.0, tl.float32)
    else:
        scale = affine_scale(words)
        point = affine_zero_point(words, BITS)
    scale = tl.minimum(scale * (unit / CODE_UNIT), LARGEST)
    return scale.to(tl.float16), (point * -CODE_UNIT).to(tl.float16)


@triton.jit
def values_of(pairs, offset, factor, BITS: tl.constexpr, ASSEMBLY: tl.constexpr):
    """((code * 2 ** -9) + offset) * factor for each code: of the lower bytes first, then the upper.

    `offset` and `factor` [rows] are 16-bit floats, `pairs` [rows, pairs] two bytes each. 8-bit
    codes count from -128.
    """
    offset = tl.broadcast_to(offset[:, None], pairs.shape)
    factor = tl.broadcast_to(factor[:, None], pairs.shape)
    if not ASSEMBLY:
        if BITS == 8:
            pairs = pairs ^ 0x8080
        found = ()
        for i in tl.static_range(16 // BITS):
            code = ((pairs >> (i * BITS)) & ((1 << BITS) - 1)).to(tl.float32)
            exact = code * CODE_UNIT + offset.to(tl.float32)
            rounded = (exact * factor.to(tl.float32)).to(tl.float16)
            found = found + (rounded,)  # noqa: RUF005  Triton knows no other way
        return found
    if BITS == 8:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x, y, g; mov.b32 g, 0x78007800;
            xor.b32 x, $2, 0x80808080; prmt.b32 y, x, 0, 0x4341; and.b32 x, x, 0x00ff00ff;
            fma.rn.f16x2 x, x, g, $3; fma.rn.f16x2 y, y, g, $3;
            mul.rn.f16x2 $0, x, $4; mul.rn.f16x2 $1, y, $4; }""",
            "=&r,=&r,r,r,r",
            [pairs, offset, factor],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    elif BITS == 4:  # noqa: RET505  one branch is compiled
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x, y, a, b, g, h; mov.b32 g, 0x78007800; mov.b32 h, 0x68006800;
            shr.b32 y, $4, 8; and.b32 x, $4, 0x000f000f; and.b32 a, $4, 0x00f000f0;
            and.b32 b, y, 0x00f000f0; and.b32 y, y, 0x000f000f;
            fma.rn.f16x2 x, x, g, $5; fma.rn.f16x2 a, a, h, $5;
            fma.rn.f16x2 y, y, g, $5; fma.rn.f16x2 b, b, h, $5;
            mul.rn.f16x2 $0, x, $6; mul.rn.f16x2 $1, a, $6;
            mul.rn.f16x2 $2, y, $6; mul.rn.f16x2 $3, b, $6; }""",
            "=&r,=&r,=&r,=&r,r,r,r",
            [pairs, offset, factor],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x, y, a, b, c, g, h, i, j;
            mov.b32 g, 0x78007800; mov.b32 h, 0x70007000;
            mov.b32 i, 0x68006800; mov.b32 j, 0x60006000; shr.b32 y, $8, 8;
            and.b32 x, $8, 0x00030003; and.b32 a, $8, 0x000c000c;
            and.b32 b, $8, 0x00300030; and.b32 c, $8, 0x00c000c0;
            fma.rn.f16x2 x, x, g, $9; fma.rn.f16x2 a, a, h, $9;
            fma.rn.f16x2 b, b, i, $9; fma.rn.f16x2 c, c, j, $9;
            mul.rn.f16x2 $0, x, $10; mul.rn.f16x2 $1, a, $10;
            mul.rn.f16x2 $2, b, $10; mul.rn.f16x2 $3, c, $10;
            and.b32 x, y, 0x00030003; and.b32 a, y, 0x000c000c;
            and.b32 b, y, 0x00300030; and.b32 c, y, 0x00c000c0;
            fma.rn.f16x2 x, x, g, $9; fma.rn.f16x2 a, a, h, $9;
            fma.rn.f16x2 b, b, i, $9; fma.rn.f16x2 c, c, j, $9;
            mul.rn.f16x2 $4, x, $10; mul.rn.f16x2 $5, a, $10;
            mul.rn.f16x2 $6, b, $10; mul.rn.f16x2 $7, c, $10; }""",
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
            [pairs, offset, factor],
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
def with_anchors(pairs, factor, low, high, ASSEMBLY: tl.constexpr):
    """`low` and `high` and what pairs of 8-bit codes add to them; `factor` [rows] may be zero."""
    factor = tl.broadcast_to(factor[:, None], pairs.shape)
    if not ASSEMBLY:
        pairs = pairs ^ 0x8080
        by = factor.to(tl.float32)
        first = ((pairs & 0xFF).to(tl.float32) - 128.0) * CODE_UNIT * by + low.to(tl.float32)
        second = ((pairs >> 8).to(tl.float32) - 128.0) * CODE_UNIT * by + high.to(tl.float32)
        return first.to(tl.float16), second.to(tl.float16)
    return tl.inline_asm_elementwise(
        """{ .reg .b32 x, y, g, z; mov.b32 g, 0x78007800; mov.b32 z, 0xb400b400;
        xor.b32 x, $2, 0x80808080; prmt.b32 y, x, 0, 0x4341; and.b32 x, x, 0x00ff00ff;
        fma.rn.f16x2 x, x, g, z; fma.rn.f16x2 y, y, g, z;
        fma.rn.f16x2 $0, x, $3, $4; fma.rn.f16x2 $1, y, $3, $5; }""",
        "=&r,=&r,r,r,r,r",
        [pairs, factor, low, high],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def hadamard_rows(rows, HEAD: tl.constexpr):
    """Rows [rows, HEAD] of 16-bit floats times a matrix of 1 and -1, as 32-bit floats.

    That is the Walsh-Hadamard transform times the square root of HEAD.
    """
    PART: tl.constexpr = min(HEAD, 128)
    channels = tl.arange(0, PART)
    bits = channels[:, None] & channels[None, :]
    bits ^= bits >> 4
    bits ^= bits >> 2
    bits ^= bits >> 1
    signs = (1.0 - 2.0 * (bits & 1).to(tl.float32)).to(rows.dtype)
    if HEAD == PART:
        product = tl.dot(rows, signs)
    else:
        halves = tl.permute(tl.reshape(rows, (rows.shape[0], 2, PART)), (0, 2, 1))
        low, high = tl.split(halves)
        low, high = tl.dot(low, signs), tl.dot(high, signs)
        halves = tl.permute(tl.join(low + high, low - high), (0, 2, 1))
        product = tl.reshape(halves, (rows.shape[0], HEAD))
    return product


@triton.jit
def joined(parts, PARTS: tl.constexpr):
    """One tile [rows, PARTS * pairs] of parts [rows, pairs], in the order of registers.

    Two neighbors of a part lie side by side, then those of the next part.
    """
    ROWS: tl.constexpr = parts[0].shape[0]
    HALF: tl.constexpr = parts[0].shape[1] // 2
    if PARTS == 2:
        tile = tl.join(parts[0], parts[1])
        tile = tl.reshape(tile, (ROWS, HALF, 2, 2))
        tile = tl.permute(tile, (0, 1, 3, 2))
    elif PARTS == 4:
        tile = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3]))
        tile = tl.reshape(tile, (ROWS, HALF, 2, 2, 2))
        tile = tl.permute(tile, (0, 1, 4, 3, 2))
    else:
        low = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3]))
        high = tl.join(tl.join(parts[4], parts[5]), tl.join(parts[6], parts[7]))
        tile = tl.reshape(tl.join(low, high), (ROWS, HALF, 2, 2, 2, 2))
        tile = tl.permute(tile, (0, 1, 5, 4, 3, 2))
    return tl.reshape(tile, (ROWS, PARTS * HALF * 2))


@triton.jit
def as_tile(rows, BITS: tl.constexpr):
    """Rows whose channels are in order, in the order of a tile of codes of so many bits."""
    ROWS: tl.constexpr = rows.shape[0]
    HEAD: tl.constexpr = rows.shape[1]
    QUARTER: tl.constexpr = HEAD * BITS // 32
    rows = tl.reshape(rows, (ROWS, 8 // BITS, QUARTER, 2, 2))
    return tl.reshape(tl.permute(rows, (0, 2, 4, 1, 3)), (ROWS, HEAD))


@triton.jit
def natural(tile, BITS: tl.constexpr):
    """The inverse of `as_tile`."""
    ROWS: tl.constexpr = tile.shape[0]
    HEAD: tl.constexpr = tile.shape[1]
    QUARTER: tl.constexpr = HEAD * BITS // 32
    tile = tl.reshape(tile, (ROWS, QUARTER, 2, 8 // BITS, 2))
    return tl.reshape(tl.permute(tile, (0, 3, 1, 4, 2)), (ROWS, HEAD))
