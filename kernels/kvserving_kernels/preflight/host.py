"""Where the engine will run, as far as the checks depend on it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
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

    @classmethod
    def here(cls, accelerator: str, version: str, features: frozenset[str] | None) -> "Host":
        """Host of this process."""
        return cls(accelerator, version, features, dict(os.environ))

    @property
    def gpus(self) -> int | None:
        """GPUs of the engine's pod, None where nobody says."""
        text = self.environment.get(GPUS_VARIABLE, "")
        return int(text) if text.isascii() and text.isdigit() else None

    def is_set(self, variable: str) -> bool:
        """Whether a switch of the environment is on, as vLLM reads it."""
        return self.environment.get(variable, "").lower() in ("1", "true")
