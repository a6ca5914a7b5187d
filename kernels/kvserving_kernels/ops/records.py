"""Whole records to tensors and back, vectorized over tokens, heads and blocks."""

from dataclasses import dataclass

import torch

from kvserving_kernels.formats.layout import PageLayout, Section
from kvserving_kernels.ops.quantize import (
    affine,
    affine_scale,
    affine_zero_point,
    pack,
    symmetric,
    symmetric_scale,
    unpack,
)


@dataclass(frozen=True)
class Coded:
    """Codes [..., tokens, channels] as 32-bit floats; value = (codes - zeros) * scales.

    `scales` and `zeros` are [..., tokens]; zeros are None where all are zero.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None

    def values(self) -> torch.Tensor:
        """The values [..., tokens, channels]; overwrites the codes."""
        if self.zeros is not None:
            self.codes.sub_(self.zeros[..., None])
        return self.codes.mul_(self.scales[..., None])


def encode(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [..., row_bytes] and words [..., 2] of vectors [..., channels], as uint8."""
    if bits == 8:
        codes, words = symmetric(values)
        return codes.view(torch.uint8), _word_bytes(words)
    codes, words = affine(values, bits)
    return pack(codes, bits), _word_bytes(words)


def rows(section: Section, records: torch.Tensor) -> torch.Tensor:
    """View [..., rows, row_bytes] of a section in records [..., record_bytes]."""
    part = records[..., section.offset_bytes : section.end_bytes]
    return part.unflatten(-1, (section.rows, section.row_bytes))


def anchor_keys(page: PageLayout, records: torch.Tensor) -> Coded:
    """Keys of the anchors."""
    codes = rows(page.k_anchors, records).view(torch.int8).float()
    words = _words(page.k_params, records)[..., : page.anchor_tokens]
    return Coded(codes, symmetric_scale(words), None)


def coded_keys(page: PageLayout, records: torch.Tensor) -> Coded:
    """Keys of the tokens after the anchors, less the center."""
    words = _words(page.k_params, records)[..., page.anchor_tokens :]
    return _decode(page.k_codes, records, words, page.layout.k_bits)


def coded_values(page: PageLayout, records: torch.Tensor) -> Coded:
    """Values of all tokens."""
    return _decode(page.v_codes, records, _words(page.v_params, records), page.layout.v_bits)


def centers(page: PageLayout, anchors: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
    """Centers [..., runs - 1, channels] of all runs of tokens but the first.

    `anchors` [..., run, channels] are the first run, `late` [..., tokens, channels] the others less
    their centers. A center is the mean of the run before; what lies behind it does not matter.
    """
    size = page.anchor_tokens
    means = [_mean(anchors), *_mean(late.unflatten(-2, (-1, size))).unbind(-2)]
    found = [means[0]]
    for mean in means[1:-1]:
        found.append(found[-1] + mean)
    return torch.stack(found, -2)


def stored_centers(page: PageLayout, records: torch.Tensor) -> torch.Tensor:
    """The `centers` of records [..., record_bytes]."""
    return centers(page, anchor_keys(page, records).values(), coded_keys(page, records).values())


def keys_and_values(page: PageLayout, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [..., tokens, channels] of records [..., record_bytes], still rotated.

    What was never written comes out as any number or NaN: mask it.
    """
    keys = coded_keys(page, records).values()
    if page.anchor_tokens:
        anchors = anchor_keys(page, records).values()
        runs = keys.unflatten(-2, (-1, page.anchor_tokens))
        runs = runs + centers(page, anchors, keys)[..., None, :]
        keys = torch.cat((anchors, runs.flatten(-3, -2)), -2)
    return keys, coded_values(page, records).values()


def _mean(rows: torch.Tensor) -> torch.Tensor:
    # One by one, because a sum's own order may depend on the shape.
    first, *others = rows.unbind(-2)
    total = first.clone()
    for row in others:
        total += row
    return total / rows.shape[-2]


def _decode(section: Section, records: torch.Tensor, words: torch.Tensor, bits: int) -> Coded:
    raw = rows(section, records)
    if bits == 8:
        return Coded(raw.view(torch.int8).float(), symmetric_scale(words), None)
    return Coded(unpack(raw, bits), affine_scale(words), affine_zero_point(words, bits))


def _words(section: Section, records: torch.Tensor) -> torch.Tensor:
    raw = records[..., section.offset_bytes : section.end_bytes]
    return raw.view(torch.int16).int() & 0xFFFF


def _word_bytes(words: torch.Tensor) -> torch.Tensor:
    return torch.stack((words & 255, words >> 8), -1).to(torch.uint8)
