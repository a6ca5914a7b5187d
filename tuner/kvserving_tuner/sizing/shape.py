"""What of a model decides the size of its KV cache, read from a Hugging Face `config.json`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kvserving_tuner.errors import ModelConfigError
from kvserving_tuner.sizing.families import language_model
from kvserving_tuner.sizing.layers import LayerGroup, LayerKind, ModelShape
from kvserving_tuner.sizing.states import read_state

FULL, SLIDING, LATENT, STATE = (
    LayerKind.FULL,
    LayerKind.SLIDING,
    LayerKind.LATENT,
    LayerKind.STATE,
)
INDEX_SCALE_BYTES: Final = 4
"""Of a token's key in the index of sparse attention, whose elements have 8 bits."""
NEMOTRON_LETTERS: Final = {"M": (STATE,), "*": (FULL,), "-": (), "E": ()}


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Shape of a model; ModelConfigError names the field that is missing or wrong."""
    text = language_model(config)
    layers = _whole(text, "num_hidden_layers")
    kinds = _layer_kinds(text, layers)
    # Layers that read what an earlier one has stored, as in Gemma 3n, have no cache.
    stored = layers - _optional(text, "num_kv_shared_layers")
    dtype = str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "")
    length = text.get("max_position_embeddings")
    single = [
        _layer(text, kind, index)
        for index, of_layer in enumerate(kinds[:stored])
        for kind in of_layer
    ]
    return ModelShape(
        groups=_alike(layer for layer in single if layer is not None),
        dtype=dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16",
        max_length=int(length) if isinstance(length, int) else None,
        name=str(config.get("_name_or_path") or config.get("model_type") or ""),
    )


def _alike(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in counts.items())


def _layer(text: Mapping[str, Any], kind: LayerKind, index: int) -> LayerGroup | None:
    """One layer; None for one that keeps nothing."""
    if kind is STATE:
        return LayerGroup(kind, 1, state=read_state(text))
    if kind is LATENT:
        latent = _whole(text, "kv_lora_rank") + _whole(text, "qk_rope_head_dim")
        head = _optional(text, "index_head_dim") if text.get("index_topk") else 0
        index_bytes = head + INDEX_SCALE_BYTES if head else 0
        return LayerGroup(kind, 1, kv_heads=1, latent_size=latent, index_bytes=index_bytes)
    heads, size = _kv_heads(text, index), _head_size(text)
    if heads == 0:
        return LayerGroup(STATE, 1, state=read_state(text)) if _has_states(text) else None
    value = _optional(text, "v_head_dim")
    value_size = value if value not in (0, size) else None
    if kind is SLIDING:
        window = _whole(text, "sliding_window")
        return LayerGroup(kind, 1, heads, size, window, value_size=value_size)
    # Layers with full attention beside windows may have heads of their own, as in Gemma 4.
    size = _optional(text, "global_head_dim") or size
    heads = _optional(text, "num_global_key_value_heads") or heads
    return LayerGroup(kind, 1, heads, size, value_size=value_size)


def _layer_kinds(text: Mapping[str, Any], layers: int) -> list[tuple[LayerKind, ...]]:
    """What each layer keeps, which may be nothing or two things."""
    attention = LATENT if text.get("kv_lora_rank") else FULL
    named = _named_kinds(text, layers)
    if named is None and attention is LATENT:
        return [(LATENT,)] * layers
    if named is None:
        return [(kind,) for kind in _sliding_kinds(text, layers)]
    return [tuple(attention if kind is FULL else kind for kind in of_layer) for of_layer in named]


def _named_kinds(text: Mapping[str, Any], layers: int) -> list[tuple[LayerKind, ...]] | None:
    """What a configuration says of each layer, None where it does not."""
    for field in ("layer_types", "layers_block_type"):
        named = text.get(field)
        if isinstance(named, Sequence) and not isinstance(named, str):
            if len(named) != layers:
                raise ModelConfigError(field, f"{layers} entries", str(len(named)))
            return [_named_kind(str(name)) for name in named]
    letters = text.get("hybrid_override_pattern")
    if isinstance(letters, str):
        if len(letters) != layers or not set(letters) <= NEMOTRON_LETTERS.keys():
            known = "".join(NEMOTRON_LETTERS)
            raise ModelConfigError(
                "hybrid_override_pattern", f"{layers} letters of {known}", letters
            )
        return [NEMOTRON_LETTERS[letter] for letter in letters]
    with_attention = _attention_layers(text, layers)
    if with_attention is None:
        return [(FULL, STATE)] * layers if text.get("model_type") == "falcon_h1" else None
    return [(FULL,) if index in with_attention else (STATE,) for index in range(layers)]


def _attention_layers(text: Mapping[str, Any], layers: int) -> set[int] | None:
    """Which layers of a hybrid have attention, None where all have."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("full_attn_layers"), Sequence):
        # Kimi Linear counts from one.
        return {int(index) - 1 for index in linear["full_attn_layers"]}
    for field in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(text.get(field), Sequence):
            return {int(index) for index in text[field]}
    marks = text.get("attn_type_list")
    if isinstance(marks, Sequence):
        return {index for index, mark in enumerate(marks) if mark}
    period, offset = text.get("attn_layer_period"), text.get("attn_layer_offset", 0)
    if isinstance(period, int) and period > 0:
        return {index for index in range(layers) if index % period == offset}
    every = text.get("full_attention_interval")
    if isinstance(every, int) and every > 0:
        return {index for index in range(layers) if (index + 1) % every == 0}
    return None


