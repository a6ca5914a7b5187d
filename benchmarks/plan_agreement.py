"""Whether `kvserving plan` sizes KV caches as vLLM does: blocks, bytes of a block, tokens in all.

vLLM starts with each model of `MODELS`, whose layers have the shapes of a real model and random
weights; only the number of layers and what holds no cache is smaller. What it then says of its
cache is compared with what follows from the same `config.json` alone. Run with the Python of an
engine environment that has the tuner on its path:

    python benchmarks/plan_agreement.py
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import envelope

from kvserving_tuner.sizing.memory import Layout, bytes_per_token, capacity
from kvserving_tuner.sizing.shape import read_shape

CACHE_BYTES: Final = 1 << 28
BUDGET: Final = 512
LENGTH: Final = 2048
TIMEOUT_SECONDS: Final = 200
SMALL: Final = {
    "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""What all have: it holds no cache."""

MODELS: Final[dict[str, dict[str, Any]]] = {
    "Llama 3.1 8B": {
        "attention": "GQA",
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 4,
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    },
    "Llama 2 7B": {
        "attention": "MHA",
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "num_attention_heads": 32, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    },
    "Falcon 7B": {
        "attention": "MQA",
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 4544,
        "num_attention_heads": 71, "num_kv_heads": 71, "num_hidden_layers": 2,
        "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True,
        "bias": False, "alibi": False, "layer_norm_epsilon": 1e-5, "ffn_hidden_size": 256,
    },
    "StarCoder": {
        "attention": "MQA",
        "architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "n_embd": 6144,
        "n_head": 48, "n_layer": 2, "n_inner": 256, "n_positions": 8192, "multi_query": True,
        "activation_function": "gelu_pytorch_tanh",
    },
    "DeepSeek V2 Lite": {
        "attention": "MLA",
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
        "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 3, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    },
    "Mistral 7B v0.1": {
        "attention": "sliding window",
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 2,
        "sliding_window": 1024, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    },
    "Gemma 2 2B": {
        "attention": "full and sliding window, 1:1",
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "num_hidden_layers": 6, "sliding_window": 512, "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "Gemma 3 1B": {
        "attention": "full and sliding window, 1:5 and two more",
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "num_hidden_layers": 8, "sliding_window": 512, "hidden_activation": "gelu_pytorch_tanh",
    },
    "LFM2 1.2B": {
        "attention": "full and short convolutions",
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 2048,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 6,
        "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention"],
        "conv_L_cache": 3, "conv_dim": 2048, "conv_bias": False, "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 256, "norm_eps": 1e-5,
    },
    "Qwen3-Next 80B": {
        "attention": "full and gated delta nets",
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
        "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "num_hidden_layers": 4, "num_experts": 0, "num_experts_per_tok": 0,
        "mlp_only_layers": [0, 1, 2, 3], "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    },
}  # fmt: skip
OWN: Final = ("int8", "k8v4", "int4", "int4_hadamard", "int2", "k2v4")
CASES: Final = (
    *((model, "bfloat16") for model in MODELS),
    ("Llama 3.1 8B", "fp8_e4m3"),
    *(("Llama 3.1 8B", dtype) for dtype in OWN),
    ("Llama 2 7B", "k8v4"),
    ("Gemma 2 2B", "fp8_e4m3"),
)


def main() -> None:
    """Start an engine for each case and write the rows as they come."""
    options = _options()
    if options.one:
        print(json.dumps(reported(*options.one)), flush=True)  # noqa: T201
        return
    # What is there already stays, unless it is measured again.
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    began = time.monotonic()
    for model, dtype in CASES:
        if time.monotonic() - began > options.seconds:
            break
        if options.models and model not in options.models:
            continue
        if options.dtypes and dtype not in options.dtypes:
            continue
        row = {"model": model, "attention": MODELS[model]["attention"], "dtype": dtype}
        row |= compared(model, dtype)
        rows = [each for each in rows if (each["model"], each["dtype"]) != (model, dtype)]
        rows.append(row)
        print(json.dumps(row), flush=True)  # noqa: T201
        envelope.write(options.out, rows)


def compared(model: str, dtype: str) -> dict[str, Any]:
    """What an engine says beside what is planned for the blocks that it chose."""
    command = [sys.executable, __file__, "--one", model, dtype]
    # An engine that cannot be started on this machine is said to be so, not left out.
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"refused": f"did not start within {TIMEOUT_SECONDS} s"}
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        return {"refused": (ended.stderr.strip().splitlines() or ["no output"])[-1][:300]}
    said = json.loads(lines[-1])
    asked = said.pop("asked")
    shape = read_shape(asked["config"])
    layout = Layout(dtype, asked["block_size"], step_tokens=asked["step_tokens"])
    planned = capacity(shape, layout, asked["max_model_len"], asked["cache_bytes"])
    found = {
        "block_bytes": planned.block_bytes,
        "blocks": planned.blocks,
        "tokens": planned.tokens,
    }
    agrees = all(said[name] == value for name, value in found.items())
    per_token = bytes_per_token(shape, layout)
    figures = {"planned": found, "reported": said, "bytes_per_token": per_token}
    return {"asked": asked, **figures, "agrees": agrees}


def reported(model: str, dtype: str) -> dict[str, Any]:
    """Start vLLM with a model and say what it says of its cache."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "kvserving"}
    from vllm import LLM

    config = SMALL | {k: v for k, v in MODELS[model].items() if k != "attention"}
    own: dict[str, Any] = {}
    if dtype in OWN:
        own["additional_config"] = {"kvserving": {"kv_cache_dtype": dtype}}
    elif dtype != "bfloat16":
        own["kv_cache_dtype"] = dtype
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        engine = LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
            max_model_len=LENGTH, max_num_batched_tokens=BUDGET, max_num_seqs=4,
            kv_cache_memory_bytes=CACHE_BYTES, enable_prefix_caching=False, **own,
        )  # fmt: skip
    core = engine.llm_engine.engine_core.engine_core
    settings, kv_cache = core.vllm_config, core.scheduler.kv_cache_config
    size = max(tensor.size for tensor in kv_cache.kv_cache_tensors)
    return {
        "asked": {
            "config": config,
            # What a CPU's engine begins with; states may make it larger.
            "block_size": 16 if settings.model_config.use_mla else 128,
            "step_tokens": settings.max_in_flight_tokens,
            "max_model_len": LENGTH,
            "cache_bytes": CACHE_BYTES,
        },
        "block_size": settings.cache_config.block_size,
        "blocks": kv_cache.num_blocks,
        "block_bytes": size // kv_cache.num_blocks,
        "tokens": settings.cache_config.kv_cache_size_tokens,
        "groups": len(kv_cache.kv_cache_groups),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", help="only these")
    parser.add_argument("--dtypes", nargs="+", help="only these")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no case after that")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/plan_agreement.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
