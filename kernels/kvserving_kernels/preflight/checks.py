"""The checks that need no vLLM: pure functions of the arguments, the model and the host."""

from typing import Final

from kvserving_kernels.formats import ALIASES, LAYOUTS, KVCacheDType, layout_of, why_not
from kvserving_kernels.formats.layout import HEAD_SIZES
from kvserving_kernels.preflight.arguments import Settings, number
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.host import DEFAULT_BLOCK_SIZES, Host
from kvserving_kernels.preflight.memory import check_memory
from kvserving_kernels.preflight.model import ModelConfig
from kvserving_kernels.preflight.parallel import check_parallel
from kvserving_kernels.preflight.plugin import check_plugin

_HEAD_SIZE_MULTIPLE: Final = 32
_CPU_HEAD_SIZES: Final = {"0.32": (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)}
"""Head sizes of vLLM's CPU kernels by its minor version; others end it, at the latest when the
first request comes."""

_BLOCK_MULTIPLES: Final = {"CPU": 32, "NVIDIA": 16}

_FAMILIES: Final = (
    ("awq", "awq_marlin", "auto_awq"),
    ("gptq", "gptq_marlin", "auto_gptq"),
    ("fp8",),
    ("compressed-tensors",),
    ("bitsandbytes",),
)
"""Methods of which a model has one and cannot be loaded as one of another row."""


def check(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    """First thing that speaks against a start, or None."""
    if settings.has_other_config:
        model = None
    if not settings.serves:
        message = "--api-server-count: expected at least 1 and no --headless: nobody would answer"
        return Finding("--api-server-count", Reason.INVALID_FLAG, message)
    return (
        check_plugin(settings, host, model)
        or _kv_dtype(settings, host, model)
        or _batch(settings, model)
        or _block_size(settings, host, model)
        or _length(settings, host, model)
        or _quantization(settings, model)
        or check_parallel(settings, host, model)
        or check_memory(settings, host, model)
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
    known_sizes = _CPU_HEAD_SIZES.get(".".join(host.engine_version.split(".")[:2]))
    plain = model is not None and model.is_plain
    if host.accelerator == "CPU" and plain and known_sizes and size not in known_sizes:
        message = (
            f"{name} on CPU: expected a head size of {', '.join(map(str, known_sizes))}, "
            f"and the model's is {size}"
        )
        return Finding(flag, Reason.KV_DTYPE_UNSUPPORTED, message)
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
    size = number(settings.block_size)
    if size is None:
        size = (
            DEFAULT_BLOCK_SIZES["CPU"] if host.accelerator == "CPU" else layout.minimum_block_size
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
    # vLLM runs a model in 32 bits in one of 16, which depends on the machine.
    found = model.torch_dtype if model else None
    return None if found == "float32" else found


def _batch(settings: Settings, model: ModelConfig | None) -> Finding | None:
    flag, length = "--max-num-batched-tokens", number(settings.max_model_len)
    tokens, sequences = number(settings.max_num_batched_tokens), number(settings.max_num_seqs)
    if settings.max_model_len is None and model is not None and settings.slides:
        length = model.default_length
    if tokens is None:
        return None
    if sequences is not None and tokens < sequences:
        message = (
            f"{flag} ({tokens}) must be at least --max-num-seqs ({sequences}): "
            "every running sequence needs one token in a step"
        )
        return Finding(flag, Reason.BATCHED_TOKENS_TOO_FEW, message)
    if not settings.chunks_prompts and length is not None and tokens < length:
        message = (
            f"{flag} ({tokens}) must be at least --max-model-len ({length}) without chunked "
            "prefill: a whole prompt is computed in one step"
        )
        return Finding(flag, Reason.BATCHED_TOKENS_TOO_FEW, message)
    return None


def _block_size(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    size, multiple = number(settings.block_size), _BLOCK_MULTIPLES[host.accelerator]
    # The engine gives hybrid models another size whatever they are told.
    is_certain = host.accelerator == "CPU" or (model is not None and model.is_plain)
    if size is None or not is_certain or (size > 0 and size % multiple == 0):
        return None
    message = f"--block-size: expected a multiple of {multiple} on {host.accelerator}, got {size}"
    return Finding("--block-size", Reason.BLOCK_SIZE_UNSUPPORTED, message)


def _length(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    wanted = number(settings.max_model_len)
    limit = model.max_positions if model else None
    if wanted is None or limit is None or wanted <= limit:
        return None
    if host.is_set("VLLM_ALLOW_LONG_MAX_MODEL_LEN"):
        return None
    message = f"--max-model-len ({wanted}) is longer than the model was made for ({limit})"
    return Finding("--max-model-len", Reason.MODEL_LENGTH_TOO_LONG, message)


def _quantization(settings: Settings, model: ModelConfig | None) -> Finding | None:
    asked, made = settings.quantization, model.quantization if model else None
    asked_row = next((row for row in _FAMILIES if asked in row), None)
    made_row = next((row for row in _FAMILIES if made in row), None)
    if asked_row is None or made_row is None or asked_row is made_row:
        return None
    message = (
        f"--quantization: expected {made}, with which the model's weights are quantized, or none, "
        f"got {asked}"
    )
    return Finding("--quantization", Reason.QUANTIZATION_UNSUPPORTED, message)
