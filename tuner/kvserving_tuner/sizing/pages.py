"""Blocks of a cache as vLLM 0.32 lays them out: what one takes, and which layers share a table.

All layers alike share one table: a block holds so many tokens of every layer. Where a model mixes
kinds, blocks of one size go to whichever layers need them. Layers are cut into groups of equally
many, the last padded; each group has a table of its own, and the blocks of a sequence are those
of all of its tables. A constant state takes a block, for which blocks are made large enough.
Sources: `get_kv_cache_groups`, `unify_kv_cache_spec_page_size` and `_align_hybrid_block_size`.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvserving_kernels.errors import LayoutError
from kvserving_kernels.formats import DTYPES, LAYOUTS, KVCacheDType
from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.layers import LayerGroup, LayerKind, ModelShape

DEFAULT_BLOCK: Final = 16
"""Tokens of a block where nothing else is asked for, as in vLLM on GPUs."""
DEFAULT_OWN_BLOCK: Final = 64
"""Tokens of a block with a format of this package: smaller ones store more parameters a token."""
BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
FEW_PADDED: Final = 1.5
"""Kinds whose counts of layers differ by less are padded to the larger, not cut to the smaller."""


@dataclass(frozen=True)
class Layout:
    """How a cache is kept: format, block, and over how many devices."""

    dtype: str
    block_size: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    step_tokens: int = 0
    """Most tokens under way at once, which a sliding window holds besides itself."""

    @property
    def block(self) -> int:
        """Tokens of a block."""
        own = self.dtype in LAYOUTS
        return self.block_size or (DEFAULT_OWN_BLOCK if own else DEFAULT_BLOCK)


@dataclass(frozen=True)
class Table:
    """Layers that share one table of blocks."""

    kind: LayerKind
    block: int
    """Tokens of one of its blocks."""
    window: int | None = None

    def blocks(self, context: int, step_tokens: int) -> int:
        """Blocks of a sequence of so many tokens."""
        if self.kind is LayerKind.STATE:
            return 1
        blocks = math.ceil(context / self.block)
        if self.window is None:
            return blocks
        # A window that does not begin with a block lies in one more.
        return min(blocks, math.ceil((self.window - 1 + step_tokens) / self.block) + 1)

    def reserved(self, context: int, step_tokens: int) -> int:
        """The same as vLLM counts it for its longest request."""
        if self.window is None:
            return self.blocks(context, step_tokens)
        return math.ceil(min(self.window - 1 + step_tokens, context) / self.block) + 1


@dataclass(frozen=True)
class Pages:
    """What a cache consists of, on the device with the most layers."""

    block_bytes: int
    tables: tuple[Table, ...]


def pages(shape: ModelShape, layout: Layout) -> Pages:
    """The blocks of a model's cache; SizingError where there is no such cache."""
    check_format(shape, layout.dtype)
    groups = [group for group in shape.groups if page_bytes(group, layout, layout.block)]
    if not groups:
        return Pages(0, ())
    kinds = {(group.kind is LayerKind.STATE, group.window) for group in groups}
    if len(kinds) == 1 and LayerKind.STATE not in {group.kind for group in groups}:
        size = sum(
            page_bytes(group, layout, layout.block)
            * math.ceil(group.count / layout.pipeline_parallel)
            for group in groups
        )
        return Pages(size, (Table(groups[0].kind, layout.block, groups[0].window),))
    return _mixed(groups, layout)


def stores_own(shape: ModelShape) -> bool:
    """Whether a model's cache may have a format of this package: all layers keep all tokens."""
    return all(group.kind is LayerKind.FULL for group in shape.groups)


def check_format(shape: ModelShape, dtype: str) -> None:
    """Raise SizingError for a format that is not stored for such a model."""
    if dtype in LAYOUTS and not stores_own(shape):
        raise SizingError("dtype", "a format of vLLM's for layers without full attention", dtype)


def page_bytes(group: LayerGroup, layout: Layout, block: int) -> int:
    """Bytes of one block of one layer on each device: of a state, whatever the block."""
    if group.kind is LayerKind.STATE:
        return _state_bytes(group, layout)
    return block * token_bytes(group, layout)


def token_bytes(group: LayerGroup, layout: Layout) -> int:
    """Bytes of one token in one layer on each device; a state has none.

    Tensor parallelism gives each device its own heads, and copies where there are fewer heads
    than devices; a latent is copied to each.
    """
    if group.kind is LayerKind.STATE:
        return 0
    if group.kind is LayerKind.LATENT:
        return math.ceil(group.latent_size * _native_bits(layout) / 8) + group.index_bytes
    heads = max(1, math.ceil(group.kv_heads / layout.tensor_parallel))
    own = LAYOUTS.get(KVCacheDType(layout.dtype)) if layout.dtype in LAYOUTS else None
    if own is None:
        elements = group.head_size + (group.value_size or group.head_size)
        return heads * math.ceil(elements * _native_bits(layout) / 8)
    if group.value_size not in (None, group.head_size):
        raise SizingError("dtype", "a format that stores values of another size", layout.dtype)
    try:
        return heads * own.page(layout.block, group.head_size).bytes_per_token
    except LayoutError as error:
        raise SizingError("dtype", "a format that can store this model", str(error)) from error


def _mixed(groups: list[LayerGroup], layout: Layout) -> Pages:
    """Blocks of one size for layers of several kinds."""
    block = _block_for_states(groups, layout)
    sizes = [page_bytes(group, layout, block) for group in groups]
    largest = max(sizes)
    counts = [group.count for group in groups]
    per_table = min(counts)
    if max(counts) < FEW_PADDED * per_table:
        per_table = max(counts)
    tables = []
    for group, size in zip(groups, sizes, strict=True):
        # Smaller tokens: more of them in a block, or some of it unused.
        fit = largest // size if largest % size == 0 else 1
        table = Table(group.kind, block * fit, group.window)
        tables += [table] * math.ceil(group.count / per_table)
    on_stage = math.ceil(per_table / layout.pipeline_parallel)
    return Pages(largest * on_stage, tuple(tables))


def _block_for_states(groups: list[LayerGroup], layout: Layout) -> int:
    states = [page_bytes(g, layout, 1) for g in groups if g.kind is LayerKind.STATE]
    tokens = [token_bytes(g, layout) for g in groups if g.kind is not LayerKind.STATE]
    if not states or not tokens:
        return layout.block
    return layout.block * math.ceil(max(states) / (layout.block * max(tokens)))


def _state_bytes(group: LayerGroup, layout: Layout) -> int:
    state = group.state
    if state is None:
        return 0
    # A cache with fewer bits does not change what a state is kept in.
    model = BYTES.get(layout.dtype, 2)
    recurrent = BYTES[state.recurrent_dtype] if state.recurrent_dtype else model
    total = state.model_elements * model + state.recurrent_elements * recurrent
    return math.ceil(total / layout.tensor_parallel)


def _native_bits(layout: Layout) -> float:
    if layout.dtype == "float32":
        return 8.0 * BYTES["float32"]
    known = DTYPES.get(KVCacheDType(layout.dtype)) if layout.dtype in set(KVCacheDType) else None
    if known is None or known.bits_per_element is None:
        sized = [d.value for d, info in DTYPES.items() if info.bits_per_element or d in LAYOUTS]
        raise SizingError("dtype", f"one of {', '.join(sized)}", layout.dtype)
    return known.bits_per_element
