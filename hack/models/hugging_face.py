"""Writes a Llama model as a Hugging Face folder: configuration, weights in bfloat16, tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer


@dataclass(frozen=True)
class LlamaShape:
    """Sizes and constants of a Llama model, and its special tokens."""

    hidden: int
    intermediate: int
    layers: int
    query_heads: int
    kv_heads: int
    head: int
    vocabulary: int
    max_positions: int
    rope_theta: float
    norm_epsilon: float
    bos_token: str
    bos_token_id: int
    eos_token: str
    eos_token_id: int

    def config(self) -> dict[str, Any]:
        """Return config.json of a model with tied embeddings."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.query_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": self.rope_theta,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
        }

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight by its Hugging Face name."""
        query, kv = self.query_heads * self.head, self.kv_heads * self.head
        layer = {
            "input_layernorm": (self.hidden,),
            "self_attn.q_proj": (query, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, query),
            "post_attention_layernorm": (self.hidden,),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }
        shapes = {
            f"model.layers.{number}.{name}.weight": shape
            for number in range(self.layers)
            for name, shape in layer.items()
        }
        outside = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        return {**outside, **shapes}


def write_folder(
    folder: Path,
    shape: LlamaShape,
    weights: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    chat_template: str,
) -> None:
    """Write everything that vLLM and transformers load; weights of a wrong shape are an error."""
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    if found != shape.weight_shapes():
        wrong = sorted(set(found.items()) ^ set(shape.weight_shapes().items()))
        raise SystemExit(f"weights do not fit the configuration, for example {wrong[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", shape.config())
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": shape.bos_token_id, "eos_token_id": shape.eos_token_id},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": shape.bos_token,
            "eos_token": shape.eos_token,
            "model_max_length": shape.max_positions,
            "clean_up_tokenization_spaces": False,
            "chat_template": chat_template,
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tensors = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # Engines read the folder as another user.
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")
