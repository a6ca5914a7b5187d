"""Attention backends that leave freed blocks out: any of those below with its metadata compacted.

The runner's block tables still name the blocks that the scheduler has freed, and others may own
them by now. So the builder of a batch's metadata leaves them out by the same rule by which the
scheduler frees them, and the kernels stay as they are. Slots for new tokens come from the whole
table and are not touched.
"""

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import torch
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, replace_as

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.eviction import BACKENDS, EvictionBounds, StreamingLLM
from kvserving_kernels.ops.compaction import compact, cut, first_window_blocks
from kvserving_kernels.plugin.adapters.v0_32.backend import KVFormatBackend
from kvserving_kernels.plugin.adapters.v0_32.selection import unfit_backend
from kvserving_kernels.plugin.adapters.v0_32.streaming import StreamingSpec


class EvictingBackend:
    """Comes before a backend in the order of its bases; a subclass names policy and steps."""

    policy: ClassVar[StreamingLLM]
    step_tokens: ClassVar[int]
    whole: ClassVar[type[AttentionBackend]]

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """The backend's own spec, as one from which blocks are freed."""
        spec = cls.whole.customize_spec(spec)
        if type(spec) is not FullAttentionSpec:
            raise UnsupportedEngineError(
                f"eviction: expected layers with full attention, got {type(spec).__name__}"
            )
        low, _ = EvictionBounds.of_engine(spec.block_size, 0).window_tokens
        if cls.policy.window_tokens < low:
            raise UnsupportedEngineError(
                f"eviction.window_tokens: expected at least one block, {low} tokens, "
                f"got {cls.policy.window_tokens}"
            )
        return replace_as(
            spec,
            StreamingSpec,
            sink_tokens=cls.policy.sink_tokens,
            window_tokens=cls.policy.window_tokens,
            step_tokens=cls.step_tokens,
        )

    @classmethod
    def get_builder_cls(cls) -> type[AttentionMetadataBuilder[Any]]:
        """The backend's own builder behind a compaction of what it is given."""
        builder: type[AttentionMetadataBuilder[Any]] = _builder(cls.whole.get_builder_cls())
        return builder


