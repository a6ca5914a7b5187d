"""What of a model decides the size of its KV cache, read from a Hugging Face `config.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kvserving_tuner.errors import ModelConfigError

NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep the configuration of their language model."""


class LayerKind(StrEnum):
    """What a layer keeps of a sequence."""

    FULL = "full attention"
    SLIDING = "sliding window"
    LATENT = "latent attention (MLA)"
    STATE = "constant state"
    """Mamba and linear attention: as much for a long sequence as for a short one."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are alike."""

    kind: LayerKind
    count: int
    kv_heads: int = 0
    head_size: int = 0
    window: int | None = None
    """Tokens that a sliding window keeps."""
    latent_size: int = 0
    """Elements of one token in a layer with latent attention: its rank and its rotary part."""


@dataclass(frozen=True)
class ModelShape:
    """A model as its KV cache sees it."""

    groups: tuple[LayerGroup, ...]
    dtype: str
    """16-bit dtype in which it runs, by the configuration."""
    max_length: int | None
    name: str = ""

    @property
    def layers(self) -> int:
        """Layers in all."""
        return sum(group.count for group in self.groups)

    @property
    def unsized_layers(self) -> int:
        """Layers whose constant state is not part of any figure."""
        return sum(group.count for group in self.groups if group.kind is LayerKind.STATE)


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Shape of a model; ModelConfigError names the field that is missing or wrong."""
    text = next((config[name] for name in NESTED if isinstance(config.get(name), Mapping)), config)
    layers = _whole(text, "num_hidden_layers", "n_layer", "num_layers")
    kinds = _layer_kinds(text, layers)
    dtype = str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "")
    length = text.get("max_position_embeddings") or text.get("n_positions")
    return ModelShape(
        groups=_groups(text, kinds),
        dtype=dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16",
        max_length=int(length) if isinstance(length, int) else None,
        name=str(config.get("_name_or_path") or config.get("model_type") or ""),
    )


def _groups(text: Mapping[str, Any], kinds: Sequence[LayerKind]) -> tuple[LayerGroup, ...]:
    found = []
    for kind in dict.fromkeys(kinds):
        count = kinds.count(kind)
        if kind is LayerKind.STATE:
            found.append(LayerGroup(kind, count))
        elif kind is LayerKind.LATENT:
            rank = _whole(text, "kv_lora_rank")
            rotary = _whole(text, "qk_rope_head_dim")
            found.append(LayerGroup(kind, count, kv_heads=1, latent_size=rank + rotary))
        else:
            window = _whole(text, "sliding_window") if kind is LayerKind.SLIDING else None
            found.append(LayerGroup(kind, count, _kv_heads(text), _head_size(text), window))
    return tuple(found)


def _layer_kinds(text: Mapping[str, Any], layers: int) -> list[LayerKind]:
    if text.get("kv_lora_rank"):
        return [LayerKind.LATENT] * layers
    named = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(named, Sequence) and not isinstance(named, str):
        if len(named) != layers:
            raise ModelConfigError("layer_types", f"{layers} entries", str(len(named)))
        return [_named_kind(str(name)) for name in named]
    period, offset = text.get("attn_layer_period"), text.get("attn_layer_offset", 0)
    if isinstance(period, int) and period > 0:
        return [
            LayerKind.FULL if index % period == offset else LayerKind.STATE
            for index in range(layers)
        ]
    every = text.get("full_attention_interval")
    if isinstance(every, int) and every > 0:
        return [
            LayerKind.STATE if (index + 1) % every else LayerKind.FULL for index in range(layers)
        ]
    return _sliding_kinds(text, layers)


def _named_kind(name: str) -> LayerKind:
    if "sliding" in name or name == "local":
        return LayerKind.SLIDING
    if "linear" in name or "mamba" in name or "recurrent" in name or "conv" in name:
        return LayerKind.STATE
    return LayerKind.FULL


def _sliding_kinds(text: Mapping[str, Any], layers: int) -> list[LayerKind]:
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return [LayerKind.FULL] * layers
    pattern = text.get("sliding_window_pattern")
    if pattern is None and text.get("model_type") == "gemma2":
        pattern = 2
    if isinstance(pattern, int) and pattern > 1:
        # One of so many layers, the last of each row, sees everything.
        return [
            LayerKind.SLIDING if (index + 1) % pattern else LayerKind.FULL
            for index in range(layers)
        ]
    first = text.get("max_window_layers") if "use_sliding_window" in text else 0
    first = first if isinstance(first, int) else 0
    return [LayerKind.FULL if index < first else LayerKind.SLIDING for index in range(layers)]


def _kv_heads(text: Mapping[str, Any]) -> int:
    for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
        value = text.get(name)
        if isinstance(value, int) and value > 0:
            return value
    if text.get("multi_query"):
        return 1
    return _whole(text, "num_attention_heads", "n_head", "num_heads")


def _head_size(text: Mapping[str, Any]) -> int:
    for name in ("head_dim", "kv_channels"):
        value = text.get(name)
        if isinstance(value, int) and value > 0:
            return value
    hidden = _whole(text, "hidden_size", "n_embd", "d_model")
    heads = _whole(text, "num_attention_heads", "n_head", "num_heads")
    if hidden % heads:
        raise ModelConfigError("hidden_size", f"a multiple of {heads} heads", str(hidden))
    return hidden // heads


def _whole(text: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = text.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ModelConfigError(name, "a whole number of at least 1", repr(value))
        return value
    raise ModelConfigError(" or ".join(names), "a whole number of at least 1", "nothing")
