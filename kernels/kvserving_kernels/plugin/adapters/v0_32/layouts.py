"""What a running engine's cache can be laid out as instead, and why not as something else.

What is said here is known before it is tried: by the engine's configuration, by its memory, and by
the attention backends that its layers have had.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvserving_kernels.errors import InvalidChangeError
from kvserving_kernels.eviction import NO_EVICTION, Eviction, EvictionBounds, StreamingLLM
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.plugin.adapters.v0_32.cache_bytes import cache_bytes, laid_out_bytes
from kvserving_kernels.plugin.adapters.v0_32.ranks import ask
from kvserving_kernels.plugin.adapters.v0_32.selection import (
    effective_dtype,
    eviction_bounds,
    torch_name,
    unfit_backend,
    why_not_evict,
)
from kvserving_kernels.plugin.adapters.v0_32.switch import Cache, cache_of
from kvserving_kernels.plugin.changes import Choices, Value
from kvserving_kernels.plugin.room import Room


class Layouts:
    """The layouts of an `EngineCore`'s cache."""

    def __init__(self, core: Any, formats: Callable[[Any], Mapping[str, str | None]]) -> None:
        """Give layouts; `formats` says of a configuration which formats it allows, and why not."""
        self._core = core
        self._formats = formats
        self._unfit: dict[str, str | None] = {}
        """Names of backends that cannot evict by the format that they serve; None for others."""

    def asked(self, values: Mapping[str, Value]) -> Cache:
        """The cache in force, with these settings in it."""
        cache = cache_of(self._core.vllm_config)
        dtype, eviction = values.get("kv_cache_dtype"), values.get("eviction")
        if dtype is not None:
            cache = replace(cache, dtype=self._resolved(str(dtype)))
        if isinstance(eviction, Eviction):
            cache = replace(cache, eviction=eviction)
        return cache

    def check(self, values: Mapping[str, Value]) -> None:
        """Raise InvalidChangeError for settings that no cache of this engine can have."""
        name, cache = values.get("kv_cache_dtype"), self.asked(values)
        reason = self._formats(self._core.vllm_config).get(str(name)) or self._why_not(cache)
        if reason is not None:
            knob = "eviction" if name is None else "kv_cache_dtype"
            raise InvalidChangeError(knob, "what this engine can lay out", f"{cache}: {reason}")

    def dtypes(self) -> Choices:
        """Formats that may be taken alone, with the eviction in force."""
        cache = cache_of(self._core.vllm_config)
        reasons = {
            name: reason or self._why_not(replace(cache, dtype=self._resolved(name)))
            for name, reason in self._formats(self._core.vllm_config).items()
        }
        return Choices(
            tuple(name for name, reason in reasons.items() if reason is None), _given(reasons)
        )

    def evictions(self) -> EvictionBounds:
        """Policies that may be taken alone, with the format in force."""
        cache, bounds = cache_of(self._core.vllm_config), eviction_bounds(self._core.vllm_config)
        policies = (NO_EVICTION, StreamingLLM(0, min(bounds.window_tokens)))
        reasons = {
            policy.policy: self._why_not(replace(cache, eviction=policy))
            for policy in policies
            # One in force is possible, whatever its sizes.
            if policy.policy != cache.eviction.policy
        }
        return replace(bounds, unavailable=_given(reasons))

    def _resolved(self, dtype: str) -> str:
        if dtype == KVCacheDType.AUTO:
            return torch_name(self._core.vllm_config.model_config.dtype)
        return dtype

    def _why_not(self, cache: Cache) -> str | None:
        config = self._core.vllm_config
        if cache == cache_of(config):
            return None
        if cache.eviction != NO_EVICTION:
            reason = why_not_evict(config) or self._backend_reason(cache.dtype)
            if reason is not None:
                return reason
        return self._room().why_not(cache.dtype, cache.eviction)

    def _backend_reason(self, dtype: str) -> str | None:
        """Why a format's backend cannot evict; of vLLM's own formats, those that were in force."""
        in_force = effective_dtype(self._core.vllm_config)
        if in_force not in LAYOUTS and in_force not in self._unfit:
            self._unfit[in_force] = self._ask_workers()
        name = self._unfit.get(dtype)
        return None if name is None else unfit_backend(name)

    def _ask_workers(self) -> str | None:
        # It comes with attention backends and torch, which this module does without.
        from kvserving_kernels.plugin.adapters.v0_32 import evicting

        return next(filter(None, ask(self._core, evicting.backend_that_cannot_evict)), None)

    def _room(self) -> Room:
        config, kv_cache = self._core.vllm_config, self._core.scheduler.kv_cache_config
        return Room(
            dtype=effective_dtype(config),
            block_bytes=laid_out_bytes(kv_cache) // max(1, int(kv_cache.num_blocks)),
            # The blocks that are counted here are those of the first rank.
            cache_bytes=cache_bytes(self._core)[0],
            block_size=int(config.cache_config.block_size),
            head_size=int(config.model_config.get_head_size()),
            max_model_len=int(config.model_config.max_model_len),
            step_tokens=int(config.max_in_flight_tokens),
            fixed_blocks=config.cache_config.num_gpu_blocks_override,
        )


def _given(reasons: Mapping[str, str | None]) -> dict[str, str]:
    return {name: reason for name, reason in reasons.items() if reason is not None}
