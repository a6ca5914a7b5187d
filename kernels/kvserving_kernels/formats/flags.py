"""How an engine is told its KV cache: vLLM's own flag, or our object in `--additional-config`."""

import json
from collections.abc import Mapping
from typing import Final

from kvserving_kernels.formats.dtypes import KVCacheDType
from kvserving_kernels.formats.layout import LAYOUTS

OBJECT: Final = "kvserving"
"""Our object in `--additional-config`."""

FIELD: Final = "kv_cache_dtype"
"""The format in it."""

EVICTION_FIELD: Final = "eviction"
"""The eviction in it."""


def cache_flags(
    dtype: KVCacheDType, eviction: Mapping[str, str | int] | None = None
) -> tuple[str, ...]:
    """Arguments of `vllm serve` for a format and an eviction; none where vLLM's defaults are it."""
    flags, ours = [], {}
    if dtype in LAYOUTS:
        ours[FIELD] = dtype.value
    elif dtype is not KVCacheDType.AUTO:
        flags.append(f"--kv-cache-dtype={dtype.value}")
    document: dict[str, object] = {**ours, **({EVICTION_FIELD: dict(eviction)} if eviction else {})}
    if document:
        flags.append("--additional-config=" + json.dumps({OBJECT: document}, separators=(",", ":")))
    return tuple(flags)


def dtype_in(additional_config: str | None) -> str | None:
    """Format that the value of `--additional-config` names, None where it names none."""
    try:
        document = json.loads(additional_config or "{}")
        name = document[OBJECT][FIELD]
    except (ValueError, TypeError, KeyError):
        return None
    return name if isinstance(name, str) else None
