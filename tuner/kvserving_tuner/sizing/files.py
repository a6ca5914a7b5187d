"""A model's files, as far as sizes can be read from them without its weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.gguf import MAGIC, read_header
from kvserving_tuner.sizing.gguf_config import as_config

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
GGUF = "*.gguf"
GIB = 1024**3


@dataclass(frozen=True)
class ModelFiles:
    """A model's configuration and the size of its weights, None where nothing says it."""

    config: Mapping[str, Any]
    weights_bytes: float | None

    def known_weights(self) -> float:
        """Size of the weights; SizingError that asks for it where nothing says it."""
        if self.weights_bytes is None:
            raise SizingError(
                "weights-gib",
                f"a size, as there is neither {INDEX} nor a whole GGUF file",
                "nothing",
            )
        return self.weights_bytes


def read_model(path: Path, weights_gib: float | None = None) -> ModelFiles:
    """Read `config.json`, its folder, or a GGUF file; SizingError names what cannot be read.

    Of a GGUF file the first part is enough. `weights_gib` goes before what the folder's index or
    the size of a GGUF file says.
    """
    file = _file(path)
    if _is_gguf(file):
        return _read_gguf(file, weights_gib)
    config = _document(file, "config")
    if weights_gib is not None:
        return ModelFiles(config, weights_gib * GIB)
    index = file.parent / INDEX
    total = _document(index, "index").get("metadata", {}) if index.exists() else {}
    size = total.get("total_size") if isinstance(total, Mapping) else None
    return ModelFiles(config, float(size) if isinstance(size, int) else None)


def _file(path: Path) -> Path:
    if not path.is_dir() or (path / CONFIG).exists():
        return path / CONFIG if path.is_dir() else path
    single = sorted(path.glob(GGUF))
    return single[0] if single else path / CONFIG


def _is_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        # Whoever reads it says so.
        return False


def _read_gguf(file: Path, weights_gib: float | None) -> ModelFiles:
    header = read_header(file)
    config = as_config(header.metadata)
    if weights_gib is not None:
        return ModelFiles(config, weights_gib * GIB)
    # The other parts of a model in several files may be elsewhere.
    alone = header.metadata.get("split.count", 0) in (0, 1)
    return ModelFiles(config, float(header.size_bytes) if alone and header.is_whole else None)


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
