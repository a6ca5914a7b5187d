"""Model families' own words for a shape, put into the common ones; what they leave out.

A `config.json` leaves out what equals the default of its class in Transformers: Gemma 3's says
neither how many heads it has nor which layers have a window. `DEFAULTS` has those that a KV cache
depends on, from the configuration classes of Transformers 5.19.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep the configuration of their language model."""

_GEMMA3: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_GEMMA3N: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 5,
    "num_kv_shared_layers": 15,
}
_GDN: Final = {
    "num_attention_heads": 16,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gemma": {"num_attention_heads": 16, "head_dim": 256},
    "gemma2": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n": _GEMMA3N,
    "gemma3n_text": _GEMMA3N,
    "gpt_oss": {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
    },
    "nemotron_h": {"mamba_ssm_cache_dtype": "float32"},
    "qwen3_5_text": _GDN,
    "qwen3_next": {**_GDN, "num_key_value_heads": 2},
}

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "hidden_size": ("n_embd", "d_model", "model_dim"),
    "num_key_value_heads": (
        "num_kv_heads",
        "n_head_kv",
        "kv_n_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "head_dim": ("kv_channels",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "max_context_length"),
    "sliding_window_pattern": ("_sliding_window_pattern",),
}
"""The common name of a field, and others for it in their order."""


def language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's language model in the common names, with what its family leaves out."""
    text = next((config[name] for name in NESTED if isinstance(config.get(name), Mapping)), config)
    inner = text.get("attn_config")
    # MPT and DBRX have an object of their own for what concerns attention.
    own = {**(inner if isinstance(inner, Mapping) else {}), **text}
    kind = str(own.get("model_type", ""))
    for common, others in _NAMES.items():
        if own.get(common) is None:
            own[common] = next((own[n] for n in others if own.get(n) is not None), None)
    for name, value in DEFAULTS.get(kind, {}).items():
        # A null is said by somebody, but not for what a shape cannot do without.
        if name not in own or (own[name] is None and name != "sliding_window"):
            own[name] = value
    if _is_multi_query(own, kind):
        own["num_key_value_heads"] = 1
    if isinstance(own.get("block_configs"), Sequence):
        own["num_key_value_heads"] = [_block_heads(own, block) for block in own["block_configs"]]
    return own


def _block_heads(own: Mapping[str, Any], block: Any) -> int:
    """KV heads of one layer of a model whose layers were pruned one by one (Nemotron-NAS)."""
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping) or attention.get("no_op"):
        return 0
    group, heads = attention.get("n_heads_in_group"), own.get("num_attention_heads")
    if type(group) is not int or group < 1 or type(heads) is not int:
        return 0
    return heads // group


def _is_multi_query(own: Mapping[str, Any], kind: str) -> bool:
    if not own.get("multi_query"):
        return False
    # Falcon 7B writes as many KV heads as heads and has one; the larger ones have what they write.
    named = own.get("num_key_value_heads") is not None
    return not named or (kind == "falcon" and not own.get("new_decoder_architecture"))
