"""Values to codes and parameter words, as `formats.parameters` defines them, for tensors."""

import torch

from kvserving_kernels.formats.parameters import (
    MAXIMUM_VALUE,
    SCALE_BIAS,
    SCALE_MAXIMUM,
    SCALE_SHIFT,
    SYMMETRIC_LIMIT,
    ZERO_POINT_BITS,
    ZERO_POINT_MAXIMUM,
    zero_points_per_code,
)

NONFINITE, SATURATED = 0, 1
"""Places in the counters of a store."""


def new_counters(device: torch.device | str) -> torch.Tensor:
    """Counters [2] that stores add to: values that were not finite, values that were saturated."""
    return torch.zeros(2, dtype=torch.int64, device=device)


def sanitize(values: torch.Tensor, counters: torch.Tensor | None) -> torch.Tensor:
    """Values as finite 32-bit floats: NaN becomes zero, large magnitudes the largest one."""
    values = values.float()
    if counters is not None:
        counters[NONFINITE] += (~values.isfinite()).sum()
        counters[SATURATED] += (values.abs() > MAXIMUM_VALUE).sum()
    return values.nan_to_num(0.0, MAXIMUM_VALUE, -MAXIMUM_VALUE).clamp_(
        -MAXIMUM_VALUE, MAXIMUM_VALUE
    )


def symmetric(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., channels] int8 and words [...] int32 of values [..., channels]."""
    wanted = values.abs().amax(-1) / SYMMETRIC_LIMIT
    words = (wanted.view(torch.int32) + 0xFFFF) >> 16
    scale = symmetric_scale(words)
    codes = (values / _divisor(scale)[..., None] + 0.5).floor_()
    return codes.clamp_(-SYMMETRIC_LIMIT, SYMMETRIC_LIMIT).to(torch.int8), words


def symmetric_scale(words: torch.Tensor) -> torch.Tensor:
    """Scales of symmetric words."""
    return (words.int() << 16).view(torch.float32)


def affine(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., channels] uint8, one each, and words [...] int32 of values [..., channels]."""
    top = (1 << bits) - 1
    low = values.amin(-1).clamp_(max=0.0)
    high = values.amax(-1).clamp_(min=0.0)
    wanted = (high - low) / top
    shifted = (wanted.view(torch.int32) + ((1 << SCALE_SHIFT) - 1)) >> SCALE_SHIFT
    scale_words = (shifted - SCALE_BIAS).clamp_(1, SCALE_MAXIMUM)
    scale_words = torch.where(wanted > 0, scale_words, 0)
    scale = affine_scale(scale_words << ZERO_POINT_BITS)
    divisor = _divisor(scale)
    per_code = zero_points_per_code(bits)
    points = (-low / divisor * per_code + 0.5).floor_().clamp_(0, ZERO_POINT_MAXIMUM)
    codes = (values / divisor[..., None] + (points / per_code)[..., None] + 0.5).floor_()
    words = scale_words << ZERO_POINT_BITS | points.int()
    return codes.clamp_(0, top).to(torch.uint8), words


def affine_scale(words: torch.Tensor) -> torch.Tensor:
    """Scales of affine words."""
    scale_words = words.int() >> ZERO_POINT_BITS
    scale = ((scale_words + SCALE_BIAS) << SCALE_SHIFT).view(torch.float32)
    return torch.where(scale_words > 0, scale, 0.0)


def affine_zero_point(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Zero points of affine words, in codes."""
    return (words.int() & ZERO_POINT_MAXIMUM).float() / zero_points_per_code(bits)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes [..., channels * bits / 8] of codes [..., channels].

    The channels are cut into 8 / bits equal parts; part i of a byte, from its low end, is the code
    of the same place in part i. Each part unpacks with one shift and mask.
    """
    parts = codes.unflatten(-1, (8 // bits, -1)).unbind(-2)
    packed = parts[0].clone()
    for place, part in enumerate(parts[1:], 1):
        packed |= part << (bits * place)
    return packed


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `pack`, as 32-bit floats."""
    mask = (1 << bits) - 1
    width = packed.shape[-1]
    codes = torch.empty(
        (*packed.shape[:-1], width * 8 // bits), dtype=torch.float32, device=packed.device
    )
    for place in range(8 // bits):
        part = packed >> (bits * place) if place else packed
        codes[..., place * width : (place + 1) * width] = part & mask
    return codes


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    # A zero scale has only zeros to divide, a subnormal one could overflow: both get code zero.
    tiny = torch.finfo(torch.float32).tiny
    return torch.where(scale >= tiny, scale, torch.inf)
