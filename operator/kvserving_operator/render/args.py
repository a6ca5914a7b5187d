"""Typed fields of a spec as flags of `vllm serve`.

`extraArgs` come last, so that vLLM's own parser judges them.
"""

import json
from collections.abc import Sequence

from kvserving_kernels.formats import KVCacheDType
from kvserving_kernels.formats.flags import cache_flags
from kvserving_operator.api.base import quantity_bytes
from kvserving_operator.api.v1alpha1 import Switch
from kvserving_operator.live import NO_EVICTION, asked
from kvserving_operator.profiles import batched_tokens, further_flags
from kvserving_operator.render.blocks import block_size
from kvserving_operator.render.drain import EXIT_SECONDS
from kvserving_operator.render.engine import Engine
from kvserving_operator.render.names import ENGINE_PORT, READY_PATH
from kvserving_operator.render.version import CUSTOM_BUCKETS, QUIET_ENDPOINTS, SHUTDOWN_TIMEOUT
from kvserving_tuner.settings import Slo, TuningSettings

TTFT_BUCKETS_SECONDS = (
    0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
"""vLLM's own bounds for the time to first token from 10 ms up; the SLO's bound is added to them."""
TPOT_BUCKETS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
)  # fmt: skip
"""Bounds for the time per output token, from a fast decode to a stall of seconds."""

POLLED_ENDPOINTS = ("/health", "/metrics", READY_PATH)
"""Asked every few seconds by probes and scrapes: in the log they would bury everything else."""


def engine_args(engine: Engine) -> tuple[str, ...]:
    """Arguments after `vllm serve`."""
    spec = engine.spec.engine
    args = [
        engine.model_path,
        f"--served-model-name={engine.served_name}",
        "--host=0.0.0.0",
        f"--port={ENGINE_PORT}",
    ]
    if engine.spec.model.revision and engine.downloads:
        args.append(f"--revision={engine.spec.model.revision}")
    for flag, number in (
        ("--max-model-len", spec.max_model_len),
        ("--max-num-seqs", spec.max_num_seqs),
        ("--max-num-batched-tokens", batched_tokens(engine.spec)),
        ("--block-size", block_size(engine)),
    ):
        if number is not None:
            args.append(f"{flag}={number}")
    args += _memory(engine)
    if spec.parallelism.tensor > 1:
        args.append(f"--tensor-parallel-size={spec.parallelism.tensor}")
    if spec.parallelism.pipeline > 1:
        args.append(f"--pipeline-parallel-size={spec.parallelism.pipeline}")
    args.append(_switch("prefix-caching", spec.prefix_caching))
    args.append(_switch("chunked-prefill", spec.chunked_prefill))
    if spec.weight_quantization:
        args.append(f"--quantization={spec.weight_quantization}")
    kv_cache = asked(engine.spec)
    evicts = kv_cache.eviction if kv_cache.eviction != NO_EVICTION else None
    args += cache_flags(KVCacheDType(kv_cache.kv_cache_dtype), evicts)
    if engine.version and engine.version >= QUIET_ENDPOINTS:
        args.append(f"--disable-access-log-for-endpoints={','.join(POLLED_ENDPOINTS)}")
    if engine.version and engine.version >= SHUTDOWN_TIMEOUT:
        # Half of what is left after the preStop hook; the other half is for letting go.
        args.append(f"--shutdown-timeout={EXIT_SECONDS // 2}")
    args += _histogram_buckets(engine)
    return (*args, *further_flags(engine.spec), *spec.extra_args)


def _memory(engine: Engine) -> Sequence[str]:
    spec = engine.spec.engine
    args = []
    if spec.kv_cache_memory is not None:
        args.append(f"--kv-cache-memory-bytes={quantity_bytes(spec.kv_cache_memory)}")
    if spec.gpu_memory_utilization_percent is not None:
        args.append(f"--gpu-memory-utilization={spec.gpu_memory_utilization_percent / 100:g}")
    return args


def _switch(name: str, switch: Switch) -> str:
    return f"--enable-{name}" if switch is Switch.ENABLED else f"--no-enable-{name}"


def _histogram_buckets(engine: Engine) -> Sequence[str]:
    """Put a bucket edge exactly at each SLO: the share within it is counted, not interpolated."""
    slo = engine.spec.slo
    if engine.version is None or engine.version < CUSTOM_BUCKETS:
        return ()
    families = {}
    if slo.ttft_milliseconds is not None:
        families["time_to_first_token"] = _with_edges(TTFT_BUCKETS_SECONDS, slo.ttft_milliseconds)
    if slo.tpot_milliseconds is not None:
        # The tuner compares with the target and with the room it keeps under it.
        edges = TuningSettings(slo=Slo(tpot_ms=slo.tpot_milliseconds)).tpot_edges_ms()
        families["inter_token_latency"] = _with_edges(TPOT_BUCKETS_SECONDS, *edges)
    if not families:
        return ()
    return ("--custom-histogram-buckets=" + json.dumps(families, separators=(",", ":")),)


def _with_edges(bounds_seconds: Sequence[float], *edges_milliseconds: float) -> list[float]:
    return sorted({*bounds_seconds, *(edge / 1000 for edge in edges_milliseconds)})
