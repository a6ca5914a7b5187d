"""A GGUF header's metadata as a configuration in the words of Hugging Face's."""

from collections.abc import Mapping
from typing import Any, Final

from kvserving_tuner.errors import ModelConfigError

ARCHITECTURES: Final[Mapping[str, str]] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gpt-oss": "gpt_oss",
    "qwen3next": "qwen3_next",
    "qwen35": "qwen3_5_text",
    "falcon-h1": "falcon_h1",
}
"""Model types of Hugging Face, where they are not called alike."""

FIELDS: Final[Mapping[str, str]] = {
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "full_attention_interval": "full_attention_interval",
    "conv_L_cache": "shortconv.l_cache",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_inner": "ssm.inner_size",
    "vocab_size": "vocab_size",
}
"""The key of each field, which comes after the architecture's name and a dot."""

GATED: Final = ("qwen3_next", "qwen3_5_text")


def as_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for `read_shape`; ModelConfigError where no architecture is named."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelConfigError("general.architecture", "the name of an architecture", "nothing")
    config: dict[str, Any] = {
        "model_type": ARCHITECTURES.get(architecture, architecture),
        "_name_or_path": metadata.get("general.name") or architecture,
    }
    for field, key in FIELDS.items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None:
            config[field] = value if field == "sliding_window_pattern" else _plain(value)
    heads = config.get("num_attention_heads")
    if isinstance(heads, list):
        # One number per layer where some have none: what all others have.
        config["num_attention_heads"] = max(heads, default=0)
    if config["model_type"] in GATED:
        config |= _gated(config)
    return config


def _plain(value: Any) -> Any:
    """One number for all layers where a list has no other."""
    if isinstance(value, list) and value and len(set(value)) == 1:
        return value[0]
    return value


def _gated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Gated delta nets, whose sizes llama.cpp keeps in the words of Mamba."""
    key, inner = config.get("mamba_d_state"), config.get("mamba_d_inner")
    groups, kernel = config.get("mamba_n_groups"), config.get("mamba_d_conv")
    if not (isinstance(key, int) and isinstance(inner, int) and key > 0):
        return {}
    return {
        "linear_num_key_heads": groups,
        "linear_num_value_heads": inner // key,
        "linear_key_head_dim": key,
        "linear_value_head_dim": key,
        "linear_conv_kernel_dim": kernel,
    }
