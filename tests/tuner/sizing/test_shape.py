"""Shapes from configurations as model families write them."""

from typing import Any

import pytest

from kvserving_tuner.errors import ModelConfigError
from kvserving_tuner.sizing.shape import LayerKind, read_shape

BASE = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}
FULL, SLIDING, STATE = LayerKind.FULL, LayerKind.SLIDING, LayerKind.STATE


@pytest.mark.parametrize(
    ("more", "kv_heads", "head_size"),
    [
        ({}, 8, 64),
        ({"num_key_value_heads": 2}, 2, 64),
        ({"num_key_value_heads": None}, 8, 64),
        ({"multi_query": True}, 1, 64),
        ({"num_kv_heads": 4}, 4, 64),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, 2, 64),
        ({"head_dim": 128}, 8, 128),
        ({"head_dim": None}, 8, 64),
        ({"kv_channels": 96}, 8, 96),
    ],
)
def test_heads_and_their_size(more: dict[str, Any], kv_heads: int, head_size: int) -> None:
    (group,) = read_shape(BASE | more).groups
    assert (group.kv_heads, group.head_size) == (kv_heads, head_size)


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({}, {FULL: 4}),
        ({"sliding_window": None}, {FULL: 4}),
        ({"sliding_window": 128}, {SLIDING: 4}),
        ({"sliding_window": 128, "use_sliding_window": False}, {FULL: 4}),
        (
            {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 3},
            {FULL: 3, SLIDING: 1},
        ),
        ({"sliding_window": 128, "sliding_window_pattern": 4}, {SLIDING: 3, FULL: 1}),
        ({"sliding_window": 128, "model_type": "gemma2"}, {SLIDING: 2, FULL: 2}),
        (
            {
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            {SLIDING: 2, FULL: 2},
        ),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, {STATE: 3, FULL: 1}),
        ({"full_attention_interval": 4}, {STATE: 3, FULL: 1}),
        ({"attn_layer_period": 4, "attn_layer_offset": 2}, {STATE: 3, FULL: 1}),
        ({"layers_block_type": ["mamba", "attention", "mamba", "mamba"]}, {STATE: 3, FULL: 1}),
    ],
)
def test_layers_by_what_they_keep(more: dict[str, Any], kinds: dict[LayerKind, int]) -> None:
    shape = read_shape(BASE | more)
    assert {group.kind: group.count for group in shape.groups} == kinds
    assert shape.layers == 4
    assert shape.unsized_layers == kinds.get(STATE, 0)


def test_a_multimodal_models_language_part_counts() -> None:
    config = {"model_type": "vlm", "num_hidden_layers": 99, "text_config": BASE}
    assert read_shape(config).layers == 4


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "float8_e4m3fn"}, "bfloat16"),
        ({}, "bfloat16"),
    ],
)
def test_the_16_bit_dtype(more: dict[str, Any], dtype: str) -> None:
    assert read_shape(BASE | more).dtype == dtype


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "num_hidden_layers or n_layer or num_layers: expected a whole number"),
        (BASE | {"num_hidden_layers": "4"}, "num_hidden_layers: expected a whole number of at"),
        (BASE | {"num_hidden_layers": 0}, "got 0"),
        (BASE | {"hidden_size": 500}, "hidden_size: expected a multiple of 8 heads, got 500"),
        (BASE | {"layer_types": ["full_attention"]}, "layer_types: expected 4 entries, got 1"),
        (BASE | {"kv_lora_rank": 512}, "qk_rope_head_dim: expected a whole number"),
        (
            BASE | {"layer_types": ["sliding_attention"] * 4},
            "sliding_window: expected a whole number of at least 1, got nothing",
        ),
    ],
)
def test_a_configuration_that_says_too_little_is_refused(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelConfigError) as raised:
        read_shape(config)
    assert words in str(raised.value)
