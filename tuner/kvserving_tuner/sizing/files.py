"""A model's files, as far as sizes can be read from them without its weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvserving_tuner.errors import SizingError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
GIB = 1024**3


@dataclass(frozen=True)
class ModelFiles:
    """A model's configuration and the size of its weights, None where nothing says it."""

    config: Mapping[str, Any]
    weights_bytes: float | None

    def known_weights(self) -> float:
        """Size of the weights; SizingError that asks for it where nothing says it."""
        if self.weights_bytes is None:
            raise SizingError("weights-gib", f"a size, as there is no {INDEX} beside it", "nothing")
        return self.weights_bytes


def read_model(path: Path, weights_gib: float | None = None) -> ModelFiles:
    """Read `config.json` or its folder; SizingError names what cannot be read.

    `weights_gib` goes before what the folder's index says.
    """
    file = path / CONFIG if path.is_dir() else path
    config = _document(file, "config")
    if weights_gib is not None:
        return ModelFiles(config, weights_gib * GIB)
    index = file.parent / INDEX
    total = _document(index, "index").get("metadata", {}) if index.exists() else {}
    size = total.get("total_size") if isinstance(total, Mapping) else None
    return ModelFiles(config, float(size) if isinstance(size, int) else None)


def _document(path: Path, field: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise SizingError(field, "a file that can be read", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise SizingError(field, "a JSON document", f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise SizingError(field, "a JSON object", f"{path}: {type(document).__name__}")
    return document
