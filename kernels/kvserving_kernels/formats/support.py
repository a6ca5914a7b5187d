"""Which KV formats an engine can store on a platform, and why not the others.

The same answer serves the operator before it renders a pod, the preflight check inside the pod,
and the plugin's guard inside the running engine.
"""

from typing import Final, Literal

from kvserving_kernels.formats.dtypes import KVCacheDType
from kvserving_kernels.formats.layout import LAYOUTS
from kvserving_kernels.formats.machine import AMX_KERNELS, AVX512_KERNELS, describe

Accelerator = Literal["CPU", "NVIDIA"]

NATIVE: Final = (
    KVCacheDType.AUTO,
    KVCacheDType.BFLOAT16,
    KVCacheDType.FLOAT16,
    KVCacheDType.FP8_E4M3,
)
"""Formats that vLLM itself stores."""

PLUGIN_VERSIONS: Final = ("0.32",)
"""Minor versions of vLLM in which the plugin stores the formats that have a layout here."""

ALIASES: Final = {"fp8": KVCacheDType.FP8_E4M3}
"""Names that vLLM takes for one of the native formats."""

_SIXTEEN_BIT: Final = (KVCacheDType.BFLOAT16, KVCacheDType.FLOAT16)


def why_not(
    dtype: str,
    accelerator: str,
    engine_version: str,
    cpu_features: frozenset[str] | None = None,
    model_dtype: str | None = None,
) -> str | None:
    """Reason why this engine cannot serve with the format here, or None where it can.

    `cpu_features` and `model_dtype` (a torch name such as `bfloat16`) are None where they are not
    known; what depends on them is then left to a later check inside the engine.
    """
    reason = _reason(dtype, accelerator, engine_version, cpu_features, model_dtype)
    if reason is None:
        return None
    names = [
        name.value
        for name in (*NATIVE, *LAYOUTS)
        if _reason(name, accelerator, engine_version, cpu_features, model_dtype) is None
    ]
    return f"{reason}. Supported here: {', '.join(names)}"


def supported_dtypes(
    accelerator: str,
    engine_version: str,
    cpu_features: frozenset[str] | None = None,
    model_dtype: str | None = None,
) -> dict[KVCacheDType, str | None]:
    """Every known format with None where it is supported, or the reason why it is not."""
    return {
        dtype: why_not(dtype, accelerator, engine_version, cpu_features, model_dtype)
        for dtype in KVCacheDType
    }


def _reason(
    name: str,
    accelerator: str,
    engine_version: str,
    cpu_features: frozenset[str] | None,
    model_dtype: str | None,
) -> str | None:
    if accelerator not in ("CPU", "NVIDIA"):
        return f"accelerator: expected CPU or NVIDIA, got {accelerator!r}"
    try:
        dtype = ALIASES.get(name) or KVCacheDType(name)
    except ValueError:
        known = ", ".join(dtype.value for dtype in KVCacheDType)
        return f"{name!r} is not a KV cache format; known are {known}"
    if dtype not in NATIVE:
        return _own(dtype, engine_version)
    # A GPU's own limits (compute capability, attention backend) are vLLM's to check: it does so.
    if accelerator == "NVIDIA":
        return None
    if dtype is KVCacheDType.FP8_E4M3:
        return _fp8_on_cpu(cpu_features)
    # vLLM's CPU kernels store elements of the model's dtype whatever the page was sized for.
    if dtype in _SIXTEEN_BIT and model_dtype is not None and dtype != model_dtype:
        return (
            f"{dtype} on CPU needs a model that runs in {dtype}, and this one runs in {model_dtype}"
        )
    return None


def _own(dtype: KVCacheDType, engine_version: str) -> str | None:
    if dtype not in LAYOUTS:
        return f"{dtype} has no KV kernels yet"
    if ".".join(engine_version.split(".")[:2]) in PLUGIN_VERSIONS:
        return None
    versions = ", ".join(f"{version}.x" for version in PLUGIN_VERSIONS)
    return f"{dtype} needs the kvserving plugin on vLLM {versions}; this is vLLM {engine_version}"


def _fp8_on_cpu(cpu_features: frozenset[str] | None) -> str | None:
    if cpu_features is None or cpu_features >= AVX512_KERNELS or cpu_features >= AMX_KERNELS:
        return None
    return f"fp8_e4m3 on CPU needs AVX-512 or AMX; this machine has {describe(cpu_features)}"
