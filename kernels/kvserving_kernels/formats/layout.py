"""How each KV format lays out the keys and values of one block and one KV head in bytes.

The *record* of a (block, KV head) pair holds everything that is needed to read it: codes and their
parameters. Nothing about it is kept elsewhere, so that a block may be shared, copied or moved.

A format whose keys are per channel keeps the first tokens of a block, its *anchors*, in 8 bits. The
rest is cut into *runs* of as many tokens, and the keys of a run are stored less its *center*: for
each channel, the mean of the stored keys of the run before (docs/decisions/0005). The codes of a
token depend on itself and on earlier tokens of the block, and are never rewritten.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from kvserving_kernels.errors import LayoutError
from kvserving_kernels.formats.dtypes import KVCacheDType

ALIGNMENT_BYTES: Final = 16
"""Sections and records start at multiples of it, so that vector loads may be used."""

HEAD_SIZES: Final = range(32, 257, 16)
"""Head sizes with a layout: each row of 2-bit codes then fills whole words of 4 bytes."""

ANCHOR_SHARE: Final = 8
"""One of so many tokens of a block is an anchor: fewer give a noisier center, more cost bytes."""

MAXIMUM_ANCHORS: Final = 16
"""A longer run no longer makes a center better, because keys drift along a block."""

PARAMETER_BYTES: Final = 2
"""One 16-bit word per token and per K or V: `formats.parameters` says what is in it."""


class KGrouping(StrEnum):
    """Which keys share quantization parameters."""

    PER_TOKEN = "per token and head"  # noqa: S105  not a password
    PER_CHANNEL = "per channel within a block"


@dataclass(frozen=True)
class Section:
    """A run of bytes inside a record: `rows` rows of `row_bytes`, one row per token."""

    offset_bytes: int
    rows: int
    row_bytes: int

    @property
    def size_bytes(self) -> int:
        """Rows times bytes per row."""
        return self.rows * self.row_bytes

    @property
    def end_bytes(self) -> int:
        """First byte after the section."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True)
