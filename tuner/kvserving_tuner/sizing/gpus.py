"""Memory of GPUs by name, as their drivers report it in all (nvidia-smi), in MiB."""

import re
from collections.abc import Mapping
from typing import Final

from kvserving_tuner.errors import SizingError

MIB: Final = 1024 * 1024

MEMORY_MIB: Final[Mapping[str, int]] = {
    "A10": 23_028,
    "A100-40GB": 40_960,
    "A100-80GB": 81_920,
    "B200": 183_359,
    "H100": 81_559,
    "H200": 143_771,
    "L4": 23_034,
    "L40S": 46_068,
    "RTX-5090": 32_607,
    "T4": 15_360,
}
OTHER: Final = re.compile(r"(\d+(?:\.\d+)?)GiB", re.IGNORECASE)
"""A GPU that has no name here, by its memory."""


def memory_bytes(name: str) -> int:
    """Memory of a GPU by its name, or by its size as in `48GiB`; SizingError lists the names."""
    by_lower = {known.lower(): size for known, size in MEMORY_MIB.items()}
    size = by_lower.get(name.lower())
    if size is not None:
        return size * MIB
    other = OTHER.fullmatch(name)
    if other is None or float(other[1]) <= 0:
        raise SizingError("gpu", f"one of {', '.join(MEMORY_MIB)}, or a size as 48GiB", name)
    return int(float(other[1]) * 1024 * MIB)
