"""StreamingLLM in vLLM's scheduler: a KV cache spec, and the manager of its blocks.

Relied on: `KVCacheSpecRegistry`, `FullAttentionSpec`, and of `SingleTypeKVCacheManager` that
`remove_skipped_blocks` is called before each step with the tokens whose steps have ended, and that
`get_num_blocks_to_allocate` decides on admission. The spec travels from the workers to the engine
core, so that importing this module, which registers it, happens there in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashList, KVCacheBlock, resolve_block_hashes
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvserving_kernels.eviction import StreamingLLM


@dataclass(frozen=True, kw_only=True)
class StreamingSpec(FullAttentionSpec):
    """Full attention of which only sinks and a window stay in the cache.

    `step_tokens` is the most tokens of a request under way at once; the manager, which decides on
    admission, is not told it by vLLM.
    """

    sink_tokens: int
    window_tokens: int
    step_tokens: int

    @property
    def policy(self) -> StreamingLLM:
        """The policy, for its arithmetic."""
        return StreamingLLM(self.sink_tokens, self.window_tokens)

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Bytes of a request of the longest context at its peak; the engine's capacity follows."""
        length = int(vllm_config.model_config.max_model_len)
        blocks = self.policy.peak_blocks(length, self.step_tokens, self.block_size)
        return blocks * int(self.page_size_bytes)

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """One spec for a group of layers, which must be equal."""
        own = [{name: getattr(spec, name, None) for name in _OWN_FIELDS} for spec in specs]
        if any(values != own[0] for values in own):
            raise ValueError(f"layers of one group differ in their eviction: {own}")
        full = [replace_as(spec, FullAttentionSpec, drop=_OWN_FIELDS) for spec in specs]
        merged: Self = replace_as(FullAttentionSpec.merge(full), cls, **own[0])
        return merged


_OWN_FIELDS = ("sink_tokens", "window_tokens", "step_tokens")


class StreamingManager(SingleTypeKVCacheManager):
    """Frees whole blocks between sinks and window as a request grows."""

    evicted_blocks: ClassVar[int] = 0
    """Blocks freed since the process started; a switch of the cache makes a new manager."""

    kv_cache_spec: StreamingSpec

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Free what no token from `processed_computed_tokens` on sees."""
        policy = self.kv_cache_spec.policy
        sinks = policy.sink_blocks(self.block_size)
        window = policy.first_window_block(processed_computed_tokens, self.block_size)
        blocks = self.req_to_blocks.get(request_id, [])
        # What was freed before lies in front of the rest, and may be long.
        for block in reversed(blocks[sinks:window]):
            if block.is_null:
                break
            StreamingManager.evicted_blocks += 1
        self._remove_blocks_in_range(request_id, sinks, window)

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        *rest: Any,
        apply_admission_cap: bool = False,
        **named: Any,
    ) -> int:
        """Blocks a request needs; for admission those of its peak, whatever its length."""
        if not apply_admission_cap:
            needed: int = super().get_num_blocks_to_allocate(
                request_id, num_tokens, new_computed_blocks, *rest, **named
            )
            return needed
        spec = self.kv_cache_spec
        peak = spec.policy.peak_blocks(num_tokens, spec.step_tokens, self.block_size)
        found = sum(not block.is_null for block in new_computed_blocks)
        new = max(0, peak - found - self._held(request_id))
        # Blocks of the prefix cache that nobody uses count as free until they are taken.
        return new + int(self._get_num_evictable_blocks(new_computed_blocks))

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: BlockHashList,
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        alignment_tokens: int,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Longest cached prefix of which the next token's sinks and window are all there."""
        if not isinstance(kv_cache_spec, StreamingSpec):
            raise TypeError(f"expected a StreamingSpec, got {type(kv_cache_spec).__name__}")
        size, policy = kv_cache_spec.block_size, kv_cache_spec.policy
        hashes = resolve_block_hashes(block_hashes, block_pool.hash_block_size, size)

        def cached(index: int) -> list[KVCacheBlock] | None:
            found: list[KVCacheBlock] | None = block_pool.get_cached_block(
                hashes[index], kv_cache_group_ids
            )
            return found

        last = max_length // size
        head: list[list[KVCacheBlock]] = []
        while len(head) < min(policy.sink_blocks(size), last):
            found = cached(len(head))
            if found is None:
                last = len(head)
                break
            head.append(found)
        tail = _longest_tail(cached, len(head), last, policy.hit_blocks(size))
        blocks = len(head) + len(tail)
        if tail:
            blocks = max(tail) + 1
        rows = tuple(
            [
                head[index][group]
                if index < len(head)
                else tail[index][group]
                if index in tail
                else block_pool.null_block
                for index in range(blocks)
            ]
            for group in range(len(kv_cache_group_ids))
        )
        return rows, blocks * size

    def _held(self, request_id: str) -> int:
        return sum(not block.is_null for block in self.req_to_blocks.get(request_id, ()))


def _longest_tail(cached: Any, first: int, last: int, needed: int) -> dict[int, list[KVCacheBlock]]:
    """Newest run of cached blocks in [first, last) that a token behind it can go on from.

    A run is long enough with `needed` blocks, or when it reaches the sinks.
    """
    run: dict[int, list[KVCacheBlock]] = {}
    for index in range(last - 1, first - 1, -1):
        if len(run) == needed and run:
            break
        found = cached(index)
        if found is None:
            run = {}
        else:
            run[index] = found
    reaches_sinks = bool(run) and min(run) == first
    return run if len(run) >= needed or reaches_sinks else {}


KVCacheSpecRegistry._ensure_registered()
KVCacheSpecRegistry.register(
    StreamingSpec, StreamingManager, uniform_type_base_spec=FullAttentionSpec
)
