"""When a process of vLLM's gets its compiled KV kernels: before it builds the model.

Compiled later, they would hold up the first requests, or a switch of the format. vLLM then also
counts what the compiler leaves in memory before it sizes the cache. An engine that starts with a
format of vLLM's own compiles nothing: after a switch to one of ours, torch serves.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from kvserving_kernels.ops.registry import why_not_compiled
from kvserving_kernels.plugin.adapters.v0_32.selection import own_dtype

CACHE_FOLDER: Final = "NUMBA_CACHE_DIR"
"""Variable that names the folder where Numba keeps machine code for the next start."""


def compile_before_models(platform: Any) -> None:
    """Compile when the platform is asked for an attention backend, which only workers do."""
    from vllm import envs

    # Beside what vLLM compiles, which may be on a volume that outlives a pod.
    os.environ.setdefault(CACHE_FOLDER, os.path.join(envs.VLLM_CACHE_ROOT, "kvserving"))
    owner = type(platform)
    original: Callable[..., str] = owner.get_attn_backend_cls

    def get_attn_backend_cls(cls: Any, *arguments: Any, **more: Any) -> str:
        from vllm.config import get_current_vllm_config

        if own_dtype(get_current_vllm_config()) is not None:
            why_not_compiled()
        return original(*arguments, **more)

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)
