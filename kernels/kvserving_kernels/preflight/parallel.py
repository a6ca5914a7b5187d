"""Whether an engine's parts fit its model and its GPUs: what vLLM else finds while it loads."""

from typing import Final

from kvserving_kernels.preflight.arguments import Settings, number
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.host import Host
from kvserving_kernels.preflight.model import ModelConfig

_TENSOR: Final = "--tensor-parallel-size"
_PIPELINE: Final = "--pipeline-parallel-size"
_SHARED: Final = "VLLM_CPU_SIM_MULTI_NUMA"
_BINDING: Final = ("VLLM_CPU_OMP_THREADS_BIND", _SHARED)
"""Variables that say which processors a CPU's workers run on."""

_OFFERED: Final = 16
"""Largest number of parts that a message suggests: one engine is one node."""


def check_parallel(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    """What speaks against the engine's tensor, pipeline and data parallelism."""
    return (
        _gpus(settings, host)
        or _memory_nodes(settings, host)
        or (None if model is None else _heads(settings, model) or _layers(settings, model))
    )


def _gpus(settings: Settings, host: Host) -> Finding | None:
    """Ranks against GPUs, only where somebody said how many there are."""
    if not host.gpus or host.accelerator == "CPU":
        return None
    sizes = (_tensor(settings), _pipeline(settings), number(settings.data_parallel_size) or 1)
    ranks = sizes[0] * sizes[1] * sizes[2]
    if ranks <= host.gpus:
        return None
    message = (
        f"tensor x pipeline x data parallel ({' x '.join(map(str, sizes))}): expected at most the "
        f"pod's {host.gpus} GPUs, got {ranks}"
    )
    # Data parallelism comes from the user alone; the pod's GPUs follow the others.
    field = "--data-parallel-size" if sizes[2] > 1 else _TENSOR
    return Finding(field, Reason.PARALLELISM_UNSUPPORTED, message)


def _memory_nodes(settings: Settings, host: Host) -> Finding | None:
    """Workers against a CPU's memory nodes: vLLM gives each its own, unless it is told which."""
    told = (*_BINDING, "CPU_VISIBLE_MEMORY_NODES")
    if host.accelerator != "CPU" or host.gpus or host.memory_nodes is None:
        return None
    if any(host.environment.get(name, "") not in ("", "0", "auto") for name in told):
        return None
    workers = _tensor(settings) * _pipeline(settings)
    if workers <= host.memory_nodes:
        return None
    message = (
        f"tensor x pipeline parallel: expected at most {host.memory_nodes}, as many as this "
        f"machine has memory nodes (NUMA), got {workers}; workers share a node with "
        f"{_SHARED}=1 in the environment"
    )
    field = _TENSOR if _tensor(settings) > 1 else _PIPELINE
    return Finding(field, Reason.PARALLELISM_UNSUPPORTED, message)


def _heads(settings: Settings, model: ModelConfig) -> Finding | None:
    heads, size = model.attention_heads, _tensor(settings)
    if size == 1 or heads is None or _divides(size, heads, model.kv_heads):
        return None
    fitting = [str(n) for n in range(1, _OFFERED + 1) if _divides(n, heads, model.kv_heads)]
    kv = f" and {model.kv_heads} KV heads" if model.kv_heads else ""
    message = (
        f"{_TENSOR}: expected a number that the model's {heads} attention heads{kv} can be "
        f"divided by, one of {', '.join(fitting)}, got {size}"
    )
    return Finding(_TENSOR, Reason.PARALLELISM_UNSUPPORTED, message)


def _divides(size: int, heads: int, kv_heads: int | None) -> bool:
    """Whether each rank gets as many heads, and KV heads or copies of one."""
    if heads % size:
        return False
    return kv_heads is None or (kv_heads % size == 0 if kv_heads >= size else size % kv_heads == 0)


def _layers(settings: Settings, model: ModelConfig) -> Finding | None:
    size = _pipeline(settings)
    if model.layers is None or size <= model.layers:
        return None
    message = f"{_PIPELINE}: expected at most the model's {model.layers} layers, got {size}"
    return Finding(_PIPELINE, Reason.PARALLELISM_UNSUPPORTED, message)


def _tensor(settings: Settings) -> int:
    return number(settings.tensor_parallel_size) or 1


def _pipeline(settings: Settings) -> int:
    return number(settings.pipeline_parallel_size) or 1
