"""A vLLM plugin that fails one step of a switch when a file says so: `<step> <times> [<rank>]`."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FILE = "KVSERVING_FAULT_FILE"
STEPS = ("drop", "backend", "allocate", "plan", "manager")


def register() -> None:
    """Put a fault before each step; each process does so for the steps that run in it."""
    from vllm.v1.core import kv_cache_manager
    from vllm.v1.engine import core
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from kvserving_kernels.plugin.adapters.v0_32 import switch

    _wrap(GPUModelRunner, "_cleanup_profiling_kv_cache", "drop")
    _wrap(switch, "give_backend", "backend")
    _wrap(GPUModelRunner, "initialize_kv_cache", "allocate")
    _wrap(core, "get_kv_cache_configs", "plan")
    _wrap(kv_cache_manager.KVCacheManager, "__init__", "manager")


def _wrap(owner: Any, name: str, step: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def failing(*arguments: Any, **named: Any) -> Any:
        if _is_due(Path(os.environ[FILE]), step):
            raise MemoryError(f"fault at {step}")
        return original(*arguments, **named)

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
