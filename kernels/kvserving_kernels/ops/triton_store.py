"""Triton kernel that turns vectors into codes: one program per token and KV head."""

from typing import Final

import torch
import triton
import triton.language as tl

from kvserving_kernels.formats.layout import PageLayout, Section
from kvserving_kernels.formats.parameters import (
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
    affine_zero_point,
    load_words,
    symmetric_scale,
)

_SCALE_MAXIMUM = tl.constexpr(SCALE_MAXIMUM)
_BELOW_SHIFT = tl.constexpr((1 << SCALE_SHIFT) - 1)
_LIMIT = tl.constexpr(float(SYMMETRIC_LIMIT))
_POINT_MAXIMUM = tl.constexpr(float(ZERO_POINT_MAXIMUM))
_TINY = tl.constexpr(2.0**-126)

ALL_PLACES: Final = 1 << 30
"""End of a range of places that never ends."""


def store_rows(
    page: PageLayout,
    vectors: torch.Tensor,
    slots: torch.Tensor,
    records: torch.Tensor,
    codes: Section,
    words: Section,
    bits: int,
    places: range,
    anchors: int,
) -> None:
    """Write vectors [tokens, kv_heads, channels] of 32-bit floats with places in the given range.

    With `anchors`, the center of the token's run of so many tokens is taken off first; the runs
    before it must have been stored.
    """
    store_kernel[(vectors.shape[0], vectors.shape[1])](
        vectors,
        slots,
        records,
        vectors.stride(0),
        vectors.stride(1),
        records.stride(0),
        records.stride(1),
        places.start,
        places.stop,
        BLOCK=page.block_size,
        HEAD=page.head_size,
        CODES=codes.offset_bytes,
        ROW_BYTES=codes.row_bytes,
        LANES=triton.next_power_of_2(codes.row_bytes),
        WORDS=words.offset_bytes,
        BITS=bits,
        ANCHORS=anchors,
    )


@triton.jit
def store_kernel(
    vectors,
    slots,
    records,
    token_stride,
    head_stride,
    block_stride,
    record_stride,
    first,
    end,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    CODES: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
    BITS: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    """Write the vector of one token and KV head, if its place is in [first, end)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    place = slot % BLOCK
    if (slot >= 0) & (place >= first) & (place < end):
        record = records + (slot // BLOCK) * block_stride + head * record_stride
        source = vectors + token * token_stride + head * head_stride
        codes = record + CODES + (place - ANCHORS) * ROW_BYTES
        word = (record + WORDS).to(tl.pointer_type(tl.uint16)) + place
        if BITS == 8:
            _write_symmetric(source, codes, word, ROW_BYTES, LANES)
        else:
            _write_affine(
                source,
                record,
                place,
                codes,
                word,
                HEAD,
                ROW_BYTES,
                LANES,
                CODES,
                WORDS,
                BITS,
                ANCHORS,
            )


@triton.jit
def _write_symmetric(source, codes, word, WIDTH: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    values = tl.load(source + lanes, mask=lanes < WIDTH, other=0.0)
    wanted = tl.div_rn(tl.max(tl.abs(values)), _LIMIT)
    bits = (wanted.to(tl.int32, bitcast=True) + 0xFFFF) >> 16
    scale = symmetric_scale(bits)
    divisor = tl.where(scale >= _TINY, scale, float("inf"))
    numbers = tl.floor(tl.div_rn(values, divisor) + 0.5)
    numbers = tl.minimum(tl.maximum(numbers, -_LIMIT), _LIMIT).to(tl.int32)
    tl.store(codes + lanes, (numbers & 255).to(tl.uint8), mask=lanes < WIDTH)
    tl.store(word, bits.to(tl.uint16))


@triton.jit
def _write_affine(
    source,
    record,
    place,
    codes,
    word,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    SECTION: tl.constexpr,
    WORDS: tl.constexpr,
    BITS: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    TOP: tl.constexpr = ((1 << BITS) - 1) * 1.0
    PER_CODE: tl.constexpr = (POINTS >> BITS) * 1.0
    # [parts of the channels, lanes]: the codes of one lane make up a byte.
    parts = tl.arange(0, 8 // BITS)
    lanes = tl.arange(0, LANES)
    channels = parts[:, None] * WIDTH + lanes[None, :]
    inside = tl.broadcast_to((lanes < WIDTH)[None, :], channels.shape)
    values = tl.load(source + channels, mask=inside, other=0.0)
    if ANCHORS > 0:
        run = place // ANCHORS
        center = _center(record, run, channels, inside, HEAD, WIDTH, SECTION, WORDS, BITS, ANCHORS)
        values = tl.where(inside, values - center, 0.0)
    # Lanes beyond the width hold zero, which is always inside the range.
    low = tl.minimum(tl.min(values), 0.0)
    high = tl.maximum(tl.max(values), 0.0)
    wanted = tl.div_rn(high - low, TOP)
    shifted = (wanted.to(tl.int32, bitcast=True) + _BELOW_SHIFT) >> SHIFT
    scale_word = tl.minimum(tl.maximum(shifted - BIAS, 1), _SCALE_MAXIMUM)
    scale_word = tl.where(wanted > 0, scale_word, 0)
    scale = affine_scale(scale_word << POINT_BITS)
    divisor = tl.where(scale >= _TINY, scale, float("inf"))
    point = tl.floor(tl.div_rn(-low, divisor) * PER_CODE + 0.5)
    point = tl.minimum(tl.maximum(point, 0.0), _POINT_MAXIMUM)
    numbers = tl.floor(tl.div_rn(values, divisor) + point / PER_CODE + 0.5)
    numbers = tl.minimum(tl.maximum(numbers, 0.0), TOP).to(tl.int32)
    packed = tl.sum(numbers << (parts * BITS)[:, None], 0)
    tl.store(codes + lanes, packed.to(tl.uint8), mask=lanes < WIDTH)
    tl.store(word, ((scale_word << POINT_BITS) | point.to(tl.int32)).to(tl.uint16))


@triton.jit
def _center(
    record,
    run,
    channels,
    inside,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
    BITS: tl.constexpr,
    ANCHORS: tl.constexpr,
):
    """Center [parts, lanes] of a run: the means of all runs before, each less its center."""
    members = tl.arange(0, 16)
    valid = members < ANCHORS
    mask = valid[:, None, None] & inside[None, :, :]
    raw = tl.load(record + members[:, None, None] * HEAD + channels[None, :, :], mask=mask, other=0)
    scales = symmetric_scale(load_words(record + WORDS, members, valid))
    values = raw.to(tl.int8, bitcast=True).to(tl.float32) * scales[:, None, None]
    center = tl.div_rn(tl.sum(values, 0), ANCHORS * 1.0)
    for before in range(1, run):
        tokens = before * ANCHORS + members
        rows = record + CODES + (tokens - ANCHORS)[:, None, None] * WIDTH
        stored = tl.load(rows + (channels % WIDTH)[None, :, :], mask=mask, other=0).to(tl.int32)
        shifts = (channels // WIDTH * BITS)[None, :, :]
        words = load_words(record + WORDS, tokens, valid)
        codes = ((stored >> shifts) & ((1 << BITS) - 1)).to(tl.float32)
        terms = codes - affine_zero_point(words, BITS)[:, None, None]
        terms = tl.where(mask, terms * affine_scale(words)[:, None, None], 0.0)
        center += tl.div_rn(tl.sum(terms, 0), ANCHORS * 1.0)
    return center
