"""Names of KV cache formats: one enum for custom resources, engine flags and the runtime API."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class KVCacheDType(StrEnum):
    """A KV cache format by its public name."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8_E4M3 = "fp8_e4m3"
    INT8 = "int8"
    K8V4 = "k8v4"
    INT4 = "int4"
    INT4_HADAMARD = "int4_hadamard"
    INT3 = "int3"
    INT2 = "int2"
    K2V4 = "k2v4"
    K4V2 = "k4v2"
    NUQ4 = "nuq4"
    NUQ3 = "nuq3"


@dataclass(frozen=True)
class DTypeInfo:
    """What a format is.

    `bits_per_element` is the stored size of one key or value element, scales included. It is None
    where it is not a property of the format alone: `auto` follows the model, and a format that no
    engine stores yet has no size.
    """

    dtype: KVCacheDType
    summary: str
    bits_per_element: float | None = None


_INFOS: Final = (
    DTypeInfo(KVCacheDType.AUTO, "the dtype in which the model runs"),
    DTypeInfo(KVCacheDType.BFLOAT16, "16-bit brain float", 16.0),
    DTypeInfo(KVCacheDType.FLOAT16, "16-bit IEEE float", 16.0),
    DTypeInfo(KVCacheDType.FP8_E4M3, "8-bit float with 4 exponent and 3 mantissa bits", 8.0),
    DTypeInfo(KVCacheDType.INT8, "8-bit integers, one scale per token and head"),
    DTypeInfo(KVCacheDType.K8V4, "keys as int8, values in 4 bits per token"),
    DTypeInfo(KVCacheDType.INT4, "4 bits, keys per channel within a block, values per token"),
    DTypeInfo(KVCacheDType.INT4_HADAMARD, "int4 after a Hadamard rotation of keys and values"),
    DTypeInfo(KVCacheDType.INT3, "3 bits, keys per channel within a block, values per token"),
    DTypeInfo(KVCacheDType.INT2, "2 bits, keys per channel within a block, values per token"),
    DTypeInfo(KVCacheDType.K2V4, "keys in 2 bits per channel, values in 4 bits per token"),
    DTypeInfo(KVCacheDType.K4V2, "keys in 4 bits per channel, values in 2 bits per token"),
    DTypeInfo(KVCacheDType.NUQ4, "4-bit non-uniform codebook with sparse outliers"),
    DTypeInfo(KVCacheDType.NUQ3, "3-bit non-uniform codebook with sparse outliers"),
)

DTYPES: Final[dict[KVCacheDType, DTypeInfo]] = {info.dtype: info for info in _INFOS}
"""Every known format with its description."""
