"""When a process of vLLM's gets its compiled KV kernels: before it builds the model.

Compiled later, they would hold up the first requests, or a switch of the format. They are the same
for all formats, so an engine that starts with a format of vLLM's own compiles them too. vLLM then
also counts what the compiler leaves in memory before it sizes the cache.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from kvserving_kernels.ops.registry import why_not_compiled

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
        why_not_compiled()
        return original(*arguments, **more)

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)
