"""The rotation of some formats: random signs, then a Walsh-Hadamard transform per head.

It spreads a channel of large values over all channels. It is orthogonal, so that rotated queries
and keys have the same products; the output of rotated values is rotated back. It must follow the
rotary embedding, with which it does not commute.
"""

from typing import Final

_MIXERS: Final = (0x9E3779B1, 0x85EBCA6B)
"""Odd multipliers that make neighboring channels unrelated, as hash functions use them."""


def block_of(head_size: int) -> int:
    """Largest power of two that divides the head size: the size of the diagonal blocks."""
    return head_size & -head_size


def signs(head_size: int) -> tuple[float, ...]:
    """Fixed sign of each channel, +1.0 or -1.0; part of the layout, never changed."""
    return tuple(_sign(channel) for channel in range(head_size))


def _sign(channel: int) -> float:
    mixed = (channel + 1) * _MIXERS[0] & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * _MIXERS[1] & 0xFFFFFFFF
    return 1.0 - 2.0 * (mixed >> 31)
