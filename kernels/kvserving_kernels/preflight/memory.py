"""Whether the KV cache's memory holds one request of the longest context, as vLLM demands it.

vLLM keeps one block back and wants the rest to hold a request of `--max-model-len` tokens, in whole
blocks, in each worker; otherwise it gives up after it has loaded the weights. What is computed here
is never more than that: where a model's layers are not all alike, or the engine picks its block
size later, it is a lower bound, so that nothing is refused that would start.
"""

from dataclasses import dataclass
from typing import Final

from kvserving_kernels.eviction import StreamingLLM
from kvserving_kernels.formats import LAYOUTS, KVCacheDType, layout_of, record_bytes
from kvserving_kernels.preflight.arguments import Settings, number
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.host import DEFAULT_BLOCK_SIZES, Host
from kvserving_kernels.preflight.model import ModelConfig

CPU_SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"
"""Variable that takes the place of `--kv-cache-memory-bytes` on CPUs, in GiB."""

_FLAG: Final = "--kv-cache-memory-bytes"
_BLOCKS_FLAG: Final = "--num-gpu-blocks-override"
_STEP_TOKENS: Final = 2048
"""Tokens of one step where none are asked for: vLLM's least, which CPUs have for each worker."""

_DEFAULT_SEQS: Final = 128
_KEPT_BACK: Final = 1
"""Blocks of vLLM's own: what a freed block is replaced by."""

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclass(frozen=True)
class _Cache:
    """Blocks as one worker lays them out."""

    block_tokens: int
    block_bytes: int
    is_exact: bool


def check_memory(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    """The memory that is too small for one request, with what would do; None where none is."""
    space = host.environment.get(CPU_SPACE, "") if host.accelerator == "CPU" else ""
    if space and not space.strip().isdigit():
        message = f"{CPU_SPACE}: expected a whole number of GiB, got {space!r}"
        return Finding(CPU_SPACE, Reason.ENVIRONMENT_INVALID, message)
    given, field = number(settings.kv_cache_memory_bytes), _FLAG
    if space:
        given, field = int(space) * _GIB, CPU_SPACE
    cache, length = _cache(settings, host, model), _length(settings, model)
    if cache is None or length is None:
        return None
    overridden = number(settings.num_gpu_blocks_override)
    if overridden is not None:
        given, field = overridden * cache.block_bytes, _BLOCKS_FLAG
    needed = (_blocks(settings, host, length, cache.block_tokens) + _KEPT_BACK) * cache.block_bytes
    if given is None or given >= needed:
        return None
    return Finding(field, Reason.KV_MEMORY_TOO_SMALL, _message(field, given, needed, length, cache))


def _message(field: str, given: int, needed: int, length: int, cache: _Cache) -> str:
    least = "" if cache.is_exact else "at least "
    if field == _BLOCKS_FLAG:
        wanted = f"{least}{needed // cache.block_bytes}"
        got = str(given // cache.block_bytes)
    elif field == CPU_SPACE:
        wanted, got = f"{least}{-(-needed // _GIB)} GiB", f"{given // _GIB} GiB"
    else:
        wanted = f"{least}{needed} bytes ({-(-needed // _MIB)}Mi)"
        got = f"{given}"
    fitting = (given // cache.block_bytes - _KEPT_BACK) * cache.block_tokens
    instead = "no --max-model-len would fit into it"
    if fitting > 0:
        most = "" if cache.is_exact else "at most "
        instead = f"or lower --max-model-len to {most}{fitting}, which fits into it"
    return (
        f"{field} ({got}) is too small for one request of --max-model-len ({length}) tokens: "
        f"expected {wanted} for each worker, {instead}"
    )


def _length(settings: Settings, model: ModelConfig | None) -> int | None:
    if settings.max_model_len is not None:
        return number(settings.max_model_len)
    # vLLM cuts a context down to the window then.
    return model.default_length if model and settings.slides else None


def _blocks(settings: Settings, host: Host, length: int, block: int) -> int:
    policy = settings.plugin.eviction
    if not isinstance(policy, StreamingLLM):
        return -(-length // block)
    step = number(settings.max_num_batched_tokens)
    if step is None:
        workers = (number(settings.tensor_parallel_size) or 1) * (
            number(settings.pipeline_parallel_size) or 1
        )
        most = (number(settings.max_num_seqs) or _DEFAULT_SEQS) * length
        step = min(_STEP_TOKENS * (workers if host.accelerator == "CPU" else 1), most)
    return policy.peak_blocks(length, step, block)


def _cache(settings: Settings, host: Host, model: ModelConfig | None) -> _Cache | None:
    """Blocks of the fullest worker; None where too little is known of them."""
    if model is None or not model.full_layers or not model.kv_heads or not model.head_size:
        return None
    if settings.is_context_parallel:
        return None
    block = number(settings.block_size) or _block_size(settings.kv_cache_dtype, host)
    record = _record_bytes(settings, block, model)
    if record is None:
        return None
    heads = max(1, model.kv_heads // max(1, number(settings.tensor_parallel_size) or 1))
    layers = -(-model.full_layers // max(1, number(settings.pipeline_parallel_size) or 1))
    return _Cache(block, heads * layers * record, _is_exact(settings, host, model))


def _is_exact(settings: Settings, host: Host, model: ModelConfig) -> bool:
    """Whether what is computed here is all that the engine demands."""
    is_cpu = host.accelerator == "CPU"
    # A GPU's engine may have the tokens of several steps under way.
    steps = is_cpu and settings.max_num_batched_tokens is not None
    peaks = isinstance(settings.plugin.eviction, StreamingLLM)
    return (
        model.is_plain
        and not settings.speculates
        and (is_cpu or settings.block_size is not None)
        and (steps or not peaks)
    )


def _block_size(dtype: str, host: Host) -> int:
    """Block size of an engine that is told none; the least that a GPU's backend may choose."""
    default = DEFAULT_BLOCK_SIZES[host.accelerator]
    if dtype in LAYOUTS and host.accelerator != "CPU":
        return max(default, layout_of(dtype).minimum_block_size)
    return default


def _record_bytes(settings: Settings, block: int, model: ModelConfig) -> int | None:
    """Bytes of one block and KV head; None for formats whose size is not known here."""
    name = settings.kv_cache_dtype
    if name == KVCacheDType.AUTO:
        if model.names_kv_format:
            return None
        # Even a model in 32 bits is run in 16 unless that is asked for; which 16 does not matter.
        name = "float32" if settings.dtype in ("float32", "float") else KVCacheDType.BFLOAT16.value
    return record_bytes(name, block, model.head_size or 0)
