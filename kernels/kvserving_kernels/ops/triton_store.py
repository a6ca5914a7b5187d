"""One Triton kernel for a whole store: sanitize, count, rotate, center and encode.

Tokens with consecutive slots in one block are a *segment*, and one program per KV head stores it
run after run: a run's center needs the codes of the run before. It is read back from the page, as
it is where that run came with an earlier call, so that codes do not depend on chunks.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.formats.rotation import block_of
from kvserving_kernels.ops.triton_center import center_of, next_center
from kvserving_kernels.ops.triton_encode import (
    count_odd,
    rotate_both,
    rotate_rows,
    sanitize_rows,
    write_rows,
)

UNCENTERED_ROWS: Final = 8
"""Tokens that are encoded at a time where keys need no center."""

MANY_TOKENS: Final = 1024
"""More are a prompt's: most programs that look at one token each would find nothing to do."""


@dataclass(frozen=True)
class Tuning:
    """Tokens among which a program looks for beginnings of segments, and its warps."""

    scan: int
    warps: int


DECODE: Final = Tuning(scan=1, warps=4)
PROMPT: Final = Tuning(scan=16, warps=4)


def tuning(tokens: int) -> Tuning:
    """How so many tokens are stored: two ways, since each number of warps is compiled apart."""
    return DECODE if tokens <= MANY_TOKENS else PROMPT


def store(
    page: PageLayout,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    records: torch.Tensor,
    signs: torch.Tensor,
    counters: torch.Tensor | None,
    tuned: Tuning,
    *,
    compile_only: bool = False,
) -> None:
    """Write keys and values [tokens, kv_heads, channels] of any strides but that of channels.

    `signs` [channels] are those of the rotation.
    """
    tokens, layout = slots.shape[0], page.layout
    lanes = triton.next_power_of_2(page.head_size)
    step = page.anchor_tokens or min(page.block_size, UNCENTERED_ROWS)
    arguments: tuple[Any, ...] = (
        key, value, slots, records, signs, counters, tokens, tuned.scan,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        records.stride(0), records.stride(1),
    )  # fmt: skip
    options: dict[str, Any] = {
        "BLOCK": page.block_size,
        "WINDOW": triton.next_power_of_2(page.block_size),
        "HEAD": page.head_size,
        "LANES": lanes,
        "STAGES": block_of(page.head_size).bit_length() - 1,
        "ANCHORS": page.anchor_tokens,
        "STEP": step,
        "ROWS": triton.next_power_of_2(step),
        "K_BITS": layout.k_bits,
        "V_BITS": layout.v_bits,
        "K_CODES": page.k_codes.offset_bytes,
        "K_WORDS": page.k_params.offset_bytes,
        "V_CODES": page.v_codes.offset_bytes,
        "V_WORDS": page.v_params.offset_bytes,
        "K_ROTATED": layout.k_rotated,
        "V_ROTATED": layout.v_rotated,
        "num_warps": tuned.warps,
        "enable_fp_fusion": False,
    }
    grid = (triton.cdiv(tokens, tuned.scan), records.shape[1])
    if compile_only:
        store_kernel.warmup(*arguments, grid=grid, **options)
    else:
        store_kernel[grid](*arguments, **options)


