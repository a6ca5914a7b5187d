"""How many bytes a cache of each worker may have, however often the cache is laid out anew.

vLLM profiles the memory of every worker at start and gives all as many blocks as the one with the
least can hold. Of what it found it keeps the first rank's alone, and others may have less: theirs
is what they hold when the engine is first asked.
"""

from typing import Any, Final

from kvserving_kernels.plugin.adapters.v0_32.ranks import ask

_BYTES: Final = "_kvserving_cache_bytes"


def cache_bytes(core: Any) -> list[int]:
    """Bytes that a cache may have, by rank."""
    found: list[int] | None = getattr(core, _BYTES, None)
    if found is None:
        found = _find(core)
        setattr(core, _BYTES, found)
    return found


def laid_out_bytes(kv_cache: Any) -> int:
    """Bytes of a worker's cache as vLLM has planned it; all of its tensors share one allocation."""
    return max((int(tensor.size) for tensor in kv_cache.kv_cache_tensors), default=0)


def held_bytes(worker: Any) -> int:
    """In a worker: bytes of the cache that it has."""
    return laid_out_bytes(worker.model_runner.kv_cache_config)


def workers_of(core: Any) -> int:
    """How many workers an engine has, over all ways of splitting a model."""
    return int(core.vllm_config.parallel_config.world_size)


def _find(core: Any) -> list[int]:
    available, workers = int(core.available_gpu_memory_for_kv_cache), workers_of(core)
    if workers == 1:
        return [available]
    cache = core.vllm_config.cache_config
    # Fixed sizes are the same everywhere, and what is held of them says nothing of the memory.
    if cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None:
        return [available] * workers
    return [int(held) for held in ask(core, held_bytes)]
