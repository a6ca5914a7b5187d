"""How an engine is told its KV format: vLLM's own flag, or our object in `--additional-config`."""

import json
from typing import Final

from kvserving_kernels.formats.dtypes import KVCacheDType
from kvserving_kernels.formats.layout import LAYOUTS

OBJECT: Final = "kvserving"
"""Our object in `--additional-config`."""

FIELD: Final = "kv_cache_dtype"
"""The format in it."""

EVICTION_FIELD: Final = "eviction"
"""The eviction in it."""


def dtype_flag(dtype: KVCacheDType) -> str | None:
    """Argument of `vllm serve` for a format; None where vLLM's default is it."""
    if dtype is KVCacheDType.AUTO:
        return None
    if dtype not in LAYOUTS:
        return f"--kv-cache-dtype={dtype.value}"
    return "--additional-config=" + json.dumps(
        {OBJECT: {FIELD: dtype.value}}, separators=(",", ":")
    )


def dtype_in(additional_config: str | None) -> str | None:
    """Format that the value of `--additional-config` names, None where it names none."""
    try:
        document = json.loads(additional_config or "{}")
        name = document[OBJECT][FIELD]
    except (ValueError, TypeError, KeyError):
        return None
    return name if isinstance(name, str) else None
