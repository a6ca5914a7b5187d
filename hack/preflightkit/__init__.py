"""A small Llama, two hosts, and the preflight's cheap checks on a line of arguments."""

import json
from collections.abc import Mapping
from typing import Any

from kvserving_kernels.preflight.arguments import read_settings
from kvserving_kernels.preflight.checks import check
from kvserving_kernels.preflight.finding import Finding
from kvserving_kernels.preflight.host import Host
from kvserving_kernels.preflight.model import parse_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "head_dim": 32,
}
TOKEN_BYTES = 2 * 4 * 2 * 32 * 2
"""Keys and values of one token in 16 bits: 1024."""

CPU = Host("CPU", "0.32.0", frozenset({"avx2"}), {})
GPU = Host("NVIDIA", "0.32.0", None, {})


def found(
    arguments: str, host: Host = CPU, config: Mapping[str, Any] | None = LLAMA
) -> Finding | None:
    """What speaks against a start with these arguments."""
    model = None if config is None else parse_config(config)
    return check(read_settings(arguments.split()), host, model)


def plugin(**settings: object) -> str:
    """The plugin's settings as an argument."""
    document = json.dumps({"kvserving": settings}, separators=(",", ":"))
    return f"--additional-config={document}"
