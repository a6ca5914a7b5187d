"""An attention backend per KV format: pages of our layouts, stored and read by our operations."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheLayout

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats import LAYOUTS, KVCacheDType, KVLayout, PageLayout
from kvserving_kernels.formats.layout import HEAD_SIZES
from kvserving_kernels.ops import compiles
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch
from kvserving_kernels.ops.quantize import new_counters
from kvserving_kernels.ops.registry import select
from kvserving_kernels.plugin.adapters.v0_32.selection import refuse


class KVFormatBackend(AttentionBackend):
    """What all formats have in common; a subclass names its layout."""

    layout: ClassVar[KVLayout]
    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    # vLLM's own name stays `auto`: the pages are bytes, whatever it says.
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        """A name that vLLM keeps for backends from outside."""
        return "CUSTOM"

    @classmethod
    def get_impl_cls(cls) -> "type[KVFormatImpl]":
        """Implementation for this format."""
        return _implementation(cls.layout)

    @staticmethod
    def get_builder_cls() -> "type[KVFormatMetadataBuilder]":
        """Builder of what an implementation needs to know of a batch."""
        return KVFormatMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Head sizes that have a layout."""
        return list(HEAD_SIZES)

    @classmethod
    def get_supported_kernel_block_sizes(cls, kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Block sizes in tokens; a block is never split, since its codes depend on each other."""
        return [MultipleOf(max(16, cls.layout.minimum_block_size))]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """The layout in which all bytes of a block and head are adjacent."""
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """Give the spec with pages of bytes, sized for this format."""
        if spec.state_content_bytes is not None:
            return spec
        if spec.head_size_v != spec.head_size:
            raise UnsupportedEngineError(
                f"KV format {cls.layout.dtype}: expected keys and values of one size, got heads of "
                f"{spec.head_size} and {spec.head_size_v}"
            )
        page = cls.layout.page(spec.block_size, spec.head_size)
        return replace(spec, dtype=torch.uint8, state_content_bytes=page.bytes_per_token)


class Int8Backend(KVFormatBackend):
    """Backend of `int8`."""

    layout = LAYOUTS[KVCacheDType.INT8]


class K8V4Backend(KVFormatBackend):
    """Backend of `k8v4`."""

    layout = LAYOUTS[KVCacheDType.K8V4]


class Int4Backend(KVFormatBackend):
    """Backend of `int4`."""

    layout = LAYOUTS[KVCacheDType.INT4]


class Int4HadamardBackend(KVFormatBackend):
    """Backend of `int4_hadamard`."""

    layout = LAYOUTS[KVCacheDType.INT4_HADAMARD]


class Int2Backend(KVFormatBackend):
    """Backend of `int2`."""

    layout = LAYOUTS[KVCacheDType.INT2]


class K2V4Backend(KVFormatBackend):
    """Backend of `k2v4`."""

    layout = LAYOUTS[KVCacheDType.K2V4]


@dataclass
class KVFormatMetadata(AttentionMetadata):
    """A batch without its padding at the end, and the layer that sees it first in each step."""

    num_actual_tokens: int
    batch: Batch
    first_layer: str


class KVFormatMetadataBuilder(AttentionMetadataBuilder[KVFormatMetadata]):
    """Passes the runner's tensors on: the operations read lengths where they are."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = (
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    )

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._first_layer = layer_names[0] if layer_names else ""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> KVFormatMetadata:
        """Metadata of one step."""
        common = common_attn_metadata
        batch = Batch(
            common.query_start_loc,
            common.seq_lens,
            common.block_table_tensor,
            common.max_query_len,
            on_host=_on_host(common),
        )
        return KVFormatMetadata(common.num_actual_tokens, batch, self._first_layer)


def _on_host(common: CommonAttentionMetadata) -> tuple[list[int], list[int]] | None:
    """Starts and lengths of a step with prompts, of which the runner knows them exactly."""
    lengths = common.seq_lens_cpu_upper_bound
    if common.max_query_len <= 1 or lengths is None:
        return None
    count = common.num_reqs
    return common.query_start_loc_cpu[: count + 1].tolist(), lengths[:count].tolist()


class KVFormatImpl(AttentionImpl):
    """Attention of one layer; a subclass names its layout."""

    layout: ClassVar[KVLayout]

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        refuse(
            f"KV format {self.layout.dtype}",
            (
                ("ALiBi", alibi_slopes is not None),
                ("a sliding window", sliding_window is not None),
                ("a soft cap on logits", bool(logits_soft_cap)),
                ("KV shared with another layer", kv_sharing_target_layer_name is not None),
                *((name, value is not None) for name, value in others.items()),
            ),
        )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.counters: torch.Tensor | None = None
        self._page: PageLayout | None = None
        self._operations: Operations | None = None

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Store keys and values [tokens, kv_heads, head_size]."""
        page, operations = self._for(kv_cache, key.dtype)
        count = slot_mapping.shape[0]
        operations.store(page, key[:count], value[:count], kv_cache, slot_mapping, self.counters)

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: KVFormatMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write attention [tokens, heads, head_size] of queries to what is stored into `output`."""
        # Profiling runs have no batch: what they compute is not looked at.
        if attn_metadata is None:
            return output.zero_()
        page, operations = self._for(kv_cache, query.dtype)
        count, batch = attn_metadata.num_actual_tokens, attn_metadata.batch
        if getattr(layer, "layer_name", None) == attn_metadata.first_layer:
            # Lengths may have changed in place, as they do when a CUDA graph is replayed.
            batch.plans.clear()
        operations.attend(page, query[:count], kv_cache, batch, self.scale, output[:count])
        return output

    def _for(self, kv_cache: torch.Tensor, dtype: torch.dtype) -> tuple[PageLayout, Operations]:
        block_size = kv_cache.shape[2]
        if self._page is None or self._operations is None or self._page.block_size != block_size:
            self._page = self.layout.page(block_size, self.head_size)
            self._operations = select(self._page, kv_cache.device, may_compile=False)
            self.counters = stored(kv_cache.device)
            if kv_cache.is_cuda:
                # What it needs is not there on a CPU.
                from kvserving_kernels.plugin.adapters.v0_32.prompts import use_flash_attention

                use_flash_attention(self.head_size)
            self._operations.prepare(
                self._page, self.num_heads, self.num_kv_heads, dtype, kv_cache.device
            )
        return self._page, self._operations


@cache
def stored(device: torch.device) -> torch.Tensor:
    """Counters [2] of all layers on a device since the worker started, whatever format it had."""
    return new_counters(device)


def counted(worker: Any) -> list[int]:
    """In a worker: values that were not finite, values that were saturated, kernels compiled.

    The first call begins to count the last.
    """
    values = [0, 0]
    # On a GPU reading a count waits for what runs there, so nothing is asked that cannot be.
    if stored.cache_info().currsize:
        values = [int(count) for count in stored(torch.device(worker.device)).tolist()]
    return [*values, compiles.start().count]


@cache
def _implementation(layout: KVLayout) -> type[KVFormatImpl]:
    return type(f"KVFormatImpl_{layout.dtype}", (KVFormatImpl,), {"layout": layout})
