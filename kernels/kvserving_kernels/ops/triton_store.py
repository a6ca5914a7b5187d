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
from kvserving_kernels.ops.triton_codes import (
    affine_scale,
    affine_zero_point,
    load_codes,
    load_words,
    symmetric_scale,
)
from kvserving_kernels.ops.triton_encode import (
    count_odd,
    rotate_both,
    rotate_rows,
    sanitize_rows,
    write_rows,
)

ROWS_PER_TOKEN: Final = 16
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
    step = page.anchor_tokens or min(page.block_size, ROWS_PER_TOKEN)
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
                center = _center(record, first, BLOCK, HEAD, LANES, STEP, K_BITS, K_CODES, K_WORDS)
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
                            center = _next_center(
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


@triton.jit
def _center(
    record,
    run,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    STEP: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Center [LANES] of a run: the means of all runs before, each less its center, in their order.

    Zero for the first run. Lanes beyond the head size come out as anything.
    """
    # All rows are asked for at once: a loop over runs would wait for the memory as often.
    runs = tl.arange(0, 1)
    mean = _means(record, record, runs, runs < run, 1, HEAD, LANES, STEP, 8, WORDS)
    center = tl.reshape(mean, (LANES,))
    center = _add_eight(center, record, 1, run, HEAD, LANES, STEP, BITS, CODES, WORDS)
    if BLOCK // STEP > 10:
        for first in range(9, run, 8):
            center = _add_eight(center, record, first, run, HEAD, LANES, STEP, BITS, CODES, WORDS)
    return center


@triton.jit
def _add_eight(
    center,
    record,
    first,
    end,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    STEP: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """The center and the means of eight runs after the anchors, as far as they are before `end`."""
    runs = first + tl.arange(0, 8)
    section = record + CODES - STEP * (HEAD * BITS // 8)
    means = _means(record, section, runs, runs < end, 8, HEAD, LANES, STEP, BITS, WORDS)
    return _add_rows(center, means, 8, LANES)


@triton.jit
def _add_rows(total, rows, COUNT: tl.constexpr, LANES: tl.constexpr):
    """Total [LANES] and rows [COUNT, LANES], 4, 8 or 16 of them, added one after the other.

    By registers, since a sum's own order depends on how threads share a tile.
    """
    rows = tl.permute(rows, (1, 0))
    if COUNT == 4:
        rows = tl.permute(tl.reshape(rows, (LANES, 2, 2)), (0, 2, 1))
    elif COUNT == 8:
        rows = tl.permute(tl.reshape(rows, (LANES, 2, 2, 2)), (0, 3, 2, 1))
    else:
        rows = tl.permute(tl.reshape(rows, (LANES, 2, 2, 2, 2)), (0, 4, 3, 2, 1))
    return _add_halves(total, rows, COUNT)


@triton.jit
def _add_halves(total, rows, COUNT: tl.constexpr):
    # The last dimension tells the first half of the rows from the second.
    first, second = tl.split(rows)
    if COUNT == 2:
        return total + first + second
    else:  # noqa: RET505  decided when it is compiled
        total = _add_halves(total, first, COUNT // 2)
        return _add_halves(total, second, COUNT // 2)


@triton.jit
def _next_center(
    center,
    record,
    run,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    STEP: tl.constexpr,
    BITS: tl.constexpr,
    CODES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Center of a run after the first, given that of the run before it."""
    rows = tl.arange(0, ROWS)
    valid = rows < STEP
    tokens = (run - 1) * STEP + rows
    words = load_words(record + WORDS, tokens, valid)
    if run == 1:
        codes = load_codes(record, tokens, valid, HEAD, LANES, 8)
        terms = codes * symmetric_scale(words)[:, None]
    else:
        codes = load_codes(record + CODES, tokens - STEP, valid, HEAD, LANES, BITS)
        terms = (codes - affine_zero_point(words, BITS)[:, None]) * affine_scale(words)[:, None]
    total = _add_rows(tl.zeros([LANES], tl.float32), terms, ROWS, LANES)
    return center + _share(total, STEP)


@triton.jit
def _means(
    record,
    section,
    runs,
    valid,
    COUNT: tl.constexpr,
    HEAD: tl.constexpr,
    LANES: tl.constexpr,
    STEP: tl.constexpr,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Means [runs, lanes] of the stored keys of runs, less their centers; zero where not valid.

    `section` is where the codes of run 0 would be.
    """
    total = tl.zeros([COUNT, LANES], tl.float32)
    for member in tl.static_range(STEP):
        tokens = runs * STEP + member
        codes = load_codes(section, tokens, valid, HEAD, LANES, BITS)
        words = load_words(record + WORDS, tokens, valid)
        if BITS == 8:
            total += codes * symmetric_scale(words)[:, None]
        else:
            total += (codes - affine_zero_point(words, BITS)[:, None]) * affine_scale(words)[
                :, None
            ]
    return _share(total, STEP)


@triton.jit
def _share(total, STEP: tl.constexpr):
    """Total divided by STEP."""
    if STEP & (STEP - 1) == 0:
        # The same number; a division's branch would part what can be asked for at once.
        return total * (1.0 / STEP)
    else:  # noqa: RET505  decided when it is compiled
        return tl.div_rn(total, STEP * 1.0)
