"""Another KV cache for a running engine: requests in flight are computed again, none is lost.

All running requests go back to the queue, the old cache is dropped, each layer gets the backend of
the new format and eviction, a cache of as many bytes is laid out, and the scheduler gets a manager
for its blocks. Weights, runner and queues stay. If any step fails, in whichever worker, the same
steps bring the old cache back in all of them; if that fails too, the engine ends, so that it is
restarted instead of answering nonsense. No block survives, so what was computed under another
policy is never found again.

Relied on: `Scheduler.reset_prefix_cache`, `GPUModelRunner._cleanup_profiling_kv_cache` and its
counterpart's attributes, `EngineCore._initialize_kv_caches`, the arguments of `KVCacheManager`, and
`BlockPool.kv_event_queue`.
"""

import gc
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvserving_kernels.errors import EngineEndsError, SwitchError, UnsupportedEngineError
from kvserving_kernels.eviction import NO_EVICTION, Eviction, StreamingLLM
from kvserving_kernels.formats import LAYOUTS, KVCacheDType
from kvserving_kernels.plugin.adapters.v0_32 import randomness
from kvserving_kernels.plugin.adapters.v0_32.cache_bytes import cache_bytes
from kvserving_kernels.plugin.adapters.v0_32.ranks import ask, asked_by_vllm, end
from kvserving_kernels.plugin.adapters.v0_32.selection import (
    BACKEND_CLASSES,
    effective_dtype,
    own_eviction,
    set_cache,
)

logger = logging.getLogger("vllm.kvserving")


@dataclass(frozen=True)
class Cache:
    """What a cache is laid out for."""

    dtype: str
    eviction: Eviction

    def __str__(self) -> str:
        return self.dtype if self.eviction == NO_EVICTION else f"{self.dtype}, {self.eviction}"


def cache_of(vllm_config: Any) -> Cache:
    """The cache in force."""
    return Cache(effective_dtype(vllm_config), own_eviction(vllm_config))


def switch_cache(core: Any, cache: Cache) -> float:
    """Have another KV cache from the next step on; returns how long it took, in seconds.

    SwitchError where it failed in any worker and all have the old one again, EngineEndsError where
    a step that was under way failed, which ends the engine as it does without a switch, where the
    old cache could not be restored either, or where the workers cannot be asked any more.
    """
    before = cache_of(core.vllm_config)
    if core.model_executor.is_sleeping:
        raise SwitchError(f"{cache}: the engine sleeps: wake it up first")
    began = time.monotonic()
    _finish_steps_under_way(core)
    try:
        _requeue(core)
        _lay_out(core, cache)
    except EngineEndsError:
        raise
    # Whatever a worker says, the engine must serve on with what it had.
    except Exception as error:
        logger.exception("kvserving: switch from %s to %s failed", before, cache)
        _return_to(core, before, f"{cache}: {error}")
        raise SwitchError(f"{cache}: {error}; {before} is in force again") from error
    took = time.monotonic() - began
    logger.info("kvserving: switched from %s to %s in %.3f s", before, cache, took)
    return took


def _return_to(core: Any, cache: Cache, problem: str) -> None:
    try:
        # Where that failed, some requests still count on their blocks.
        if core.scheduler.running:
            _requeue(core)
        _lay_out(core, cache)
    except Exception as error:
        logger.exception("kvserving: %s cannot be restored: the engine ends", cache)
        why = f"{type(error).__name__}: {error}"
        raise end(core, f"{problem}; {cache} cannot be restored ({why})") from error


def _finish_steps_under_way(core: Any) -> None:
    """Wait for steps that were already given to the workers, without beginning others."""
    from vllm.v1.core.sched.interface import PauseState

    if not core.batch_queue:
        return
    step = getattr(core, "_process_engine_step", None)
    if step is None:
        # Outputs of a core in the caller's own process reach it by its own steps alone.
        if core.scheduler.has_unfinished_requests():
            raise UnsupportedEngineError(
                "this engine runs inside its caller's process: finish its requests before a switch"
            )
        step = core.step_fn
    state = core.scheduler.pause_state
    core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    try:
        while core.batch_queue:
            step()
    # Its batch has left the queue without being counted: its requests would wait for ever.
    except Exception as error:
        logger.exception("kvserving: a step under way failed: the engine ends")
        why = f"{type(error).__name__}: {error}"
        raise end(core, f"a step that was under way failed ({why})") from error
    finally:
        core.scheduler.set_pause_state(state)


