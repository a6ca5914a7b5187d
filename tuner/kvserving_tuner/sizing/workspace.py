"""What an engine takes of a GPU besides weights and cache: an estimate, before it is profiled.

Of Llama 3.1 8B with a budget of 8,192 tokens the terms are 0.7 GiB of activations, 0.2 of logits,
and 1 of what is there whatever the model. An engine measures it at start: its own figure counts.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.sizing.families import language_model

FIXED_BYTES: Final = 1 << 30
"""CUDA's context, communicators, captured graphs."""
UNKNOWN_BYTES: Final = 2 << 30
"""All of it, where a configuration does not say how wide the model is."""
EXPANDED_BYTES: Final = 256 << 20
"""Keys and values that formats of this package have expanded at a time, for prompts."""
HIDDEN_COPIES: Final = 4
"""Of a token's hidden state: residual, input and output of a layer, and its norm."""
LOGIT_BYTES: Final = 6
"""A logit in 16 bits and its copy in 32, for sampling."""


def workspace_bytes(
    config: Mapping[str, Any],
    dtype: str,
    budget: int,
    sequences: int,
    tensor_parallel: int = 1,
) -> int:
    """Bytes on each device, for steps of `budget` tokens and `sequences` answers."""
    text = language_model(config)
    own = EXPANDED_BYTES if dtype in LAYOUTS else 0
    hidden, inner = _whole(text, "hidden_size"), _inner(text)
    if hidden is None or inner is None:
        return UNKNOWN_BYTES + own
    # Gate and up projections and their product, split over the devices; hidden states are not.
    token = 2 * (3 * inner // tensor_parallel + HIDDEN_COPIES * hidden)
    logits = sequences * (_whole(text, "vocab_size") or 0) * LOGIT_BYTES
    return FIXED_BYTES + budget * token + logits + own


def _inner(text: Mapping[str, Any]) -> int | None:
    """Width of a token's feed-forward layers, of all experts that it goes to."""
    experts = _whole(text, "num_experts_per_tok")
    of_expert = _whole(text, "moe_intermediate_size")
    dense = _whole(text, "intermediate_size") or _whole(text, "n_inner")
    if experts is not None and (of_expert or dense):
        return max(experts * (of_expert or dense or 0), dense or 0)
    return dense


def _whole(text: Mapping[str, Any], name: str) -> int | None:
    value = text.get(name)
    return value if type(value) is int and value > 0 else None
