"""The engine core as the runtime API sees it: what is in force, what may change, what fits."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.eviction import NO_EVICTION, Eviction, EvictionBounds
from kvserving_kernels.plugin.adapters import base_version
from kvserving_kernels.plugin.adapters.v0_32 import probing
from kvserving_kernels.plugin.adapters.v0_32.cache_bytes import laid_out_bytes
from kvserving_kernels.plugin.adapters.v0_32.layouts import Layouts
from kvserving_kernels.plugin.adapters.v0_32.ranks import ask
from kvserving_kernels.plugin.adapters.v0_32.selection import (
    effective_dtype,
    own_eviction,
    torch_name,
)
from kvserving_kernels.plugin.adapters.v0_32.switch import cache_of, switch_cache
from kvserving_kernels.plugin.adapters.v0_32.switchable import switchable_dtypes
from kvserving_kernels.plugin.changes import Choices, Envelope, IntegerRange, Value, told
from kvserving_kernels.plugin.controller import Outcome, RuntimeController
from kvserving_kernels.plugin.document import (
    Capacity,
    Counters,
    Effective,
    EngineState,
    Startup,
    Versions,
)
from kvserving_kernels.plugin.weights import loaded_weights

logger = logging.getLogger("vllm.kvserving")


def describe(core: Any) -> dict[str, Any]:
    """`EngineCore.kvserving_describe`."""
    return _controller(core).describe()


# No annotations: vLLM would convert the arguments to them, and validation is ours.
def apply(core, document, asked_at=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """`EngineCore.kvserving_apply`."""
    answer = _controller(core).apply(document, asked_at)
    outcome = answer["outcome"]
    logger.info("kvserving: change (%s): %s", told(document, outcome != Outcome.INVALID), outcome)
    return answer


class Engine:
    """A running `EngineCore` as the controller sees it."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._counters = Counters()
        self._layouts = Layouts(core, switchable_dtypes)
        self._count()
        config = core.vllm_config.model_config
        self._weights = loaded_weights(config.model, config.revision)
        if not hasattr(core.scheduler, "max_num_active_reqs"):
            raise UnsupportedEngineError(
                f"the scheduler {type(core.scheduler).__name__} has no max_num_active_reqs: "
                "the runtime API needs vLLM's own scheduler or a subclass of it"
            )

    def get(self, knob: str) -> Value:
        """Value in force of a live knob."""
        scheduler = self._core.scheduler
        match knob:
            case "max_active_seqs":
                return int(scheduler.max_num_active_reqs)
            case "max_scheduled_tokens":
                return int(scheduler.max_num_scheduled_tokens)
            case "kv_cache_dtype":
                return effective_dtype(self._core.vllm_config)
            case "eviction":
                return own_eviction(self._core.vllm_config)
        raise KeyError(knob)

    def set(self, knob: str, value: Value) -> None:
        """Set a live knob; it counts from the next step on."""
        scheduler = self._core.scheduler
        match knob:
            case "max_active_seqs":
                scheduler.max_num_active_reqs = value
            case "max_scheduled_tokens":
                scheduler.max_num_scheduled_tokens = value
            case _:
                raise KeyError(knob)

    def lay_out(self, values: Mapping[str, Value]) -> None:
        """Set format, eviction or both with one new cache, unless they are in force."""
        cache = self._layouts.asked(values)
        if cache != cache_of(self._core.vllm_config):
            probing.drop(self._core, "the KV cache was changed while the probe ran")
            counters = self._count()
            took = switch_cache(self._core, cache)
            self._counters = replace(
                counters,
                switches=counters.switches + 1,
                switch_seconds=round(counters.switch_seconds + took, 3),
            )

    def check(self, values: Mapping[str, Value]) -> None:
        """Raise InvalidChangeError for settings that no cache of this engine can have."""
        self._layouts.check(values)

    def state(self) -> EngineState:
        """Read the engine."""
        import vllm

        scheduler, config = self._core.scheduler, self._core.vllm_config
        slots = int(scheduler.max_num_running_reqs)
        return EngineState(
            effective=Effective(
                kv_cache_dtype=effective_dtype(config),
                max_active_seqs=int(scheduler.max_num_active_reqs),
                max_scheduled_tokens=int(scheduler.max_num_scheduled_tokens),
                eviction=_eviction(scheduler.kv_cache_config),
            ),
            envelope=self._envelope(slots),
            capacity=_capacity(config, scheduler.kv_cache_config),
            versions=Versions(base_version(vllm.__version__), version("kvserving")),
            startup=Startup(
                max_num_seqs=slots,
                max_num_batched_tokens=int(config.scheduler_config.max_num_batched_tokens),
                max_model_len=int(config.model_config.max_model_len),
                prefix_caching=bool(config.cache_config.enable_prefix_caching),
                dtype=self._model_dtype(),
                weights=self._weights,
            ),
            counters=replace(self._count(), evicted_blocks=_evicted_blocks()),
        )

    def _count(self) -> Counters:
        """Counters with what workers counted."""
        from kvserving_kernels.plugin.adapters.v0_32.backend import counted

        counts = ask(self._core, counted)
        nonfinite, saturated, compiles = map(sum, zip(*counts, strict=True))
        self._counters = replace(
            self._counters,
            nonfinite_values=nonfinite,
            saturated_values=saturated,
            jit_compiles=compiles,
        )
        return self._counters

    def _model_dtype(self) -> str:
        return torch_name(self._core.vllm_config.model_config.dtype)

    def _envelope(self, slots: int) -> Envelope:
        config = self._core.vllm_config
        envelope: dict[str, IntegerRange | Choices | EvictionBounds] = {
            "max_active_seqs": IntegerRange(1, slots)
        }
        budget = int(config.scheduler_config.max_num_batched_tokens)
        # A budget below one token per running sequence would stop some of them, and without
        # chunked prefill a prompt longer than the budget would never start.
        if config.scheduler_config.enable_chunked_prefill and slots <= budget:
            envelope["max_scheduled_tokens"] = IntegerRange(slots, budget)
        dtypes = self._layouts.dtypes()
        if dtypes.values:
            envelope["kv_cache_dtype"] = dtypes
        envelope["eviction"] = self._layouts.evictions()
        return envelope