def _requeue(core: Any) -> None:
    """Put all running requests back into the queue, with nothing computed."""
    core.scheduler.reset_prefix_cache(reset_running_requests=True)


def _lay_out(core: Any, cache: Cache) -> None:
    """Give workers and scheduler an empty cache."""
    executor, available = core.model_executor, cache_bytes(core)
    set_cache(core.vllm_config, cache.dtype, cache.eviction)
    ask(core, randomness.remember)
    ask(core, partial(prepare_worker, cache=cache))
    # Memory was profiled at start, and the weights have not changed since.
    executor.determine_available_memory = lambda: list(available)
    try:
        with asked_by_vllm(core):
            kv_cache = core._initialize_kv_caches(core.vllm_config)
    finally:
        del executor.determine_available_memory
    _adopt(core, kv_cache)
    ask(core, randomness.restore)


def _adopt(core: Any, kv_cache: Any) -> None:
    """Have the scheduler hand out the blocks of a new cache."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    scheduler, config = core.scheduler, core.vllm_config
    sizes = resolve_kv_cache_block_sizes(kv_cache, config)
    if sizes != (scheduler.block_size, scheduler.hash_block_size):
        raise UnsupportedEngineError(
            f"block size: expected {scheduler.block_size} as before, got {sizes[0]}"
        )
    manager = KVCacheManager(
        kv_cache_config=kv_cache,
        max_model_len=scheduler.max_model_len,
        max_in_flight_tokens=config.max_in_flight_tokens,
        enable_caching=scheduler.cache_config.enable_prefix_caching,
        use_eagle=scheduler.use_eagle_block_drop,
        num_prefill_lookahead=scheduler.num_prefill_lookahead,
        log_stats=scheduler.log_stats,
        enable_kv_cache_events=scheduler.enable_kv_cache_events,
        dcp_world_size=scheduler.dcp_world_size,
        pcp_world_size=1,
        scheduler_block_size=scheduler.block_size,
        hash_block_size=scheduler.hash_block_size,
        metrics_collector=scheduler.kv_metrics_collector,
        watermark=scheduler.scheduler_config.watermark,
        enable_mamba_shared_prefix_checkpoint=(
            scheduler.cache_config.enable_mamba_shared_prefix_checkpoint
        ),
    )
    # Whoever routes by prefixes must hear what became of the old blocks: that all were cleared.
    manager.block_pool.kv_event_queue += scheduler.kv_cache_manager.take_events()
    scheduler.kv_cache_config, scheduler.kv_cache_manager = kv_cache, manager
    scheduler.needs_kv_cache_zeroing = kv_cache.needs_kv_cache_zeroing
    core._initialize_effective_attention_block_size()


def prepare_worker(worker: Any, cache: Cache) -> None:
    """In a worker: drop the cache and give each attention layer the backend of another."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

    runner, config = worker.model_runner, worker.vllm_config
    set_cache(config, cache.dtype, cache.eviction)
    _drop_cache(runner)
    name = config.cache_config.cache_dtype
    runner.kv_cache_dtype = kv_cache_dtype_str_to_dtype(name, config.model_config)
    with set_current_vllm_config(config):
        for layer in runner.vllm_config.compilation_config.static_forward_context.values():
            # Others store nothing, and their backend is not one of the cache's.
            if isinstance(layer, Attention) and layer.attn_type == "decoder":
                give_backend(layer, cache, name, runner.kv_cache_dtype, config)


