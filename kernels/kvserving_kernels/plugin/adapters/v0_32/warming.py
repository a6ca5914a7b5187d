"""When a process of vLLM's gets its compiled KV kernels: before it builds the model.

Compiled later, they would hold up the first requests, or a switch of the format. vLLM then also
counts what the compiler leaves in memory before it sizes the cache. Where the image has them for
this kind of processor, every engine takes them over; else only an engine that starts in a format of
ours compiles, and one that is switched to it serves with torch.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvserving_kernels.ops.precompile import CACHE_FOLDER, MACHINE_FILE, machine
from kvserving_kernels.ops.registry import why_not_compiled
from kvserving_kernels.plugin.adapters.v0_32.selection import own_dtype

logger = logging.getLogger("vllm.kvserving")

PRECOMPILED: Final = "KVSERVING_PRECOMPILED"
"""Variable that names the folder of kernels that came with the image."""


def compile_before_models(platform: Any) -> None:
    """Compile when the platform is asked for an attention backend, which only workers do."""
    from vllm import envs

    # Beside what vLLM compiles, which may be on a volume that outlives a pod.
    folder = os.environ.setdefault(CACHE_FOLDER, os.path.join(envs.VLLM_CACHE_ROOT, "kvserving"))
    owner = type(platform)
    original: Callable[..., str] = owner.get_attn_backend_cls

    def get_attn_backend_cls(cls: Any, *arguments: Any, **more: Any) -> str:
        from vllm.config import get_current_vllm_config

        shipped = os.environ.get(PRECOMPILED)
        has_them = shipped is not None and take_over(Path(shipped), Path(folder))
        if has_them or own_dtype(get_current_vllm_config()) is not None:
            why_not_compiled()
        return original(*arguments, **more)

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def take_over(shipped: Path, folder: Path) -> bool:
    """Whether a folder has the kernels that came with the image, for the processor at hand."""
    try:
        if (shipped / MACHINE_FILE).read_text() != machine():
            logger.info("kvserving: the image's KV kernels are for another kind of processor")
            return False
        # Numba keeps more beside them, and needs a folder that it can write to.
        shutil.copytree(shipped, folder, dirs_exist_ok=True)
    except (ImportError, OSError) as error:
        logger.info("kvserving: the image's KV kernels cannot be used: %s", error)
        return False
    return True
