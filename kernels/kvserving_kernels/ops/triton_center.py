"""Centers of runs, from the keys stored in a record, as `ops.records.centers` defines them.

Sums are made in one order, row after row and run after run, whichever threads hold the rows.
"""

import triton
import triton.language as tl

from kvserving_kernels.ops.triton_codes import (
    affine_scale,
    affine_zero_point,
    load_codes,
    load_words,
    symmetric_scale,
)


@triton.jit
def center_of(
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
def next_center(
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
        stored = _stored(load_codes(record, tokens, valid, HEAD, LANES, 8), words, 8)
    else:
        codes = load_codes(record + CODES, tokens - STEP, valid, HEAD, LANES, BITS)
        stored = _stored(codes, words, BITS)
    total = _add_rows(tl.zeros([LANES], tl.float32), stored, ROWS, LANES)
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
        total += _stored(codes, words, BITS)
    return _share(total, STEP)


@triton.jit
def _stored(codes, words, BITS: tl.constexpr):
    """Values [rows, lanes] of codes and of the words [rows]; exact in 32 bits."""
    if BITS == 8:
        return codes * symmetric_scale(words)[:, None]
    else:  # noqa: RET505  decided when it is compiled
        return (codes - affine_zero_point(words, BITS)[:, None]) * affine_scale(words)[:, None]


@triton.jit
def _share(total, STEP: tl.constexpr):
    """Total divided by STEP."""
    if STEP & (STEP - 1) == 0:
        # The same number; a division's branch would part what can be asked for at once.
        return total * (1.0 / STEP)
    else:  # noqa: RET505  decided when it is compiled
        return tl.div_rn(total, STEP * 1.0)
