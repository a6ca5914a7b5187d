"""Refuses to start an engine whose KV cache would be stored wrongly.

vLLM's CPU backend does not check the KV dtype's name: it takes GPU formats, sizes the pages for
them and then writes 16-bit elements into them, past the end of the page.
"""

from collections.abc import Set
from typing import Final

from kvserving_kernels.errors import UnsupportedKVDTypeError
from kvserving_kernels.formats import why_not

CPU: Final = "CPU"
NVIDIA: Final = "NVIDIA"


def check_kv_dtype(
    dtype: str,
    accelerator: str,
    engine_version: str,
    cpu_features: Set[str] | None,
    model_dtype: str | None,
) -> None:
    """Raise UnsupportedKVDTypeError if the engine must not start with this KV dtype.

    On an NVIDIA GPU vLLM checks the name against the attention backend itself, and names of its
    own that this package does not know are its business.
    """
    if accelerator != CPU:
        return
    features = None if cpu_features is None else frozenset(cpu_features)
    reason = why_not(dtype, accelerator, engine_version, features, model_dtype)
    if reason is not None:
        raise UnsupportedKVDTypeError(f"--kv-cache-dtype: {reason}")
