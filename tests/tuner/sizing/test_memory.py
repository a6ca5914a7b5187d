"""Sizes of KV caches, for models of every kind and every format."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.memory import (
    Layout,
    bytes_per_token,
    device_bytes,
    sequence_bytes,
    sequences_that_fit,
)
from kvserving_tuner.sizing.shape import ModelShape, read_shape

KIB, GIB = 1024, 1024**3
K32, K128 = 32_768, 131_072


def shape(layers: int, heads: int, kv_heads: int, **more: Any) -> ModelShape:
    config = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * 128,
        "torch_dtype": "float16",
    }
    return read_shape(config | more)


SMALL_GQA, LARGE_MHA, LARGE_GQA = shape(32, 32, 8), shape(80, 64, 64), shape(80, 64, 8)


@pytest.mark.parametrize(
    ("model", "kib", "gib_32k", "gib_128k"),
    [(SMALL_GQA, 128, 4, 16), (LARGE_MHA, 2560, 80, 320), (LARGE_GQA, 320, 10, 40)],
)
def test_the_table_that_everybody_knows(
    model: ModelShape, kib: int, gib_32k: int, gib_128k: int
) -> None:
    half, eighth = Layout("float16"), Layout("fp8_e4m3")
    assert bytes_per_token(model, half) == kib * KIB
    assert sequence_bytes(model, half, K32) == gib_32k * GIB
    assert sequence_bytes(model, half, K128) == gib_128k * GIB
    assert 2 * bytes_per_token(model, eighth) == kib * KIB
    assert 2 * sequence_bytes(model, eighth, K128) == gib_128k * GIB


def test_formats_of_ours_take_what_their_layout_says() -> None:
    for dtype, layout in LAYOUTS.items():
        page = layout.page(64, 128)
        expected = 32 * 8 * page.bytes_per_token
        assert bytes_per_token(SMALL_GQA, Layout(dtype.value, 64)) == expected


def test_a_latent_is_stored_once_and_copied_to_each_device() -> None:
    # DeepSeek-V3: 61 layers, a latent of 512 and 64 rotary elements a token.
    config = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    model = read_shape({**config, "num_attention_heads": 128, "hidden_size": 7168})
    assert bytes_per_token(model, Layout("bfloat16")) == 61 * 576 * 2
    assert bytes_per_token(model, Layout("bfloat16", tensor_parallel=8)) == 8 * 61 * 576 * 2
    one, eight = Layout("bfloat16"), Layout("bfloat16", tensor_parallel=8)
    assert device_bytes(model, eight, K32) == device_bytes(model, one, K32)


def test_a_window_holds_no_more_than_itself_and_one_block() -> None:
    # Mistral 7B v0.1: all layers see 4,096 tokens.
    model = shape(32, 32, 8, sliding_window=4096)
    layout = Layout("bfloat16")
    assert sequence_bytes(model, layout, 2048) == 2048 * 128 * KIB
    assert sequence_bytes(model, layout, K128) == (4096 + 16) * 128 * KIB
    stepped = Layout("bfloat16", step_tokens=2048)
    assert sequence_bytes(model, stepped, K128) == (4096 + 2048 + 16) * 128 * KIB


def test_layers_of_two_kinds_count_each_by_its_own_rule() -> None:
    # Gemma 2: every other layer has a window.
    model = shape(26, 8, 4, sliding_window=4096, model_type="gemma2")
    per_layer = bytes_per_token(model, Layout("bfloat16")) // 26
    expected = 13 * per_layer * K32 + 13 * per_layer * (4096 + 16)
    assert sequence_bytes(model, Layout("bfloat16"), K32) == expected


def test_heads_are_copied_where_there_are_more_devices() -> None:
    model = shape(32, 32, 2)
    assert bytes_per_token(model, Layout("bfloat16", tensor_parallel=2)) == 32 * KIB
    assert bytes_per_token(model, Layout("bfloat16", tensor_parallel=8)) == 128 * KIB
    on_two = device_bytes(model, Layout("bfloat16", tensor_parallel=2), K32)
    assert on_two == device_bytes(model, Layout("bfloat16", tensor_parallel=8), K32)


def test_stages_have_their_own_layers_and_the_fullest_counts() -> None:
    one, three = Layout("bfloat16"), Layout("bfloat16", pipeline_parallel=3)
    whole = device_bytes(SMALL_GQA, one, K32)
    assert device_bytes(SMALL_GQA, three, K32) == whole * 11 // 32


def test_what_fits_is_whole_sequences() -> None:
    layout = Layout("float16")
    assert sequences_that_fit(SMALL_GQA, layout, K32, 9 * GIB) == 2
    assert sequences_that_fit(SMALL_GQA, layout, K32, 1 * GIB) == 0


@given(st.integers(1, 300_000), st.sampled_from([16, 32, 64, 128]))
def test_a_sequence_takes_whole_blocks_and_wastes_less_than_one(context: int, block: int) -> None:
    layout = Layout("float16", block)
    size, token = sequence_bytes(SMALL_GQA, layout, context), 128 * KIB
    assert size % (block * token) == 0
    assert 0 <= size - context * token < block * token


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout("int3"), "dtype: expected one of bfloat16"),
        (Layout("fp4"), "got fp4"),
        (Layout("auto"), "got auto"),
        (Layout("int4", 16), "block size"),
    ],
)
def test_a_format_without_a_size_is_refused_by_name(layout: Layout, words: str) -> None:
    with pytest.raises(SizingError) as raised:
        bytes_per_token(SMALL_GQA, layout)
    assert words in str(raised.value)


def test_a_sequence_has_a_token() -> None:
    with pytest.raises(SizingError, match="context: expected at least 1 token, got 0"):
        sequence_bytes(SMALL_GQA, Layout("float16"), 0)
