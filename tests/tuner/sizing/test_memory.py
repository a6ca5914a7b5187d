"""Sizes of KV caches, for models of every kind and every format."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.layers import ModelShape
from kvserving_tuner.sizing.memory import (
    Layout,
    bytes_per_token,
    capacity,
    device_bytes,
    sequence_blocks,
    sequence_bytes,
    sequences_that_fit,
)
from kvserving_tuner.sizing.shape import read_shape

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


def test_kinds_of_unequal_number_are_padded_to_equal_groups() -> None:
    # Five windows and two full layers: groups of two layers, one window's is padded.
    kinds = ["sliding_attention"] * 5 + ["full_attention"] * 2
    model = shape(7, 8, 1, sliding_window=1024, layer_types=kinds)
    layout, layer = Layout("bfloat16"), 2 * 128 * 2
    blocks = 3 * (1024 // 16 + 1) + K32 // 16
    assert sequence_blocks(model, layout, K32) == blocks
    assert sequence_bytes(model, layout, K32) == blocks * 2 * 16 * layer
    # Nearly as many of both: the fewer are padded instead.
    near = shape(7, 8, 1, sliding_window=1024, layer_types=kinds[1:] + kinds[6:])
    assert sequence_blocks(near, layout, K32) == 1024 // 16 + 1 + K32 // 16


def test_a_state_takes_one_block_which_is_made_large_enough() -> None:
    # Qwen3-Next: three gated delta nets for each layer with attention.
    model = read_shape(
        {
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "torch_dtype": "bfloat16",
        }
    )
    layout, token = Layout("bfloat16"), 2 * 2 * 256 * 2
    state = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 2
    block = 16 * -(-state // (16 * token))
    assert bytes_per_token(model, layout) == 12 * token
    # Twelve layers of each group: one with attention, three with states.
    assert sequence_blocks(model, layout, K32) == -(-K32 // block) + 3
    assert sequence_bytes(model, layout, 1) == 4 * 12 * block * token
    # Two devices have half of the heads and of the states each.
    halved = Layout("bfloat16", tensor_parallel=2)
    assert sequence_bytes(model, halved, K32) == sequence_bytes(model, layout, K32)


def test_states_in_32_bits_are_larger() -> None:
    config = {"model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 2048}
    half = sequence_bytes(read_shape(config), Layout("bfloat16"), 1)
    whole = sequence_bytes(
        read_shape(config | {"mamba_ssm_dtype": "float32"}), Layout("bfloat16"), 1
    )
    assert 1.8 * half < whole < 2 * half


def test_what_an_engine_reports_counts_the_longest_request() -> None:
    # 8 GiB of blocks of 16 tokens and 128 KiB each.
    reported = capacity(SMALL_GQA, Layout("bfloat16"), 1000, 8 * GIB)
    assert (reported.block_bytes, reported.blocks) == (16 * 128 * KIB, 4096)
    assert reported.tokens == int(4096 / 63 * 1000)


def test_a_model_whose_cache_has_no_known_size_is_said_to_be_one() -> None:
    model = read_shape({"num_hidden_layers": 2, "layers_block_type": ["mamba", "mamba"]})
    assert model.unsized_layers == 2
    for ask in (sequences_that_fit, capacity):
        with pytest.raises(SizingError, match="config: expected a model with a KV cache of known"):
            ask(model, Layout("bfloat16"), 1024, GIB)


def test_values_may_have_another_size_than_keys() -> None:
    model = shape(4, 32, 4, head_dim=192, v_head_dim=128)
    assert bytes_per_token(model, Layout("bfloat16")) == 4 * 4 * (192 + 128) * 2


def test_an_index_of_sparse_attention_has_the_same_bytes_in_every_format() -> None:
    more = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048, "index_head_dim": 128}
    model = shape(61, 128, 128, **more)
    assert bytes_per_token(model, Layout("bfloat16")) == 61 * (576 * 2 + 132)
    assert bytes_per_token(model, Layout("fp8_e4m3")) == 61 * (576 + 132)


@pytest.mark.parametrize(
    "more",
    [
        {"sliding_window": 4096},
        {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
        {"full_attention_interval": 4},
    ],
)
def test_formats_of_ours_need_full_attention_in_every_layer(more: dict[str, Any]) -> None:
    model = shape(32, 32, 8, **more)
    for ask in (bytes_per_token, lambda m, layout: sequence_bytes(m, layout, K32)):
        with pytest.raises(SizingError, match="dtype: expected a format of vLLM's"):
            ask(model, Layout("int8"))


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
    # One block is the engine's own.
    assert sequences_that_fit(SMALL_GQA, layout, K32, 8 * GIB) == 1
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
