"""Whether a running engine's memory holds one request in another format or eviction; pure.

vLLM lays out no cache without room for a request of the longest context, beside one block that it
keeps back. An engine that was started with a small format may be too small for a larger one.
"""

from dataclasses import dataclass
from typing import Final

from kvserving_kernels.eviction import Eviction, StreamingLLM
from kvserving_kernels.formats import record_bytes

_KEPT_BACK: Final = 1


@dataclass(frozen=True)
class Room:
    """The cache of one worker, as it is laid out now."""

    dtype: str
    """Format in force, resolved."""
    block_bytes: int
    """Bytes of a block in it, over all layers and heads of the worker."""
    cache_bytes: int
    """Bytes that a cache may have."""
    block_size: int
    head_size: int
    max_model_len: int
    step_tokens: int
    """Most tokens of a request that are under way at once."""
    fixed_blocks: int | None = None
    """Blocks that a cache has whatever its format, where a user has fixed that."""

    def why_not(self, dtype: str, eviction: Eviction) -> str | None:
        """Reason why a cache in a format (resolved) and eviction is too small, None if it is not.

        None as well where a format's size is not known: the engine itself then says.
        """
        now = record_bytes(self.dtype, self.block_size, self.head_size)
        then = record_bytes(dtype, self.block_size, self.head_size)
        if now is None or then is None or self.block_bytes < 1:
            return None
        block_bytes = self.block_bytes * then // now
        blocks = self.fixed_blocks or self.cache_bytes // block_bytes
        needed = self._needed(eviction) + _KEPT_BACK
        if blocks >= needed:
            return None
        fitting = (blocks - _KEPT_BACK) * self.block_size
        shorter = f" or --max-model-len of at most {fitting}" if fitting > 0 else ""
        wanted = (
            f"--num-gpu-blocks-override of at least {needed}"
            if self.fixed_blocks
            else f"--kv-cache-memory-bytes of at least {needed * block_bytes}"
        )
        return (
            f"one request of max_model_len ({self.max_model_len}) tokens takes {needed} blocks, "
            f"and in {dtype} the cache has {blocks}: start the engine with {wanted}{shorter}"
        )

    def _needed(self, eviction: Eviction) -> int:
        if isinstance(eviction, StreamingLLM):
            return eviction.peak_blocks(self.max_model_len, self.step_tokens, self.block_size)
        return -(-self.max_model_len // self.block_size)
