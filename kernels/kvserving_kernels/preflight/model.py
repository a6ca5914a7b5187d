"""What a model's config.json tells without loading weights, and only what is certain."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kvserving_kernels.preflight.finding import Finding, Reason

FIELD: Final = "model"

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep the configuration of their language model."""

# A model with any of these has layers whose KV size does not follow from the plain formula.
_NOT_PLAIN: Final = (
    "kv_lora_rank",
    "attention_chunk_size",
    "no_rope_layers",
    "layers_block_type",
    "block_configs",
    "attn_layer_period",
    "attn_layer_indices",
    "attn_type_list",
    "full_attention_interval",
    "full_attn_idxs",
    "hybrid_layer_ids",
    "hybrid_override_pattern",
    "linear_attn_config",
    "num_kv_shared_layers",
    "use_cla",
    "cla_share_factor",
    "is_encoder_decoder",
    "ssm_cfg",
    "mamba_d_state",
    "compress_ratios",
    "global_head_dim",
    "swa_head_dim",
    "num_global_key_value_heads",
)
_KV_FORMATS: Final = ("kv_cache_scheme", "kv_cache_quant_algo")
QUANTIZATION_FILE: Final = "hf_quant_config.json"
"""What quantized models of NVIDIA's tool have beside their config.json."""

_GENERATING: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""How the names of architectures that generate text end."""

_FULL: Final = "full_attention"
_LATENT: Final = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "kimi_k2",
    "longcat_flash",
    "pangu_ultra_moe",
)
"""Types of models that vLLM runs with latent attention; others expand what they compress."""

_KV_HEADS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
"""In the order in which vLLM looks for them."""

_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Of which vLLM takes the smallest, unless `model_max_length` is there."""

_FIXED_ROPES: Final = (
    "default",
    "su",
    "longrope",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "deepseek_llama_scaling",
)
"""Kinds of rotary scaling whose reach `max_position_embeddings` already has, for vLLM."""


@dataclass(frozen=True)
class ModelConfig:
    """The parts of config.json that the checks use; None where it does not say for certain."""

    torch_dtype: str | None
    max_positions: int | None
    """Longest context that vLLM lets a user ask for."""
    head_size: int | None
    attention_heads: int | None = None
    kv_heads: int | None = None
    layers: int | None = None
    full_layers: int | None = None
    """Layers that surely keep keys and values of every token, each of the heads above."""
    default_length: int | None = None
    """Longest context of an engine that is asked for none."""
    is_latent: bool = False
    """Whether layers have multi-head latent attention (MLA)."""
    has_window: bool = False
    """Whether layers have a sliding window."""
    has_other_layers: bool = False
    """Whether the model surely has layers that attend to an encoder, or in chunks."""
    quantization: str | None = None
    """Method by which the weights are quantized."""
    names_kv_format: bool = False
    """Whether the model may say itself in which format its KV cache is kept."""

    @property
    def is_plain(self) -> bool:
        """Whether every layer keeps keys and values of every token."""
        return self.full_layers is not None and self.full_layers == self.layers


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
    return read_config(path, (folder / QUANTIZATION_FILE).exists())


def read_config(path: Path, has_quantization_file: bool) -> ModelConfig | Finding:
    """Read a config.json that may have the other file beside it."""
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
    found = parse_config(document)
    return replace(found, names_kv_format=True) if has_quantization_file else found


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json document."""
    nested = [document[key] for key in _NESTED if isinstance(document.get(key), Mapping)]
    text = nested[0] if nested else document
    dtype = _first(text, document, "dtype", "torch_dtype")
    layers = _integer(text, "num_hidden_layers")
    heads = _integer(text, "num_attention_heads")
    kv_heads = next(filter(None, (_integer(text, key) for key in _KV_HEADS)), heads)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        kv_heads = 1
    hidden = _integer(text, "hidden_size")
    head_size = _integer(text, "head_dim") or (hidden // heads if hidden and heads else None)
    compressed, window = bool(text.get("kv_lora_rank")), _has_window(text)
    positions, ropes = _positions(text), list(_ropes(text))
    longest = None if positions is None else _longest(text, positions, ropes)
    # With this kind vLLM falls back to the length before the extension.
    extended = any(kind == "longrope" for kind, _ in ropes)
    quantization = _first(text, document, "quantization_config")
    if not isinstance(quantization, Mapping):
        quantization = {}
    method = quantization.get("quant_method")
    return ModelConfig(
        torch_dtype=dtype if isinstance(dtype, str) else None,
        max_positions=longest,
        head_size=None if compressed else head_size,
        attention_heads=heads,
        kv_heads=None if compressed else kv_heads,
        layers=layers,
        full_layers=_full_layers(text, layers, window) if _generates(document) else None,
        default_length=None if extended else longest,
        is_latent=compressed and text.get("model_type") in _LATENT,
        has_window=window,
        has_other_layers=text.get("attention_chunk_size") is not None
        or any(each.get("is_encoder_decoder") is True for each in (text, document)),
        quantization=method if isinstance(method, str) else None,
        names_kv_format=any(quantization.get(key) for key in _KV_FORMATS)
        or "modelopt" in str(method),
    )


def _generates(document: Mapping[str, Any]) -> bool:
    """Whether the model surely has a KV cache: encoders have none."""
    named = document.get("architectures")
    return isinstance(named, list) and any(str(name).endswith(_GENERATING) for name in named)


def _full_layers(text: Mapping[str, Any], layers: int | None, window: bool) -> int | None:
    """Layers with full attention, None where a key makes that unsure."""
    if layers is None or any(text.get(key) for key in _NOT_PLAIN):
        return None
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return kinds.count(_FULL) if len(kinds) == layers else None
    return None if window else layers


def _has_window(text: Mapping[str, Any]) -> bool:
    # Qwen's models name a window that they do not use unless they say so.
    unsaid = not str(text.get("model_type")).startswith("qwen")
    used = text.get("use_sliding_window")
    return bool(text.get("sliding_window")) and (unsaid if used is None else used is True)


def _positions(text: Mapping[str, Any]) -> int | None:
    named = _integer(text, "model_max_length")
    found = [length for key in _LENGTHS if (length := _integer(text, key)) is not None]
    return named or min(found, default=None)


def _ropes(text: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Kinds and factors of the rotary embeddings; some models have one per kind of layer."""
    for key in ("rope_scaling", "rope_parameters"):
        found = text.get(key)
        if not isinstance(found, Mapping):
            continue
        several = [value for value in found.values() if isinstance(value, Mapping)]
        for rope in several or [found]:
            kind = rope.get("rope_type") or rope.get("type") or "default"
            yield str(kind), rope.get("factor")


def _longest(
    text: Mapping[str, Any], positions: int, ropes: list[tuple[str, object]]
) -> int | None:
    """Positions times the factor of their scaling; None where that is not certain."""
    if "gemma3" in str(text.get("model_type")):
        return positions
    scaled = [factor for kind, factor in ropes if kind not in _FIXED_ROPES]
    factors = [factor for factor in scaled if isinstance(factor, int | float) and factor >= 1]
    if len(factors) < len(scaled):
        return None
    return int(positions * max(factors, default=1.0))


def _first(text: Mapping[str, Any], document: Mapping[str, Any], *keys: str) -> Any:
    return next((place[key] for place in (text, document) for key in keys if place.get(key)), None)


def _integer(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if type(value) is int and value > 0 else None