def _eviction(kv_cache: Any) -> Eviction:
    """What the scheduler's manager of blocks does, whatever it was asked to do."""
    from kvserving_kernels.plugin.adapters.v0_32.streaming import StreamingSpec

    for group in kv_cache.kv_cache_groups:
        if isinstance(group.kv_cache_spec, StreamingSpec):
            return group.kv_cache_spec.policy
    return NO_EVICTION


def _evicted_blocks() -> int:
    from kvserving_kernels.plugin.adapters.v0_32.streaming import StreamingManager

    return StreamingManager.evicted_blocks


def _capacity(config: Any, kv_cache: Any) -> Capacity:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

    tokens, concurrency = get_kv_cache_capacity(config, kv_cache)
    kv_cache_bytes = laid_out_bytes(kv_cache)
    block_size = int(config.cache_config.block_size)
    return Capacity(
        kv_cache_tokens=int(tokens),
        blocks=int(kv_cache.num_blocks),
        block_size=block_size,
        bytes_per_token=kv_cache_bytes // max(1, int(kv_cache.num_blocks) * block_size),
        kv_cache_bytes=kv_cache_bytes,
        max_concurrency=round(float(concurrency), 3),
    )


def _controller(core: Any) -> RuntimeController:
    controller: RuntimeController | None = getattr(core, "_kvserving_controller", None)
    if controller is None:
        controller = RuntimeController(Engine(core), lambda: datetime.now(UTC), time.monotonic)
        core._kvserving_controller = controller
    return controller
