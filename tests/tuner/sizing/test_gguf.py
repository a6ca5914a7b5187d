"""Headers of GGUF files, as the `gguf` package writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.files import read_model
from kvserving_tuner.sizing.gguf import read_header
from kvserving_tuner.sizing.layers import LayerKind
from kvserving_tuner.sizing.memory import Layout, bytes_per_token, sequence_bytes
from kvserving_tuner.sizing.shape import read_shape

WEIGHTS = np.zeros((64, 64), dtype=np.float32)


def written(path: Path, architecture: str, add: Callable[[Any], None]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    # A vocabulary and a template stand before what is read, as in real files.
    writer.add_token_list([f"word {number}" for number in range(1000)])
    writer.add_token_scores([0.5] * 5000)
    writer.add_chat_template("{{ messages }}" * 10_000)
    add(writer)
    writer.add_tensor("token_embd.weight", WEIGHTS)
    writer.add_tensor("output.weight", WEIGHTS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama(writer: Any) -> None:
    writer.add_name("Llama 3.1 8B")
    writer.add_block_count(32)
    writer.add_embedding_length(4096)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_context_length(131_072)
    writer.add_rope_dimension_count(128)


def test_a_model_is_read_from_its_header(tmp_path: Path) -> None:
    model = read_model(written(tmp_path / "model.gguf", "llama", llama))
    shape = read_shape(model.config)
    assert bytes_per_token(shape, Layout("float16")) == 128 * 1024
    assert (shape.max_length, shape.name) == (131_072, "Llama 3.1 8B")
    assert model.weights_bytes == (tmp_path / "model.gguf").stat().st_size
    assert read_model(tmp_path) == model


def test_the_first_part_of_a_file_is_enough_and_does_not_say_its_size(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.gguf", "llama", llama).read_bytes()
    part = tmp_path / "part.gguf"
    part.write_bytes(whole[: len(whole) - WEIGHTS.nbytes - 1])
    model = read_model(part)
    assert read_shape(model.config).layers == 32
    assert model.weights_bytes is None
    assert read_model(part, weights_gib=1).weights_bytes == 1024**3


def test_a_part_of_several_does_not_say_the_size_of_all(tmp_path: Path) -> None:
    def split(writer: Any) -> None:
        llama(writer)
        writer.add_uint16("split.count", 3)

    assert read_model(written(tmp_path / "m-1.gguf", "llama", split)).weights_bytes is None


def test_windows_of_gemma_3_follow_its_familys_pattern(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        writer.add_block_count(26)
        writer.add_embedding_length(1152)
        writer.add_head_count(4)
        writer.add_head_count_kv(1)
        writer.add_key_length(256)
        writer.add_value_length(256)
        writer.add_sliding_window(512)

    groups = read_shape(read_model(written(tmp_path / "g.gguf", "gemma3", add)).config).groups
    assert {g.kind: g.count for g in groups} == {LayerKind.SLIDING: 22, LayerKind.FULL: 4}
    assert {(g.kv_heads, g.head_size, g.value_size) for g in groups} == {(1, 256, None)}


def test_latents_are_read(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        writer.add_block_count(61)
        writer.add_embedding_length(7168)
        writer.add_head_count(128)
        writer.add_head_count_kv(1)
        writer.add_key_length(576)
        writer.add_value_length(512)
        writer.add_kv_lora_rank(512)
        writer.add_rope_dimension_count(64)

    shape = read_shape(read_model(written(tmp_path / "d.gguf", "deepseek2", add)).config)
    assert bytes_per_token(shape, Layout("bfloat16")) == 61 * 576 * 2


def test_layers_without_heads_have_states(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        writer.add_block_count(4)
        writer.add_embedding_length(512)
        writer.add_head_count(8)
        writer.add_head_count_kv([0, 0, 2, 0])
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(1024)
        writer.add_ssm_state_size(128)
        writer.add_ssm_group_count(1)
        writer.add_ssm_time_step_rank(16)

    shape = read_shape(read_model(written(tmp_path / "h.gguf", "granitehybrid", add)).config)
    assert {g.kind: g.count for g in shape.groups} == {LayerKind.STATE: 3, LayerKind.FULL: 1}
    assert shape.unsized_layers == 0
    assert sequence_bytes(shape, Layout("bfloat16"), 1) > 3 * 2 * 1024 * 128


@pytest.mark.parametrize("kept", [3, 5, 20, 100, 5000])
def test_a_header_that_is_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    whole = written(tmp_path / "whole.gguf", "llama", llama).read_bytes()
    part = tmp_path / "part.gguf"
    part.write_bytes(whole[:kept])
    words = "no GGUF mark" if kept < 4 else "a file that ends within it"
    with pytest.raises(SizingError, match=words):
        read_header(part)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"GGUF\x01\x00\x00\x00", "version 1"),
        (b"GGUF\x00\x00\x00\x03", "version 50331648"),
        (b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\xff" * 8, "at most 65536 entries"),
        # A text, an array and a key that say to be longer than any file.
        (b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\xff" * 8, "ends within it"),
        (
            b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\1" + b"\0" * 7 + b"k"
            b"\x09\0\0\0" + b"\x04\0\0\0" + b"\xff" * 8,
            "ends within it",
        ),
        (
            b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\1" + b"\0" * 7 + b"k\x63\0\0\0",
            "a known type of value, got",
        ),
    ],
)
def test_a_file_that_lies_is_refused_by_name(tmp_path: Path, start: bytes, words: str) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(start)
    with pytest.raises(SizingError, match=words):
        read_header(file)


def test_a_header_without_an_architecture_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "none.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0" + b"\0" * 16)
    with pytest.raises(SizingError, match=r"general\.architecture: expected the name"):
        read_model(file)
