"""Whether a local model folder holds the weights that it should: a copy may have been cut off."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.model import FIELD

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
"""What vLLM looks for when it is not told a format."""

_INDEX: Final = "model.safetensors.index.json"
_MISTRAL: Final = "params.json"
"""Marks weights in Mistral's own format, which have another index."""

_NAMED: Final = 3
"""As many missing files as a message names."""


def check_weights(folder: Path, load_format: str | None) -> Finding | None:
    """The weights that a folder lacks; None where all are there or a loader of its own has them."""
    if load_format not in (None, "auto", "safetensors") or (folder / _MISTRAL).exists():
        return None
    if not any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
        message = f"the model folder {folder} has no weights: expected {' or '.join(_WEIGHTS)}"
        return Finding(FIELD, Reason.MODEL_INCOMPLETE, message)
    missing = sorted(name for name in _indexed(folder) if not (folder / name).is_file())
    if not missing:
        return None
    rest = len(missing) - _NAMED
    named = ", ".join(missing[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    message = f"the model folder {folder} is incomplete: {_INDEX} names {named}, not there"
    return Finding(FIELD, Reason.MODEL_INCOMPLETE, message)


def _indexed(folder: Path) -> frozenset[str]:
    """Files that the index names; none where there is no index, or one that cannot be read."""
    try:
        document = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()
    names = document.get("weight_map") if isinstance(document, dict) else None
    return frozenset(map(str, names.values())) if isinstance(names, Mapping) else frozenset()