def _drop_cache(runner: Any) -> None:
    """Free the cache and what was built for it; requests stay in the scheduler's queue."""
    if hasattr(runner, "_cleanup_profiling_kv_cache"):
        _empty_batch(runner.input_batch)
        runner._cleanup_profiling_kv_cache()
        return
    # The second version of the runner, which GPUs have.
    import torch
    from vllm.v1.worker import gpu_worker, workspace

    for request_id in list(runner.req_states.req_id_to_index):
        runner._remove_request(request_id)
    runner.cudagraph_manager = None
    runner.kv_caches, runner.attn_groups = [], []
    for layer in runner.vllm_config.compilation_config.static_forward_context.values():
        if hasattr(layer, "kv_cache"):
            layer.kv_cache = torch.tensor([])
    gc.collect()
    torch.accelerator.empty_cache()
    workspace.unlock_workspace()
    # Kernels that do not depend on the format were warmed up at start.
    gpu_worker.kernel_warmup = lambda _: None
    runner.vllm_config.kernel_config.enable_jit_warmup = False


def _empty_batch(batch: Any) -> None:
    """Take all requests out of the first runner's batch, as it does with preempted ones.

    The next batch takes over the processors of logits, which keep what they know by row.
    """
    for request_id in list(batch.req_id_to_index):
        batch.remove_request(request_id)
    batch.condense()
    batch.refresh_metadata()


def give_backend(layer: Any, cache: Cache, name: str, torch_dtype: Any, config: Any) -> None:
    """Have a layer store and read its KV as a cache wants; `name` is vLLM's name of the format."""
    first = getattr(layer, "_kvserving_first", None)
    if first is None:
        first = (layer.kv_cache_dtype, layer.attn_backend, layer.impl)
        layer._kvserving_first = first
    first_name, first_backend, first_impl = first
    own = getattr(first_backend, "layout", None)
    started_with = first_name if own is None else own.dtype
    layer.kv_cache_dtype, layer.kv_cache_torch_dtype = name, torch_dtype
    is_first = started_with == (cache.dtype if cache.dtype in LAYOUTS else name)
    whole = _without_eviction(first_backend if is_first else _backend(layer, cache.dtype, name))
    layer.attn_backend = _with_eviction(whole, cache.eviction, config)
    if is_first:
        layer.impl = first_impl
        _give_query_quantization(layer, name)
        return
    layer.impl = layer.attn_backend.get_impl_cls()(
        layer.num_heads,
        layer.head_size,
        first_impl.scale,
        layer.num_kv_heads,
        getattr(first_impl, "alibi_slopes", None),
        layer.sliding_window,
        name,
        getattr(first_impl, "logits_soft_cap", None) or None,
        layer.attn_type,
        layer.kv_sharing_target_layer_name,
        **({} if getattr(first_impl, "sinks", None) is None else {"sinks": first_impl.sinks}),
    )
    layer.impl.process_weights_after_loading(config.model_config.dtype)
    _give_query_quantization(layer, name)


def _give_query_quantization(layer: Any, name: str) -> None:
    """Have queries quantized where the backend of an 8-bit float cache wants them so."""
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    wanted = name.startswith("fp8") and layer.impl.supports_quant_query_input
    layer.query_quant = QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR) if wanted else None


def _without_eviction(backend: Any) -> Any:
    return getattr(backend, "whole", backend)


def _with_eviction(backend: Any, eviction: Eviction, config: Any) -> Any:
    if not isinstance(eviction, StreamingLLM):
        return backend
    from kvserving_kernels.plugin.adapters.v0_32.evicting import evicting

    return evicting(backend, eviction, config.max_in_flight_tokens)


def _backend(layer: Any, dtype: str, name: str) -> Any:
    if dtype in LAYOUTS:
        from kvserving_kernels.plugin.adapters.v0_32 import backend

        return getattr(backend, BACKEND_CLASSES[KVCacheDType(dtype)])
    from vllm.v1.attention import selector

    # It remembers choices by vLLM's own dtype, which is `auto` for all of our formats.
    selector._cached_get_attn_backend.cache_clear()
    return selector.get_attn_backend(
        layer.head_size,
        layer.dtype,
        name,
        attn_type=layer.attn_type,
        has_sink=layer.has_sink,
        has_sliding_window=layer.sliding_window is not None,
    )
