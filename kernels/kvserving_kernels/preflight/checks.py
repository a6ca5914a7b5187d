"""The checks that need no vLLM: pure functions of the arguments, the model and the host."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvserving_kernels.eviction import StreamingLLM
from kvserving_kernels.formats import ALIASES, DTYPES, LAYOUTS, KVCacheDType, layout_of, why_not
from kvserving_kernels.formats.layout import HEAD_SIZES
from kvserving_kernels.preflight.arguments import Settings
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.model import ModelConfig

_HEAD_SIZE_MULTIPLE: Final = 32
_DEFAULT_BLOCK_SIZES: Final = {"CPU": 128, "NVIDIA": 16}
_CPU_BLOCK_MULTIPLE: Final = 32


@dataclass(frozen=True)
class Host:
    """Where the engine will run. `cpu_features` is None where it is not known."""

    accelerator: str
    engine_version: str
    cpu_features: frozenset[str] | None
    environment: Mapping[str, str]

    @classmethod
    def here(cls, accelerator: str, version: str, features: frozenset[str] | None) -> "Host":
        """Host of this process."""
        return cls(accelerator, version, features, dict(os.environ))


def check(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    """First thing that speaks against a start, or None."""
    return (
        _kv_dtype(settings, host, model)
        or _batch(settings)
        or _block_size(settings, host)
        or _length(settings, host, model)
        or _memory(settings, host, model)
    )


def _kv_dtype(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    name, flag = settings.kv_cache_dtype, "--kv-cache-dtype"
    # GPU formats of vLLM's own are its business; it checks them against the attention backend.
    known = name in ALIASES or name in set(KVCacheDType)
    if not known and host.accelerator != "CPU":
        return None
    reason = why_not(
        name,
        host.accelerator,
        host.engine_version,
        host.cpu_features,
        _model_dtype(settings, model),
    )
    if reason is not None:
        return Finding(flag, Reason.KV_DTYPE_UNSUPPORTED, reason)
    if name in LAYOUTS:
        return _layout(name, settings, host, model)
    quantized = name in ALIASES or name == KVCacheDType.FP8_E4M3
    size = model.head_size if model else None
    if host.accelerator == "CPU" and quantized and size and size % _HEAD_SIZE_MULTIPLE:
        message = (
            f"{name} on CPU needs a head size divisible by {_HEAD_SIZE_MULTIPLE}, "
            f"and the model's is {size}"
        )
        return Finding(flag, Reason.KV_DTYPE_UNSUPPORTED, message)
    return None


def _layout(name: str, settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    layout = layout_of(name)
    # A GPU engine that is told no block size takes one that the format can do.
    size = _number(settings.block_size)
    if size is None:
        size = (
            _DEFAULT_BLOCK_SIZES["CPU"] if host.accelerator == "CPU" else layout.minimum_block_size
        )
    head_size = (model.head_size if model else None) or HEAD_SIZES[0]
    reason = layout.why_not(size, head_size)
    if reason is None:
        return None
    flag = "--block-size" if reason.startswith("block size") else "--additional-config"
    return Finding(flag, Reason.KV_DTYPE_UNSUPPORTED, reason)


def _model_dtype(settings: Settings, model: ModelConfig | None) -> str | None:
    if settings.dtype != "auto":
        return {"half": "float16", "float": "float32"}.get(settings.dtype, settings.dtype)
    return model.torch_dtype if model else None


def _batch(settings: Settings) -> Finding | None:
    tokens, sequences = _number(settings.max_num_batched_tokens), _number(settings.max_num_seqs)
    if tokens is None or sequences is None or tokens >= sequences:
        return None
    message = (
        f"--max-num-batched-tokens ({tokens}) must be at least --max-num-seqs ({sequences}): "
        "every running sequence needs one token in a step"
    )
    return Finding("--max-num-batched-tokens", Reason.BATCHED_TOKENS_TOO_FEW, message)


def _block_size(settings: Settings, host: Host) -> Finding | None:
    size = _number(settings.block_size)
    if size is None or host.accelerator != "CPU":
        return None
    if size > 0 and size % _CPU_BLOCK_MULTIPLE == 0:
        return None
    message = f"--block-size: expected a multiple of {_CPU_BLOCK_MULTIPLE} on CPU, got {size}"
    return Finding("--block-size", Reason.BLOCK_SIZE_UNSUPPORTED, message)


def _length(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    wanted = _number(settings.max_model_len)
    limit = model.max_positions if model else None
    if wanted is None or limit is None or wanted <= limit:
        return None
    if host.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true", "True"):
        return None
    message = f"--max-model-len ({wanted}) is longer than the model was made for ({limit})"
    return Finding("--max-model-len", Reason.MODEL_LENGTH_TOO_LONG, message)


def _memory(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    given = _number(settings.kv_cache_memory_bytes)
    length = _number(settings.max_model_len) or (model.max_positions if model else None)
    element_bytes = _element_bytes(settings, model)
    if given is None or length is None or element_bytes is None or settings.is_parallel:
        return None
    if model is None or model.kv_elements_per_token is None:
        return None
    block = _number(settings.block_size) or _DEFAULT_BLOCK_SIZES[host.accelerator]
    blocks = -(-length // block)
    if isinstance(settings.eviction, StreamingLLM):
        step_tokens = _number(settings.max_num_batched_tokens)
        if step_tokens is None:
            return None
        blocks = settings.eviction.peak_blocks(length, step_tokens, block)
    needed = int(blocks * block * model.kv_elements_per_token * element_bytes)
    if given >= needed:
        return None
    message = (
        f"--kv-cache-memory-bytes ({given}) is too small for one request of --max-model-len "
        f"({length}) tokens, which takes {needed} bytes; give that much or lower --max-model-len"
    )
    return Finding("--kv-cache-memory-bytes", Reason.KV_MEMORY_TOO_SMALL, message)


def _element_bytes(settings: Settings, model: ModelConfig | None) -> float | None:
    name = settings.kv_cache_dtype
    if name == KVCacheDType.AUTO:
        sizes = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
        return sizes.get(_model_dtype(settings, model) or "")
    if name in LAYOUTS:
        return _layout_bytes(settings, model)
    try:
        bits = DTYPES[ALIASES.get(name) or KVCacheDType(name)].bits_per_element
    except ValueError:
        return None
    return None if bits is None else bits / 8


def _layout_bytes(settings: Settings, model: ModelConfig | None) -> float | None:
    layout, size = layout_of(settings.kv_cache_dtype), _number(settings.block_size)
    head_size = model.head_size if model else None
    if head_size is None or size is None or layout.why_not(size, head_size) is not None:
        return None
    return layout.page(size, head_size).bits_per_element / 8


def _number(text: str | None) -> int | None:
    """Plain integers only: vLLM also takes `8k` and `auto`, which it resolves itself."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