class KVLayout:
    """A format, before block size and head size are known.

    Rotated keys need rotated queries, rotated values an output that is rotated back
    (`formats.rotation`). `version` changes whenever the bytes of a record change their meaning, so
    that caches written by another release are never read.
    """

    dtype: KVCacheDType
    k_bits: int
    v_bits: int
    k_grouping: KGrouping
    k_rotated: bool = False
    v_rotated: bool = False
    version: int = 1

    def anchor_tokens(self, block_size: int) -> int:
        """Tokens at the start of each block whose keys are kept in 8 bits."""
        if self.k_grouping is KGrouping.PER_TOKEN:
            return 0
        return min(block_size // ANCHOR_SHARE, MAXIMUM_ANCHORS)

    def page(self, block_size: int, head_size: int) -> "PageLayout":
        """Layout for one block of `block_size` tokens; LayoutError where there is none."""
        refusal = self.why_not(block_size, head_size)
        if refusal is not None:
            raise LayoutError(refusal)
        return PageLayout(self, block_size, head_size)

    def why_not(self, block_size: int, head_size: int) -> str | None:
        """Reason why the format has no layout with these sizes, or None where it has one."""
        if head_size not in HEAD_SIZES:
            return (
                f"head size: {self.dtype} expects a multiple of {HEAD_SIZES.step} from "
                f"{HEAD_SIZES[0]} to {HEAD_SIZES[-1]}, got {head_size}"
            )
        minimum = self.minimum_block_size
        if block_size < minimum or block_size % 16:
            return (
                f"block size: {self.dtype} expects a multiple of 16 of at least {minimum} tokens, "
                f"got {block_size}"
            )
        return None

    @property
    def minimum_block_size(self) -> int:
        """Smallest block: the center of a channel needs at least four anchors."""
        return 16 if self.k_grouping is KGrouping.PER_TOKEN else 4 * ANCHOR_SHARE


@dataclass(frozen=True)
class PageLayout:
    """Byte layout of the record of one block and one KV head.

    Sections in order: anchor keys, key codes, key parameters, value codes, value parameters.
    """

    layout: KVLayout
    block_size: int
    head_size: int

    @property
    def anchor_tokens(self) -> int:
        """Tokens at the start of the block whose keys are kept in 8 bits."""
        return self.layout.anchor_tokens(self.block_size)

    @cached_property
    def k_anchors(self) -> Section:
        """Keys of the anchors, one byte per channel."""
        return Section(0, self.anchor_tokens, self.head_size)

    @cached_property
    def k_codes(self) -> Section:
        """Keys of all other tokens, `k_bits` per channel."""
        start = _aligned(self.k_anchors.end_bytes)
        rows = self.block_size - self.anchor_tokens
        return Section(start, rows, self._row(self.layout.k_bits))

    @cached_property
    def k_params(self) -> Section:
        """One 16-bit word per token for its key."""
        return Section(_aligned(self.k_codes.end_bytes), self.block_size, PARAMETER_BYTES)

    @cached_property
    def v_codes(self) -> Section:
        """Values of all tokens, `v_bits` per channel."""
        start = _aligned(self.k_params.end_bytes)
        return Section(start, self.block_size, self._row(self.layout.v_bits))

    @cached_property
    def v_params(self) -> Section:
        """One 16-bit word per token for its value."""
        return Section(_aligned(self.v_codes.end_bytes), self.block_size, PARAMETER_BYTES)

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token and KV head, as engines count pages.

        ceil((anchors + K codes + K params + V codes + V params) / block_size), each section
        rounded up to 16 bytes.
        """
        return -(-_aligned(self.v_params.end_bytes) // self.block_size)

    @property
    def record_bytes(self) -> int:
        """Bytes per block and KV head: bytes_per_token * block_size."""
        return self.bytes_per_token * self.block_size

    @property
    def bits_per_element(self) -> float:
        """Stored bits per K or V element: 8 * record_bytes / (2 * block_size * head_size)."""
        return 8 * self.record_bytes / (2 * self.block_size * self.head_size)

    @property
    def low_bit_share(self) -> float:
        """Share of K and V elements of a full block that are stored in fewer than 8 bits."""
        low = (self.layout.k_bits < 8) * self.k_codes.rows
        low += (self.layout.v_bits < 8) * self.v_codes.rows
        return low / (2 * self.block_size)

    def block_bytes(self, kv_heads: int) -> int:
        """Bytes per block and layer with this many KV heads on this rank, without padding."""
        return self.record_bytes * kv_heads

    def capacity_ratio(self, other_bits: float = 16.0) -> float:
        """How many times more tokens fit than with `other_bits` per element."""
        return other_bits / self.bits_per_element

    def _row(self, bits: int) -> int:
        return self.head_size * bits // 8


LAYOUTS: Final[dict[KVCacheDType, KVLayout]] = {
    layout.dtype: layout
    for layout in (
        KVLayout(KVCacheDType.INT8, 8, 8, KGrouping.PER_TOKEN),
        KVLayout(KVCacheDType.K8V4, 8, 4, KGrouping.PER_TOKEN, v_rotated=True),
        KVLayout(KVCacheDType.INT4, 4, 4, KGrouping.PER_CHANNEL),
        KVLayout(
            KVCacheDType.INT4_HADAMARD, 4, 4, KGrouping.PER_CHANNEL, k_rotated=True, v_rotated=True
        ),
        KVLayout(KVCacheDType.INT2, 2, 2, KGrouping.PER_CHANNEL),
        KVLayout(KVCacheDType.K2V4, 2, 4, KGrouping.PER_CHANNEL),
    )
}
"""Layouts of the formats that this package stores itself."""


def layout_of(dtype: str) -> KVLayout:
    """Layout of a format by its public name; LayoutError for a format that has none."""
    try:
        return LAYOUTS[KVCacheDType(dtype)]
    except (KeyError, ValueError):
        known = ", ".join(LAYOUTS)
        raise LayoutError(f"KV dtype: expected one of {known}, got {dtype!r}") from None


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
