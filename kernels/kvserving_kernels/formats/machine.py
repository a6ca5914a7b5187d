"""The instruction sets of a CPU, as far as KV formats depend on them."""

from pathlib import Path
from typing import Final

AVX512_KERNELS: Final = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""What the engine's AVX-512 build needs, all of it."""

AMX_KERNELS: Final = frozenset({"amx_tile"})
"""What the engine's AMX kernels need."""

# Named in messages, best first; the first family that a machine has describes it.
_FAMILIES: Final = (
    ("AMX", AMX_KERNELS),
    ("AVX-512", AVX512_KERNELS),
    ("avx2", frozenset({"avx2"})),
    ("sve", frozenset({"sve"})),
    ("neon", frozenset({"asimd"})),
)


def parse_cpuinfo(text: str) -> frozenset[str]:
    """Feature flags of the first processor in the text of /proc/cpuinfo (x86 and Arm)."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """Feature flags of this machine, or None where they cannot be read."""
    try:
        return parse_cpuinfo(cpuinfo.read_text(encoding="utf-8", errors="replace")) or None
    except OSError:
        return None


def describe(features: frozenset[str]) -> str:
    """Best vector instruction family among the flags, for messages."""
    for name, needed in _FAMILIES:
        if needed <= features:
            return name
    return "none of AMX, AVX-512, AVX2, SVE, Neon"
