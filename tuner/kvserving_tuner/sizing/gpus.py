"""Memory of GPUs by name, as their drivers report it in all (nvidia-smi), in MiB."""

from collections.abc import Mapping
from typing import Final

from kvserving_tuner.errors import SizingError

MIB: Final = 1024 * 1024

MEMORY_MIB: Final[Mapping[str, int]] = {
    "A10": 23_028,
    "A100-40GB": 40_960,
    "A100-80GB": 81_920,
    "H100": 81_559,
    "H200": 143_771,
    "L4": 23_034,
    "L40S": 46_068,
}


def memory_bytes(name: str) -> int:
    """Memory of a GPU; SizingError lists the names that are known."""
    by_lower = {known.lower(): size for known, size in MEMORY_MIB.items()}
    try:
        return by_lower[name.lower()] * MIB
    except KeyError:
        raise SizingError("gpu", f"one of {', '.join(MEMORY_MIB)}", name) from None
