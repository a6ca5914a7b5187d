"""Names, layouts and sizes of KV cache formats; imports neither torch nor vLLM."""

from kvserving_kernels.formats.dtypes import DTYPES, DTypeInfo, KVCacheDType
from kvserving_kernels.formats.layout import (
    LAYOUTS,
    KGrouping,
    KVLayout,
    PageLayout,
    Section,
    layout_of,
)
from kvserving_kernels.formats.machine import this_machine
from kvserving_kernels.formats.sizes import record_bytes
from kvserving_kernels.formats.support import ALIASES, NATIVE, supported_dtypes, why_not

__all__ = [
    "ALIASES",
    "DTYPES",
    "LAYOUTS",
    "NATIVE",
    "DTypeInfo",
    "KGrouping",
    "KVCacheDType",
    "KVLayout",
    "PageLayout",
    "Section",
    "layout_of",
    "record_bytes",
    "supported_dtypes",
    "this_machine",
    "why_not",
]
