"""Sizes of the constant states of layers without attention, as vLLM 0.32 keeps them."""

from collections.abc import Mapping
from typing import Any

from kvserving_tuner.sizing.layers import State


def read_state(text: Mapping[str, Any]) -> State | None:
    """State of one layer, None where the configuration does not say enough.

    Each kind keeps the last inputs of a convolution, `kernel - 1` rows of its channels, and Mamba
    and gated delta nets a matrix per head beside. Source: `MambaStateShapeCalculator` of vLLM.
    """
    for kind in (_gated_delta_net, _mamba, _nemotron, _short_convolution):
        state = kind(text)
        if state is not None:
            return state
    return None


def _gated_delta_net(text: Mapping[str, Any]) -> State | None:
    found = _wholes(
        text,
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    if found is None:
        return None
    keys, values, key, value, kernel = found
    channels = 2 * keys * key + values * value
    return State(channels * (kernel - 1), values * value * key, _dtype(text, "mamba_ssm_dtype"))


def _mamba(text: Mapping[str, Any]) -> State | None:
    found = _wholes(text, "mamba_d_state", "mamba_d_conv")
    if found is None:
        return None
    width, kernel = found
    said = _wholes(text, "mamba_d_inner") or _wholes(text, "mamba_d_ssm")
    inner = said[0] if said else _product(text, "mamba_n_heads", "mamba_d_head")
    inner = inner or _product(text, "mamba_expand", "hidden_size")
    groups = _wholes(text, "mamba_n_groups") or (0,)
    return _mamba_state(text, inner, groups[0], width, kernel) if inner else None


def _nemotron(text: Mapping[str, Any]) -> State | None:
    found = _wholes(
        text, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"
    )
    if found is None:
        return None
    heads, head, groups, width, kernel = found
    return _mamba_state(text, heads * head, groups, width, kernel)


def _mamba_state(
    text: Mapping[str, Any], inner: int, groups: int, width: int, kernel: int
) -> State:
    channels = inner + 2 * groups * width
    return State(channels * (kernel - 1), inner * width, _dtype(text, "mamba_ssm_cache_dtype"))


def _short_convolution(text: Mapping[str, Any]) -> State | None:
    width = _wholes(text, "conv_dim") or _wholes(text, "hidden_size")
    kernel = _wholes(text, "conv_L_cache")
    return None if width is None or kernel is None else State(width[0] * (kernel[0] - 1))


def _product(text: Mapping[str, Any], first: str, second: str) -> int:
    """Product of two fields, 0 where one is missing."""
    found = _wholes(text, first, second)
    return found[0] * found[1] if found else 0


def _wholes(text: Mapping[str, Any], *names: str) -> tuple[int, ...] | None:
    values = [text.get(name) for name in names]
    whole = [value for value in values if type(value) is int and value > 0]
    return tuple(whole) if len(whole) == len(names) else None


def _dtype(text: Mapping[str, Any], name: str) -> str | None:
    value = text.get(name)
    return value if value in ("float32", "float16", "bfloat16") else None
