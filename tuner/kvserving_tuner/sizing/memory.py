"""Bytes of a KV cache: per token, per sequence, and what fits."""

from dataclasses import dataclass, replace

from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.layers import ModelShape
from kvserving_tuner.sizing.pages import DEFAULT_BLOCK as DEFAULT_BLOCK
from kvserving_tuner.sizing.pages import Layout as Layout
from kvserving_tuner.sizing.pages import Pages, check_format, pages, token_bytes


@dataclass(frozen=True)
class Capacity:
    """What a cache of some size holds, in the terms in which an engine reports it."""

    block_bytes: int
    blocks: int
    tokens: int
    """Sequences of the greatest length that fit, times that length: `kv_cache_size_tokens`."""


def bytes_per_token(shape: ModelShape, layout: Layout) -> int:
    """Bytes of one token that every layer keeps, on all devices together.

    Layers with a sliding window count as long as the token is within it.
    """
    check_format(shape, layout.dtype)
    on_each = sum(token_bytes(group, layout) * group.count for group in shape.groups)
    return on_each * layout.tensor_parallel


def sequence_bytes(shape: ModelShape, layout: Layout, context: int) -> int:
    """Bytes of a sequence of so many tokens, in whole blocks, on all devices together."""
    on_one_stage = replace(layout, pipeline_parallel=1)
    return device_bytes(shape, on_one_stage, context) * layout.tensor_parallel


def device_bytes(shape: ModelShape, layout: Layout, context: int) -> int:
    """Bytes of a sequence on the fullest device.

    Pipeline parallelism gives each stage its own layers.
    """
    return pages(shape, layout).block_bytes * sequence_blocks(shape, layout, context)


def sequence_blocks(shape: ModelShape, layout: Layout, context: int) -> int:
    """Blocks of a sequence of so many tokens, over all tables."""
    if context < 1:
        raise SizingError("context", "at least 1 token", str(context))
    tables = pages(shape, layout).tables
    return sum(table.blocks(context, layout.step_tokens) for table in tables)


def sequences_that_fit(
    shape: ModelShape, layout: Layout, context: int, cache_bytes_per_device: float
) -> int:
    """Sequences of so many tokens that a cache of this size on each device holds.

    vLLM keeps one block for itself.
    """
    blocks = int(cache_bytes_per_device // _sized(shape, layout).block_bytes) - 1
    return max(0, blocks // sequence_blocks(shape, layout, context))


def capacity(
    shape: ModelShape, layout: Layout, max_length: int, cache_bytes_per_device: float
) -> Capacity:
    """What vLLM 0.32 says that a cache of this size holds, for requests of up to `max_length`."""
    laid_out = _sized(shape, layout)
    blocks = int(cache_bytes_per_device // laid_out.block_bytes)
    each = sum(table.reserved(max_length, layout.step_tokens) for table in laid_out.tables)
    return Capacity(laid_out.block_bytes, blocks, int(blocks / each * max_length))


def _sized(shape: ModelShape, layout: Layout) -> Pages:
    laid_out = pages(shape, layout)
    if laid_out.block_bytes == 0:
        raise SizingError("config", "a model with a KV cache of known size", shape.name or "none")
    return laid_out
