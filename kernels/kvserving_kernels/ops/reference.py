"""Store and attend one token, head and code at a time: slow, plain, and what the others must match.

It shares no arithmetic with the other implementations, only the layout and the rotation.
"""

import math
import struct

import torch

from kvserving_kernels.formats.layout import PageLayout, Section
from kvserving_kernels.formats.parameters import (
    MAXIMUM_VALUE,
    SCALE_BIAS,
    SCALE_MAXIMUM,
    SYMMETRIC_LIMIT,
    ZERO_POINT_MAXIMUM,
    zero_points_per_code,
)
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch, check_attend, check_store, delivered
from kvserving_kernels.ops.quantize import NONFINITE, SATURATED
from kvserving_kernels.ops.rotation import rotate, rotate_back


class ReferenceOperations(Operations):
    """The naive implementation; runs wherever torch does."""

    def store(
        self,
        page: PageLayout,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: torch.Tensor,
        slots: torch.Tensor,
        counters: torch.Tensor | None = None,
    ) -> None:
        """See `ops.registry.Operations.store`."""
        records = check_store(page, key, value, pages, slots)
        for token, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            block, place = divmod(slot, page.block_size)
            for head in range(records.shape[1]):
                record = records[block, head]
                k = _finite(key[token, head], counters)
                v = _finite(value[token, head], counters)
                k = rotate(k) if page.layout.k_rotated else k
                v = rotate(v) if page.layout.v_rotated else v
                _write_key(page, record, place, k)
                _write(page.v_codes, page.v_params, record, place, place, v, page.layout.v_bits)

    def attend(
        self,
        page: PageLayout,
        query: torch.Tensor,
        pages: torch.Tensor,
        batch: Batch,
        scale: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `ops.registry.Operations.attend`."""
        records = check_attend(page, query, pages, batch)
        group = query.shape[1] // records.shape[1]
        queries = (rotate(query) if page.layout.k_rotated else query.float()).double()
        output = torch.zeros_like(queries)
        starts = batch.query_start.tolist()
        for sequence, length in enumerate(batch.context_lengths.tolist()):
            first, end = starts[sequence], starts[sequence + 1]
            blocks = batch.block_table[sequence].tolist()
            for head in range(records.shape[1] if length and end > first else 0):
                keys, values = _read(page, records[:, head], blocks, length)
                heads = slice(head * group, (head + 1) * group)
                for token in range(first, end):
                    seen = length - (end - 1 - token)
                    scores = queries[token, heads] @ keys[:seen].T * scale
                    output[token, heads] = scores.softmax(-1) @ values[:seen]
        output = rotate_back(output) if page.layout.v_rotated else output
        return delivered(output.to(query.dtype), out)


def read_block(
    page: PageLayout, record: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [count, head_size] of the first tokens in a record, still rotated."""
    anchors = page.anchor_tokens
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for place in range(count):
        if anchors and place % anchors == 0:
            center = _center(page, record, place)
        if place < anchors:
            key = _read_row(page.k_anchors, page.k_params, record, place, place, 8)
        else:
            key = _read_late(page, record, place)
            key = key + center if anchors else key
        keys.append(key)
        bits = page.layout.v_bits
        values.append(_read_row(page.v_codes, page.v_params, record, place, place, bits))
    return torch.stack(keys), torch.stack(values)


def _center(page: PageLayout, record: torch.Tensor, place: int) -> torch.Tensor:
    """What is taken off the key at a place: the means of all runs before, each less its center."""
    anchors = page.anchor_tokens
    total = torch.zeros(page.head_size)
    for start in range(0, place - place % anchors, anchors):
        run = range(start, start + anchors)
        if start == 0:
            rows = [_read_row(page.k_anchors, page.k_params, record, i, i, 8) for i in run]
        else:
            rows = [_read_late(page, record, i) for i in run]
        total = total + _sum(rows) / anchors
    return total


def _read_late(page: PageLayout, record: torch.Tensor, place: int) -> torch.Tensor:
    row = place - page.anchor_tokens
    return _read_row(page.k_codes, page.k_params, record, row, place, page.layout.k_bits)


def _read(
    page: PageLayout, records: torch.Tensor, blocks: list[int], length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = [], []
    for start in range(0, length, page.block_size):
        count = min(page.block_size, length - start)
        k, v = read_block(page, records[blocks[start // page.block_size]], count)
        keys.append(k.double())
        values.append(v.double())
    return torch.cat(keys), torch.cat(values)


def _write_key(page: PageLayout, record: torch.Tensor, place: int, key: torch.Tensor) -> None:
    anchors = page.anchor_tokens
    if place < anchors:
        _write(page.k_anchors, page.k_params, record, place, place, key, 8)
        return
    if anchors:
        key = key - _center(page, record, place)
    row = place - anchors
    _write(page.k_codes, page.k_params, record, row, place, key, page.layout.k_bits)


def _write(
    codes: Section,
    words: Section,
    record: torch.Tensor,
    row: int,
    place: int,
    values: torch.Tensor,
    bits: int,
) -> None:
    if bits == 8:
        word, numbers = _symmetric(values)
        data = [number % 256 for number in numbers]
    else:
        word, numbers = _affine(values, bits)
        data = [0] * codes.row_bytes
        for channel, number in enumerate(numbers):
            part, byte = divmod(channel, codes.row_bytes)
            data[byte] |= number << (bits * part)
    start = codes.offset_bytes + row * codes.row_bytes
    record[start : start + codes.row_bytes] = torch.tensor(data, dtype=torch.uint8)
    start = words.offset_bytes + place * words.row_bytes
    record[start : start + 2] = torch.tensor(list(struct.pack("<H", word)), dtype=torch.uint8)


def _read_row(
    codes: Section, words: Section, record: torch.Tensor, row: int, place: int, bits: int
) -> torch.Tensor:
    start = words.offset_bytes + place * words.row_bytes
    (word,) = struct.unpack("<H", bytes(record[start : start + 2].tolist()))
    start = codes.offset_bytes + row * codes.row_bytes
    data = record[start : start + codes.row_bytes].tolist()
    if bits == 8:
        (scale,) = struct.unpack("<f", struct.pack("<I", word << 16))
        numbers = [float(byte - 256 if byte > 127 else byte) for byte in data]
    else:
        scale = _affine_scale(word >> 6)
        zero = (word & 63) / zero_points_per_code(bits)
        mask = (1 << bits) - 1
        numbers = [
            (byte >> (bits * part) & mask) - zero for part in range(8 // bits) for byte in data
        ]
    return torch.tensor(numbers) * scale


def _symmetric(values: torch.Tensor) -> tuple[int, list[int]]:
    wanted = values.abs().max() / SYMMETRIC_LIMIT
    (raw,) = struct.unpack("<I", struct.pack("<f", wanted.item()))
    word = raw // 65536 + (raw % 65536 > 0)
    (scale,) = struct.unpack("<f", struct.pack("<I", word * 65536))
    if scale < 2.0**-126:
        return word, [0] * len(values)
    limit = SYMMETRIC_LIMIT
    return word, [max(-limit, min(limit, code)) for code in _rounded(values / scale)]


def _affine(values: torch.Tensor, bits: int) -> tuple[int, list[int]]:
    top = 2**bits - 1
    low, high = values.min().clamp(max=0.0), values.max().clamp(min=0.0)
    wanted = ((high - low) / top).item()
    if wanted == 0:
        return 0, [0] * len(values)
    # wanted = fraction * 2 ** exponent with a fraction of at least 1/2 and below 1.
    fraction, exponent = math.frexp(wanted)
    word = math.ceil((fraction * 2 - 1) * 32) + (exponent - 1 + 127) * 32 - SCALE_BIAS
    word = max(1, min(SCALE_MAXIMUM, word))
    scale = _affine_scale(word)
    per_code = zero_points_per_code(bits)
    point = max(0, min(ZERO_POINT_MAXIMUM, *_rounded((-low / scale * per_code)[None])))
    codes = _rounded(values / scale + point / per_code)
    return word * 64 + point, [max(0, min(top, code)) for code in codes]


def _affine_scale(word: int) -> float:
    if word == 0:
        return 0.0
    exponent, mantissa = divmod(word + SCALE_BIAS, 32)
    return float(2.0 ** (exponent - 127) * (1 + mantissa / 32))


def _rounded(values: torch.Tensor) -> list[int]:
    return [int(code) for code in torch.floor(values + 0.5).tolist()]


def _sum(rows: list[torch.Tensor]) -> torch.Tensor:
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def _finite(values: torch.Tensor, counters: torch.Tensor | None) -> torch.Tensor:
    numbers = values.float().tolist()
    if counters is not None:
        counters[NONFINITE] += sum(not math.isfinite(number) for number in numbers)
        counters[SATURATED] += sum(abs(number) > MAXIMUM_VALUE for number in numbers)
    limit = MAXIMUM_VALUE
    kept = [0.0 if math.isnan(n) else max(-limit, min(limit, n)) for n in numbers]
    return torch.tensor(kept)
