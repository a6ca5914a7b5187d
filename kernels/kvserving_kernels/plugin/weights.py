"""Which weights an engine has loaded, by a hash: others may come to stand under the same name.

Weights are read at places that are spread over each file, since all of them would take as long as
loading the model. Training changes nearly every number, so that other weights differ there too.
"""

import hashlib
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger("vllm.kvserving")

WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
DESCRIPTIONS: Final = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""What else tells what a model answers; read whole."""

PLACES: Final = 64
PLACE_BYTES: Final = 65_536
DIGITS: Final = 16


def loaded_weights(model: str, revision: str | None) -> str | None:
    """Hash of the weights of a model folder, or of a hub's model as it lies in the local cache.

    None where it cannot be told.
    """
    try:
        folder = Path(model) if Path(model).is_dir() else _cached(model, revision)
        return weights_hash(folder)
    except Exception as error:
        # An engine serves without it as well; only what differs from it is not noticed.
        logger.warning("kvserving: the weights of %s cannot be told: %s", model, error)
        return None


def weights_hash(folder: Path) -> str | None:
    """Hash of what lies in a model folder; None where there are no weights."""
    files = sorted({file for pattern in WEIGHTS for file in folder.glob(pattern)})
    if not files:
        return None
    digest = hashlib.sha256()
    for name in DESCRIPTIONS:
        if (folder / name).is_file():
            digest.update(name.encode() + (folder / name).read_bytes())
    for file in files:
        _add(digest, file)
    return digest.hexdigest()[:DIGITS]


def _add(digest: "hashlib._Hash", file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name} {size} ".encode())
    last = max(0, size - PLACE_BYTES)
    with file.open("rb") as content:
        for place in sorted({last * number // (PLACES - 1) for number in range(PLACES)}):
            content.seek(place)
            digest.update(content.read(PLACE_BYTES))


def _cached(model: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    found = hf_hub_download(model, "config.json", revision=revision, local_files_only=True)
    return Path(found).parent
