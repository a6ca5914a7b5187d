"""The formats that an engine can switch to by its model and machine, and why not to the others."""

from typing import Any

from kvserving_kernels.formats import LAYOUTS, NATIVE, KVCacheDType, this_machine
from kvserving_kernels.formats import why_not as why_not_native
from kvserving_kernels.plugin.adapters import base_version
from kvserving_kernels.plugin.adapters.v0_32.selection import (
    accelerator_of,
    effective_dtype,
    takes_other_blocks,
    torch_name,
    why_not,
)
from kvserving_kernels.plugin.guard import NVIDIA


def switchable_dtypes(config: Any) -> dict[str, str | None]:
    """Formats by name with the reason against each, or None; none at all where nothing is live.

    A format that is not there takes a restart, or there is no such format.
    """
    import vllm
    from vllm.platforms import current_platform

    own = {
        dtype.value: why_not(config, dtype)
        for dtype in LAYOUTS
        if not takes_other_blocks(config, dtype)
    }
    if all(own.values()):
        return {}
    accelerator = accelerator_of(current_platform)
    engine, machine = base_version(vllm.__version__), this_machine()
    # Whether queries become 8-bit floats is part of a GPU's compiled code.
    compiled = accelerator == NVIDIA and _is_compiled(config)
    if compiled and effective_dtype(config) == KVCacheDType.FP8_E4M3:
        return {}
    model_dtype = torch_name(config.model_config.dtype)
    native = {
        dtype.value: why_not_native(dtype, accelerator, engine, machine, model_dtype)
        for dtype in NATIVE
        if not (compiled and dtype is KVCacheDType.FP8_E4M3)
    }
    return {**native, **own}


def _is_compiled(config: Any) -> bool:
    from vllm.config import CompilationMode

    return bool(config.compilation_config.mode != CompilationMode.NONE)