def _named_kind(name: str) -> tuple[LayerKind, ...]:
    if "sliding" in name or name == "local":
        return (SLIDING,)
    if name == "hybrid":
        return (FULL, STATE)
    if any(word in name for word in ("linear", "mamba", "recurrent", "conv")):
        return (STATE,)
    if name in ("mlp", "moe"):
        return ()
    # vLLM keeps all tokens of chunked attention, too, unless it is told not to.
    return (FULL,)


def _sliding_kinds(text: Mapping[str, Any], layers: int) -> list[LayerKind]:
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return [FULL] * layers
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        if len(pattern) != layers:
            raise ModelConfigError("sliding_window_pattern", f"{layers} entries", str(len(pattern)))
        return [SLIDING if slides else FULL for slides in pattern]
    if isinstance(pattern, int) and pattern > 1:
        # One of so many layers, the last of each row, sees everything.
        return [SLIDING if (index + 1) % pattern else FULL for index in range(layers)]
    first = text.get("max_window_layers") if "use_sliding_window" in text else 0
    first = first if isinstance(first, int) else 0
    return [FULL if index < first else SLIDING for index in range(layers)]


def _has_states(text: Mapping[str, Any]) -> bool:
    return read_state(text) is not None


def _kv_heads(text: Mapping[str, Any], index: int) -> int:
    value = text.get("num_key_value_heads")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if index >= len(value) or type(value[index]) is not int or value[index] < 0:
            raise ModelConfigError("num_key_value_heads", "a number for each layer", repr(value))
        return int(value[index])
    if isinstance(value, int) and value > 0:
        return value
    return _whole(text, "num_attention_heads")


def _head_size(text: Mapping[str, Any]) -> int:
    value = text.get("head_dim")
    if isinstance(value, int) and value > 0:
        return value
    hidden, heads = _whole(text, "hidden_size"), _whole(text, "num_attention_heads")
    if hidden % heads:
        raise ModelConfigError("hidden_size", f"a multiple of {heads} heads", str(hidden))
    return hidden // heads


def _optional(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _whole(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if value is None:
        raise ModelConfigError(name, "a whole number of at least 1", "nothing")
    if type(value) is not int or value < 1:
        raise ModelConfigError(name, "a whole number of at least 1", repr(value))
    return value
