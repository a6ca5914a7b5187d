"""Which share of what attention reads from a cache are low-bit codes, by count and not by guess.

A full block of a format with anchors keeps an eighth of its keys in 8 bits, and the block that is
being filled more than that, so the share depends on how long the contexts were.
"""

from typing import Final

from kvserving_kernels.formats.layout import LAYOUTS, PageLayout, layout_of

LOW_BITS: Final = 8
"""Codes with fewer bits count as low-bit."""


def low_bit_share(dtype: str, block_size: int, head_size: int, contexts: range) -> float:
    """Share of K and V elements read from low-bit codes by queries with these context lengths.

    Zero for formats that have no layout here: those of vLLM's own have 8 bits or more.
    """
    if dtype not in LAYOUTS:
        return 0.0
    page = layout_of(dtype).page(block_size, head_size)
    low = sum(_low_elements(page, length) for length in contexts)
    return low / (2 * sum(contexts))


def _low_elements(page: PageLayout, length: int) -> int:
    """Tokens of a context whose key is low-bit, and those whose value is."""
    blocks, rest = divmod(length, page.block_size)
    anchors = blocks * page.anchor_tokens + min(rest, page.anchor_tokens)
    low_k, low_v = page.layout.k_bits < LOW_BITS, page.layout.v_bits < LOW_BITS
    return (length - anchors) * low_k + length * low_v
