"""Where the engine will run, as far as the checks depend on it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GPUS_VARIABLE: Final = "KVSERVING_GPUS"
"""Variable in which the operator says how many GPUs the engine's pod will have."""

DEFAULT_BLOCK_SIZES: Final = {"CPU": 128, "NVIDIA": 16}
"""Block sizes of engines that are told none; a GPU's may be larger, as its backend wants it."""


@dataclass(frozen=True)
class Host:
    """Where the engine will run. `cpu_features` is None where it is not known."""

    accelerator: str
    """What the installed engine is built for."""
    engine_version: str
    cpu_features: frozenset[str] | None
    environment: Mapping[str, str]
    memory_nodes: int | None = None
    """Memory nodes (NUMA) that a process here may use, None where it is not known."""

    @classmethod
    def here(cls, accelerator: str, version: str, features: frozenset[str] | None) -> "Host":
        """Host of this process."""
        return cls(accelerator, version, features, dict(os.environ), _memory_nodes())

    @property
    def gpus(self) -> int | None:
        """GPUs of the engine's pod, None where nobody says."""
        text = self.environment.get(GPUS_VARIABLE, "")
        return int(text) if text.isascii() and text.isdigit() else None

    def is_set(self, variable: str) -> bool:
        """Whether a switch of the environment is on, as vLLM reads it."""
        return self.environment.get(variable, "").lower() in ("1", "true")


def _memory_nodes() -> int | None:
    try:
        return parse_memory_nodes(Path("/proc/self/status").read_text(encoding="utf-8"))
    except OSError:
        return None


def parse_memory_nodes(status: str) -> int | None:
    """Number of memory nodes in the text of /proc/self/status."""
    found = re.search(r"^Mems_allowed_list:\s*([\d,-]+)$", status, re.MULTILINE)
    if found is None:
        return None
    ends = [part.split("-") for part in found[1].split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
