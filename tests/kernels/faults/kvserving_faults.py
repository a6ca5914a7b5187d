"""A vLLM plugin that fails one step of a switch when a file says so: `<step> <times> [<rank>]`.

`serve` is the first step of requests in a cache that was laid out.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FILE = "KVSERVING_FAULT_FILE"


def register() -> None:
    """Put a fault before each step; each process does so for the steps that run in it."""
    from vllm.v1.core import kv_cache_manager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import core
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from kvserving_kernels.plugin.adapters.v0_32 import randomness, switch

    _wrap(Scheduler, "reset_prefix_cache", "reset")
    _wrap(GPUModelRunner, "_cleanup_profiling_kv_cache", "drop")
    _wrap(switch, "give_backend", "backend")
    _wrap(GPUModelRunner, "initialize_kv_cache", "allocate")
    _wrap(core, "get_kv_cache_configs", "plan")
    _wrap(kv_cache_manager.KVCacheManager, "__init__", "manager")
    _wrap(core.EngineCore, "_initialize_effective_attention_block_size", "adopt")
    _wrap(randomness, "restore", "restore")
    _wrap(GPUModelRunner, "execute_model", "serve", _has_new_cache)


def _has_new_cache(runner: Any, *_: Any, **__: Any) -> bool:
    """Whether a runner has another cache than when it was asked before."""
    before = getattr(runner, "_faults_cache", None)
    runner._faults_cache = runner.kv_cache_config
    return before is not None and before is not runner.kv_cache_config


def _always(*_: Any, **__: Any) -> bool:
    return True


def _wrap(owner: Any, name: str, step: str, counts: Callable[..., bool] = _always) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    if hasattr(original, "fails_at"):
        return

    @wraps(original)
    def failing(*arguments: Any, **named: Any) -> Any:
        if counts(*arguments, **named) and _is_due(Path(os.environ[FILE]), step):
            raise MemoryError(f"fault at {step}")
        return original(*arguments, **named)

    vars(failing)["fails_at"] = step
    setattr(owner, name, failing)


def _is_due(file: Path, step: str) -> bool:
    try:
        wanted, times, *rank = file.read_text().split()
    except FileNotFoundError:
        return False
    if wanted != step or (rank and rank != [_rank()]):
        return False
    if times == "1":
        file.unlink()
    else:
        file.write_text(" ".join([wanted, str(int(times) - 1), *rank]))
    return True


def _rank() -> str:
    from vllm.distributed import get_tensor_model_parallel_rank

    return str(get_tensor_model_parallel_rank())
