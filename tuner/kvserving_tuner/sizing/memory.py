"""Bytes of a KV cache: per token, per sequence, and what fits."""

import math
from dataclasses import dataclass

from kvserving_kernels.errors import LayoutError
from kvserving_kernels.formats import DTYPES, LAYOUTS, KVCacheDType
from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.shape import LayerGroup, LayerKind, ModelShape

DEFAULT_BLOCK = 16
"""Tokens of a block where nothing else is asked for, as in vLLM on GPUs."""
DEFAULT_OWN_BLOCK = 64
"""Tokens of a block with a format of this package: smaller ones store more parameters a token."""
FLOAT32_BITS = 32.0


@dataclass(frozen=True)
class Layout:
    """How a cache is kept: format, block, and over how many devices."""

    dtype: str
    block_size: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    step_tokens: int = 0
    """Most tokens of one engine step, which a sliding window holds besides itself."""

    @property
    def block(self) -> int:
        """Tokens of a block."""
        own = self.dtype in LAYOUTS
        return self.block_size or (DEFAULT_OWN_BLOCK if own else DEFAULT_BLOCK)


def bytes_per_token(shape: ModelShape, layout: Layout) -> int:
    """Bytes of one token that every layer keeps, on all devices together.

    Layers with a sliding window count as long as the token is within it.
    """
    return sum(_token_bytes(group, layout) * group.count for group in shape.groups)


def sequence_bytes(shape: ModelShape, layout: Layout, context: int) -> int:
    """Bytes of a sequence of so many tokens, in whole blocks, on all devices together."""
    if context < 1:
        raise SizingError("context", "at least 1 token", str(context))
    total = 0
    for group in shape.groups:
        tokens = context
        if group.window is not None:
            tokens = min(context, group.window + layout.step_tokens)
        blocks = math.ceil(tokens / layout.block)
        if group.window is not None and tokens < context:
            # A window that does not begin with a block lies in one more.
            blocks += 1
        total += _token_bytes(group, layout) * group.count * blocks * layout.block
    return total


def device_bytes(shape: ModelShape, layout: Layout, context: int) -> int:
    """Bytes of a sequence on the fullest device.

    Tensor parallelism gives each device its own heads, and copies where there are fewer heads than
    devices; a latent is copied to each. Pipeline parallelism gives each stage its own layers.
    """
    per_stage = math.ceil(shape.layers / layout.pipeline_parallel) / shape.layers
    return math.ceil(sequence_bytes(shape, layout, context) / layout.tensor_parallel * per_stage)


def sequences_that_fit(
    shape: ModelShape, layout: Layout, context: int, cache_bytes_per_device: float
) -> int:
    """Sequences of so many tokens that a cache of this size on each device holds."""
    return max(0, int(cache_bytes_per_device // device_bytes(shape, layout, context)))


def _token_bytes(group: LayerGroup, layout: Layout) -> int:
    if group.kind is LayerKind.STATE:
        return 0
    if group.kind is LayerKind.LATENT:
        return layout.tensor_parallel * math.ceil(group.latent_size * _native_bits(layout) / 8)
    heads = max(group.kv_heads, layout.tensor_parallel)
    own = LAYOUTS.get(KVCacheDType(layout.dtype)) if layout.dtype in LAYOUTS else None
    if own is None:
        return heads * math.ceil(2 * group.head_size * _native_bits(layout) / 8)
    try:
        return heads * own.page(layout.block, group.head_size).bytes_per_token
    except LayoutError as error:
        raise SizingError("dtype", "a format that can store this model", str(error)) from error


def _native_bits(layout: Layout) -> float:
    if layout.dtype == "float32":
        return FLOAT32_BITS
    known = DTYPES.get(KVCacheDType(layout.dtype)) if layout.dtype in set(KVCacheDType) else None
    if known is None or known.bits_per_element is None:
        sized = [d.value for d, info in DTYPES.items() if info.bits_per_element or d in LAYOUTS]
        raise SizingError("dtype", f"one of {', '.join(sized)}", layout.dtype)
    return known.bits_per_element
