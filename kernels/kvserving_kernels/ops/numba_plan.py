"""What compiled kernels are told of a page layout and of the pages, and how they are compiled.

Numba's cache on disk notices changes of the file that a kernel is in, not of other files. So the
kernels of a file call nothing from another one.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numba
import numpy as np
import torch

from kvserving_kernels.formats.layout import PageLayout

logger: Final = logging.getLogger("vllm.kvserving")

FAST: Final = {"contract", "reassoc", "nsz", "arcp"}
"""Freedom in rounding, for what is only read: neither NaN nor infinity is assumed away."""


class Plan(NamedTuple):
    """A page layout and the strides of its pages in bytes, as numbers."""

    block_stride: int
    head_stride: int
    block_size: int
    head_size: int
    anchors: int
    k_bits: int
    v_bits: int
    k_anchors: int
    k_codes: int
    k_params: int
    v_codes: int
    v_params: int
    k_rotated: int
    v_rotated: int


BYTES: Final = numba.types.Array(numba.types.uint8, 1, "C")
WORDS: Final = numba.types.Array(numba.types.uint16, 1, "C")
SIGNS: Final = numba.types.Array(numba.types.float32, 1, "C")
PLAN: Final = numba.types.NamedUniTuple(numba.types.int64, len(Plan._fields), Plan)


def plan_of(page: PageLayout, records: torch.Tensor) -> Plan:
    """The plan for records [blocks, kv_heads, record_bytes]."""
    return Plan(
        records.stride(0),
        records.stride(1),
        page.block_size,
        page.head_size,
        page.anchor_tokens,
        page.layout.k_bits,
        page.layout.v_bits,
        page.k_anchors.offset_bytes,
        page.k_codes.offset_bytes,
        page.k_params.offset_bytes,
        page.v_codes.offset_bytes,
        page.v_params.offset_bytes,
        int(page.layout.k_rotated),
        int(page.layout.v_rotated),
    )


def memory_of(records: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All bytes from the first record to the last, what lies between them included."""
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(records.shape, records.stride(), strict=True)
    )
    found: np.ndarray[Any, np.dtype[np.uint8]] = records.as_strided((extent,), (1,)).numpy()
    return found


def compiled(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """Machine code of a function for one signature, from the cache on disk where there is one."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        return numba.njit(signature, cache=True, **options)(function)
    # No folder can be written to, or no file in it.
    except (RuntimeError, OSError) as error:
        logger.info("Compiled KV operations are not kept for the next start: %s", error)
        return numba.njit(signature, **options)(function)
