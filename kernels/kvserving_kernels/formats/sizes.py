"""Bytes of one block and KV head in every format, whoever stores it."""

from typing import Final

from kvserving_kernels.formats.dtypes import DTYPES, KVCacheDType
from kvserving_kernels.formats.layout import LAYOUTS, layout_of
from kvserving_kernels.formats.support import ALIASES

_FLOAT32: Final = "float32"
"""A model's dtype that is no format of its own: `auto` becomes it."""

_FLOAT32_BITS: Final = 32.0


def record_bytes(dtype: str, block_size: int, head_size: int) -> int | None:
    """Bytes of the keys and values of `block_size` tokens and one head.

    None where that is not known: of names that this package does not know, of `auto`, which
    follows the model, and of sizes that a format has no layout for.
    """
    if dtype in LAYOUTS:
        layout = layout_of(dtype)
        if layout.why_not(block_size, head_size) is not None:
            return None
        return layout.page(block_size, head_size).record_bytes
    bits: float | None = _FLOAT32_BITS
    if dtype != _FLOAT32:
        try:
            bits = DTYPES[ALIASES.get(dtype) or KVCacheDType(dtype)].bits_per_element
        except ValueError:
            return None
    return None if bits is None else int(2 * block_size * head_size * bits / 8)