@triton.jit(
    do_not_specialize=["tokens", "scan"],
    do_not_specialize_on_alignment=["slots", "counters"],
)
def store_kernel(
    key,
    value,
    slots,
    records,
    signs,
    counters,
    tokens,
    scan,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    block_stride,
    record_stride,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
    ANCHORS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    K_CODES: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_CODES: tl.constexpr,
    V_WORDS: tl.constexpr,
    K_ROTATED: tl.constexpr,
    V_ROTATED: tl.constexpr,
):
    """Store one KV head of all segments that begin among `scan` tokens."""
    begin = tl.program_id(0) * scan
    head = tl.program_id(1)
    lanes = tl.arange(0, LANES)
    turn = tl.load(signs + lanes, mask=lanes < HEAD, other=0.0)
    for token in range(begin, tl.minimum(begin + scan, tokens)):
        index = tl.cast(token, tl.int64)
        keys = key + index * key_stride + head * key_head_stride
        values = value + index * value_stride + head * value_head_stride
        slot = tl.load(slots + token).to(tl.int64)
        before = tl.load(slots + token - 1, mask=token > 0, other=-1).to(tl.int64)
        after = tl.load(slots + token + 1, mask=token + 1 < tokens, other=-1).to(tl.int64)
        place = (slot % BLOCK).to(tl.int32)
        if (slot >= 0) & ((place == 0) | (before != slot - 1)):
            record = records + (slot // BLOCK) * block_stride + head * record_stride
            first = place // STEP
            # Asked for together with what the center needs.
            first_k = tl.load(keys + lanes, mask=lanes < HEAD, other=0.0)
            first_v = tl.load(values + lanes, mask=lanes < HEAD, other=0.0)
            center = tl.zeros([LANES], tl.float32)
            if ANCHORS > 0:
                center = center_of(
                    record, first, BLOCK, HEAD, LANES, STEP, K_BITS, K_CODES, K_WORDS
                )
            if (place + 1 == BLOCK) | (after != slot + 1):
                places = place + tl.arange(0, 1)
                _store_rows(
                    first_k[None, :], first_v[None, :], places, places >= place, record, turn,
                    counters, center, place, 1, HEAD, LANES, STAGES, ANCHORS, K_BITS, V_BITS,
                    K_CODES, K_WORDS, V_CODES, V_WORDS, K_ROTATED, V_ROTATED,
                )  # fmt: skip
            else:
                ahead = tl.arange(0, WINDOW)
                found = tl.load(slots + token + ahead, mask=token + ahead < tokens, other=-1)
                inside = (found.to(tl.int64) == slot + ahead) & (place + ahead < BLOCK)
                end = place + tl.min(tl.where(inside, WINDOW, ahead), 0)
                for run in range(first, tl.cdiv(end, STEP)):
                    if ANCHORS > 0:  # noqa: SIM102  decided when it is compiled
                        if run > first:
                            # Other threads of this program wrote what is now read.
                            tl.debug_barrier()
                            center = next_center(
                                center, record, run, ROWS, HEAD, LANES, STEP, K_BITS, K_CODES,
                                K_WORDS,
                            )  # fmt: skip
                    rows = tl.arange(0, ROWS)
                    places = run * STEP + rows
                    valid = (rows < STEP) & (places >= place) & (places < end)
                    mask = valid[:, None] & (lanes < HEAD)[None, :]
                    offsets = (places - place).to(tl.int64)[:, None]
                    k = tl.load(keys + offsets * key_stride + lanes[None, :], mask=mask, other=0.0)
                    v = tl.load(
                        values + offsets * value_stride + lanes[None, :], mask=mask, other=0.0
                    )
                    _store_rows(
                        k, v, places, valid, record, turn, counters, center,
                        run * STEP, ROWS, HEAD, LANES, STAGES, ANCHORS, K_BITS, V_BITS, K_CODES,
                        K_WORDS, V_CODES, V_WORDS, K_ROTATED, V_ROTATED,
                    )  # fmt: skip


@triton.jit
def _store_rows(
    k,
    v,
    places,
    valid,
    record,
    turn,
    counters,
    center,
    start,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
    ANCHORS: tl.constexpr,
    K_BITS: tl.constexpr,
    V_BITS: tl.constexpr,
    K_CODES: tl.constexpr,
    K_WORDS: tl.constexpr,
    V_CODES: tl.constexpr,
    V_WORDS: tl.constexpr,
    K_ROTATED: tl.constexpr,
    V_ROTATED: tl.constexpr,
):
    """Store keys and values [ROWS, LANES] in places of one run from `start` on, where valid.

    They must be zero where they are not valid, and beyond the head size.
    """
    k = k.to(tl.float32)
    v = v.to(tl.float32)
    if counters is not None:
        count_odd(k, v, counters)
    k = sanitize_rows(k)
    v = sanitize_rows(v)
    if K_ROTATED and V_ROTATED:
        k, v = rotate_both(k, v, turn, ROWS, LANES, STAGES)
    elif K_ROTATED:
        k = rotate_rows(k, turn, ROWS, LANES, STAGES)
    elif V_ROTATED:
        v = rotate_rows(v, turn, ROWS, LANES, STAGES)
    words = (record + V_WORDS).to(tl.pointer_type(tl.uint16)) + places
    write_rows(v, record + V_CODES, places, words, valid, ROWS, HEAD, LANES, V_BITS)
    words = (record + K_WORDS).to(tl.pointer_type(tl.uint16)) + places
    section = record + K_CODES
    if ANCHORS == 0:
        write_rows(k, section, places, words, valid, ROWS, HEAD, LANES, K_BITS)
    elif start < ANCHORS:
        write_rows(k, record, places, words, valid, ROWS, HEAD, LANES, 8)
    else:
        k = tl.where((tl.arange(0, LANES) < HEAD)[None, :], k - center[None, :], 0.0)
        write_rows(k, section, places - ANCHORS, words, valid, ROWS, HEAD, LANES, K_BITS)
