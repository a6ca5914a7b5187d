"""What a model folder tells without loading weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvserving_kernels.preflight.finding import Finding, Reason

FIELD: Final = "model"

# A model with any of these has layers whose KV size does not follow from the plain formula.
_NOT_PLAIN: Final = (
    "sliding_window",
    "layer_types",
    "kv_lora_rank",
    "text_config",
    "attention_chunk_size",
    "no_rope_layers",
)


@dataclass(frozen=True)
class ModelConfig:
    """The parts of config.json that the checks use; None where it does not say."""

    torch_dtype: str | None
    max_positions: int | None
    head_size: int | None
    kv_elements_per_token: int | None
    """Key and value elements of one token in all layers; None where layers differ in kind."""


def is_local(model: str) -> bool:
    """Whether a model is a path, and not a name on a hub."""
    return model.startswith(("/", "./", "../", "~"))


def read_model(model: str) -> ModelConfig | Finding:
    """Read a local model's config.json."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return Finding(FIELD, Reason.MODEL_NOT_FOUND, f"the model folder {folder} does not exist")
    path = folder / "config.json"
    if not path.is_file():
        held = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        message = f"the model folder {folder} has no config.json; it holds {held}"
        return Finding(FIELD, Reason.MODEL_NOT_FOUND, message)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {error}"
        return Finding(FIELD, Reason.MODEL_CONFIG_UNREADABLE, message)
    if not isinstance(document, dict) or not (
        document.get("architectures") or document.get("model_type")
    ):
        message = f"{path}: expected a JSON object with architectures or model_type"
        return Finding(FIELD, Reason.MODEL_CONFIG_UNREADABLE, message)
    return parse_config(document)


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json document."""
    dtype = document.get("torch_dtype") or document.get("dtype")
    layers = _integer(document, "num_hidden_layers")
    heads = _integer(document, "num_attention_heads")
    kv_heads = _integer(document, "num_key_value_heads") or heads
    hidden = _integer(document, "hidden_size")
    head_size = _integer(document, "head_dim") or (hidden // heads if hidden and heads else None)
    plain = not any(document.get(key) for key in _NOT_PLAIN)
    elements = None
    if plain and layers and kv_heads and head_size:
        elements = 2 * layers * kv_heads * head_size
    # Scaled rotary positions reach further than the number says; vLLM knows by how much.
    scaled = document.get("rope_scaling") or document.get("rope_parameters")
    return ModelConfig(
        torch_dtype=dtype if isinstance(dtype, str) else None,
        max_positions=None if scaled else _integer(document, "max_position_embeddings"),
        head_size=head_size,
        kv_elements_per_token=elements,
    )


def _integer(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if type(value) is int and value > 0 else None
