"""Shapes from configurations as model families write them."""

from typing import Any

import pytest

from kvserving_tuner.errors import ModelConfigError
from kvserving_tuner.sizing.layers import LayerKind
from kvserving_tuner.sizing.shape import read_shape

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
        ({"attn_config": {"kv_n_heads": 2}}, 2, 64),
        ({"num_attention_groups": 2}, 2, 64),
        # Falcon 7B writes all of its heads and has one KV head, 40B what it writes.
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 8}, 1, 64),
        (
            {
                "model_type": "falcon",
                "multi_query": True,
                "num_kv_heads": 2,
                "new_decoder_architecture": True,
            },
            2,
            64,
        ),
        ({"model_type": "gemma"}, 8, 256),
        ({"model_type": "gemma", "head_dim": 128}, 8, 128),
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


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({"attn_layer_indices": [1]}, {STATE: 3, FULL: 1}),
        ({"full_attn_idxs": [0, 3]}, {STATE: 2, FULL: 2}),
        ({"attn_type_list": [0, 0, 0, 1]}, {STATE: 3, FULL: 1}),
        ({"hybrid_override_pattern": "M-*M"}, {STATE: 2, FULL: 1}),
        ({"layers_block_type": ["mamba", "hybrid", "mamba", "mamba"]}, {STATE: 4, FULL: 1}),
        ({"model_type": "falcon_h1"}, {FULL: 4, STATE: 4}),
        # A layer with no attention at all keeps nothing.
        ({"num_key_value_heads": [2, 0, 2, 0]}, {FULL: 2}),
        # Layers at the end read what others have stored.
        ({"num_kv_shared_layers": 3}, {FULL: 1}),
        ({"sliding_window": 128, "sliding_window_pattern": [1, 1, 0, 1]}, {SLIDING: 3, FULL: 1}),
        ({"layer_types": ["chunked_attention"] * 4}, {FULL: 4}),
        (
            {
                "kv_lora_rank": 64,
                "qk_rope_head_dim": 16,
                "linear_attn_config": {"full_attn_layers": [2]},
            },
            {STATE: 3, LayerKind.LATENT: 1},
        ),
    ],
)
def test_models_that_mix_what_layers_keep(
    more: dict[str, Any], kinds: dict[LayerKind, int]
) -> None:
    found: dict[LayerKind, int] = {}
    for group in read_shape(BASE | more).groups:
        found[group.kind] = found.get(group.kind, 0) + group.count
    assert found == kinds


def test_what_a_configuration_leaves_out_is_its_familys_default() -> None:
    # All that Gemma 3 4B says of its language model.
    said = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560}
    shape = read_shape({"model_type": "gemma3", "text_config": {**said, "sliding_window": 1024}})
    sliding, full = sorted(shape.groups, key=lambda group: group.window is None)
    assert (sliding.count, sliding.window, full.count) == (29, 1024, 5)
    assert {(group.kv_heads, group.head_size) for group in shape.groups} == {(4, 256)}


def test_layers_that_were_pruned_one_by_one_have_their_own_heads() -> None:
    # Nemotron-NAS.
    blocks = [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}] * 2
    (group,) = read_shape(BASE | {"block_configs": blocks}).groups
    assert (group.count, group.kv_heads) == (2, 2)


def test_sparse_attention_keeps_an_index_beside_the_latents() -> None:
    # DeepSeek V3.2: 128 bytes and a scale for each token.
    more = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048, "index_head_dim": 128}
    (group,) = read_shape(BASE | more).groups
    assert (group.latent_size, group.index_bytes) == (576, 132)


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
        ({}, "num_hidden_layers: expected a whole number of at least 1, got nothing"),
        (BASE | {"num_hidden_layers": "4"}, "num_hidden_layers: expected a whole number of at"),
        (BASE | {"num_hidden_layers": 0}, "got 0"),
        (BASE | {"hidden_size": 500}, "hidden_size: expected a multiple of 8 heads, got 500"),
        (BASE | {"layer_types": ["full_attention"]}, "layer_types: expected 4 entries, got 1"),
        (BASE | {"num_key_value_heads": [2, 2]}, "num_key_value_heads: expected a number for each"),
        (BASE | {"hybrid_override_pattern": "M-?M"}, "hybrid_override_pattern: expected 4 letters"),
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