class CompactingBuilder:
    """Comes before a metadata builder in the order of its bases."""

    # Another block table would have to be compacted too.
    supports_update_block_table: ClassVar[bool] = False

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, *rest: Any, **named: Any
    ) -> None:
        super().__init__(  # type: ignore[call-arg]
            kv_cache_spec, layer_names, vllm_config, *rest, **named
        )
        # Schedules of Flash attention are kept in a buffer for as many sequences as there are
        # requests; a prompt step is cut into more.
        self.aot_schedule = False
        self._policy: StreamingLLM = kv_cache_spec.policy
        self._block_size: int = kv_cache_spec.block_size
        self._tables: torch.Tensor | None = None
        self._lengths: torch.Tensor | None = None
        self._rows: int = vllm_config.scheduler_config.max_num_seqs

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Graphs of decode steps alone: a prompt step has no fixed number of sequences."""
        support: AttentionCGSupport = super().get_cudagraph_support(  # type: ignore[misc]
            vllm_config, kv_cache_spec
        )
        most = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return support if support.value < most.value else most

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """Metadata of one step, without what was freed."""
        common = common_attn_metadata
        common = self._decode(common) if common.max_query_len == 1 else self._cut(common)
        return super().build(0, common, fast_build)  # type: ignore[misc]

    def _decode(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        policy, size = self._policy, self._block_size
        first = first_window_blocks(policy, size, common.seq_lens)
        table, lengths = compact(policy, size, common.block_table_tensor, first, common.seq_lens)
        # A captured graph reads where it read when it was captured.
        table, lengths = self._kept(table, lengths)
        return self._described(common, block_table_tensor=table, seq_lens=lengths)

    def _kept(
        self, table: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = table.shape
        if self._tables is None or self._lengths is None or self._tables.shape[1] != width:
            most = max(self._rows, rows)
            self._tables = table.new_zeros((most, width))
            self._lengths = lengths.new_zeros(most)
        if rows > len(self._tables):
            return table, lengths
        self._tables[:rows].copy_(table)
        self._lengths[:rows].copy_(lengths)
        return self._tables[:rows], self._lengths[:rows]

    def _cut(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        policy, size = self._policy, self._block_size
        lengths = common.seq_lens_cpu_upper_bound
        # Exact for all that this is used with; on a CPU the lengths themselves are at hand.
        if common.seq_lens.device.type == "cpu" or lengths is None:
            lengths = common.seq_lens.cpu()
        rows = common.num_reqs
        pieces = cut(policy, size, common.query_start_loc_cpu[: rows + 1], lengths[:rows])
        device = common.seq_lens.device
        sequences = pieces.sequences.to(device)
        table, compacted = compact(
            policy,
            size,
            common.block_table_tensor[sequences],
            pieces.first_blocks.to(device),
            pieces.lengths.to(device, common.seq_lens.dtype),
        )
        prefilling = common.is_prefilling
        return self._described(
            common,
            query_start_loc=pieces.query_start.to(device, common.query_start_loc.dtype),
            query_start_loc_cpu=pieces.query_start.to(common.query_start_loc_cpu.dtype),
            seq_lens=compacted,
            num_reqs=len(pieces.sequences),
            max_query_len=int(pieces.query_start.diff().max()),
            block_table_tensor=table,
            is_prefilling=None
            if prefilling is None
            else prefilling[pieces.sequences.to(prefilling.device)],
        )

    def _described(
        self, common: CommonAttentionMetadata, **changes: Any
    ) -> CommonAttentionMetadata:
        visible = self._policy.visible_tokens(self._block_size)
        return replace(
            common,
            max_seq_len=min(common.max_seq_len, visible),
            seq_lens_cpu_upper_bound=None,
            req_idx=None,
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
            **changes,
        )


def evicting(whole: Any, policy: StreamingLLM, step_tokens: int) -> Any:
    """The backend with a policy; UnsupportedEngineError where its kernels are not known to fit."""
    if not _can_evict(whole):
        raise UnsupportedEngineError(f"eviction: {unfit_backend(whole.get_name())}")
    form: Any = _evicting(whole, policy, step_tokens)
    return form


def backend_that_cannot_evict(worker: Any) -> str | None:
    """In a worker: name of the first backend in use whose kernels are not known to fit."""
    from vllm.model_executor.layers.attention import Attention

    layers = worker.model_runner.vllm_config.compilation_config.static_forward_context.values()
    for layer in layers:
        if not isinstance(layer, Attention) or layer.attn_type != "decoder":
            continue
        whole = getattr(layer.attn_backend, "whole", layer.attn_backend)
        if not _can_evict(whole):
            return str(whole.get_name())
    return None


def _can_evict(whole: Any) -> bool:
    return issubclass(whole, KVFormatBackend) or whole.get_name() in BACKENDS


def published(path: str, policy: StreamingLLM, step_tokens: int) -> str:
    """Path, as vLLM imports classes by, of the evicting form of the backend at a path."""
    backend = evicting(resolve_obj_by_qualname(path), policy, step_tokens)
    globals()[backend.__name__] = backend
    return f"{__name__}.{backend.__name__}"


@cache
def _evicting(whole: Any, policy: StreamingLLM, step_tokens: int) -> Any:
    sizes = f"{policy.sink_tokens}_{policy.window_tokens}_{step_tokens}"
    name = f"Evicting{whole.__name__}_{sizes}"
    parts = {"policy": policy, "step_tokens": step_tokens, "whole": whole, "__module__": __name__}
    return type(name, (EvictingBackend, whole), parts)


@cache
def _builder(whole: Any) -> Any:
    return type(f"Compacting{whole.__name__}", (CompactingBuilder, whole), {})
