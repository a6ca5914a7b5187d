"""When a process of vLLM's gets its compiled KV kernels: before it builds the model.

Compiled later, they would hold up the first requests, or a switch of the format. vLLM then also
counts what the compiler leaves in memory before it sizes the cache. Where the image has them for
this kind of processor, every engine takes them over that names the plugin or has a setting of ours;
else only an engine that starts in a format of ours compiles, and one that is switched to it serves
with torch. Other engines stay as they are.
"""

import logging
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kvserving_kernels.ops.precompile import CACHE_FOLDER, MACHINE_FILE, machine
from kvserving_kernels.ops.registry import why_not_compiled
from kvserving_kernels.plugin.adapters.v0_32.selection import is_asked_for, own_dtype

logger = logging.getLogger("vllm.kvserving")

PRECOMPILED: Final = "KVSERVING_PRECOMPILED"
"""Variable that names the folder of kernels that came with the image."""


def compile_before_models(platform: Any, named: bool) -> None:
    """Compile when the platform is asked for an attention backend, which only workers do.

    Unless the plugin is `named`, only in an engine with a setting of ours.
    """
    owner = type(platform)
    if named:
        _cache_folder()
    else:
        _name_folder_when_asked(owner)
    original: Callable[..., str] = owner.get_attn_backend_cls

    def get_attn_backend_cls(cls: Any, *arguments: Any, **more: Any) -> str:
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        if named or is_asked_for(config):
            shipped = os.environ.get(PRECOMPILED)
            has_them = shipped is not None and take_over(Path(shipped), Path(_cache_folder()))
            if has_them or own_dtype(config) is not None:
                why_not_compiled()
        return original(*arguments, **more)

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def _name_folder_when_asked(owner: Any) -> None:
    """Name the folder where an engine's settings are first seen: its workers inherit the variable.

    Numba reads it when it is imported, and vLLM imports Numba before it chooses a backend.
    """
    original: Callable[[Any], None] = owner.check_and_update_config

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(vllm_config)
        if is_asked_for(vllm_config):
            _cache_folder()

    owner.check_and_update_config = classmethod(check_and_update_config)


def _cache_folder() -> str:
    """Numba's folder, named beside what vLLM compiles, unless somebody has named one."""
    from vllm import envs

    # That may be on a volume that outlives a pod.
    return os.environ.setdefault(CACHE_FOLDER, os.path.join(envs.VLLM_CACHE_ROOT, "kvserving"))


def take_over(shipped: Path, folder: Path) -> bool:
    """Whether a folder has the kernels that came with the image, for the processor at hand."""
    try:
        if (shipped / MACHINE_FILE).read_text() != machine():
            logger.info("kvserving: the image's KV kernels are for another kind of processor")
            return False
        # Numba keeps more beside them, and needs a folder that it can write to.
        shutil.copytree(shipped, folder, dirs_exist_ok=True, copy_function=_put)
    except (ImportError, OSError) as error:
        logger.info("kvserving: the image's KV kernels cannot be used: %s", error)
        return False
    return True


def _put(source: str, target: str) -> str:
    """Copy a file so that whoever reads the target finds all of the old one or of the new one.

    Other workers, and other engines with a cache folder in common, may be reading it.
    """
    whole = f"{target}.{uuid.uuid4().hex}"
    try:
        shutil.copy2(source, whole)
        os.replace(whole, target)
    except OSError:
        with suppress(OSError):
            os.unlink(whole)
        raise
    return target
