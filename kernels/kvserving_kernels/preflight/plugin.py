"""Whether our plugin can store the format, and evict, with this model and these arguments.

The plugin refuses the rest itself when the engine starts; that is a crash, and a GPU's engine has
no configuration to be asked before.
"""

from collections.abc import Iterator
from typing import Final

from kvserving_kernels.errors import InvalidSettingError
from kvserving_kernels.eviction import (
    BACKENDS,
    MAXIMUM_WINDOW_TOKENS,
    EvictionBounds,
    StreamingLLM,
    read_eviction,
)
from kvserving_kernels.formats import LAYOUTS, layout_of
from kvserving_kernels.formats.flags import EVICTION_FIELD, FIELD, OBJECT
from kvserving_kernels.preflight.arguments import Settings, number
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.host import DEFAULT_BLOCK_SIZES, Host
from kvserving_kernels.preflight.model import ModelConfig

_EVICTION: Final = f"{OBJECT}.{EVICTION_FIELD}"
_DTYPE: Final = f"{OBJECT}.{FIELD}"


def check_plugin(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    """What speaks against the plugin's settings."""
    error = settings.plugin_error
    if error is not None:
        return _eviction_or_dtype(error)
    is_own = _is_own(settings)
    evicts = isinstance(settings.plugin.eviction, StreamingLLM)
    if not is_own and not evicts:
        return None
    reason = next(_against(settings, host, model), None)
    if reason is not None:
        if is_own:
            message = f"{_DTYPE} ({settings.kv_cache_dtype}): {reason}"
            return Finding(_DTYPE, Reason.KV_DTYPE_UNSUPPORTED, message)
        message = f"{_EVICTION} ({settings.plugin.eviction.policy}): {reason}"
        return Finding(_EVICTION, Reason.EVICTION_UNSUPPORTED, message)
    return _sizes(settings, host, model) if evicts else None


def _eviction_or_dtype(error: InvalidSettingError) -> Finding:
    evicts = error.field.startswith(_EVICTION)
    reason = Reason.EVICTION_UNSUPPORTED if evicts else Reason.KV_DTYPE_UNSUPPORTED
    return Finding(error.field, reason, str(error))


def _against(settings: Settings, host: Host, model: ModelConfig | None) -> Iterator[str]:
    """Reasons why the cache is not plain pages of keys and values of all tokens."""
    if settings.speculates:
        yield "speculative decoding is not supported: leave out --speculative-config"
    if settings.transfers:
        yield "KV connectors are not supported: leave out --kv-transfer-config"
    if settings.offloads:
        yield "KV connectors are not supported: leave out --kv-offloading-size"
    if settings.is_context_parallel:
        yield "context parallelism is not supported: use --tensor-parallel-size"
    if settings.skips_layers:
        yield "all layers are stored alike: leave out --kv-cache-dtype-skip-layers"
    if model is not None and model.has_other_layers:
        yield "only decoder models with full attention in every layer are supported"
    if model is not None and model.is_latent and not host.is_set("VLLM_MLA_DISABLE"):
        yield "models with multi-head latent attention (MLA) are not supported"
    if model is not None and model.has_window and settings.slides:
        yield "models with sliding-window attention are not supported"
    backend, is_own = (settings.attention_backend or "auto").upper(), _is_own(settings)
    # On CPUs vLLM has one backend, whatever is asked for.
    if host.accelerator != "CPU" and not is_own and backend not in ("AUTO", *BACKENDS):
        yield f"expected one of the attention backends {', '.join(BACKENDS)}, got {backend}"


def _is_own(settings: Settings) -> bool:
    return settings.kv_cache_dtype in LAYOUTS


def _sizes(settings: Settings, host: Host, model: ModelConfig | None) -> Finding | None:
    """Sinks and window against block and context, as far as these are known."""
    block, name = number(settings.block_size), settings.kv_cache_dtype
    length = number(settings.max_model_len)
    if settings.max_model_len is None and model is not None and settings.slides:
        length = model.default_length
    if block is None:
        block = DEFAULT_BLOCK_SIZES[host.accelerator]
        if host.accelerator != "CPU":
            # It may be larger, and the plugin then looks at the window's lower end alone.
            block = max(block, layout_of(name).minimum_block_size if name in LAYOUTS else 0)
            length = None
    bounds = EvictionBounds.of_engine(block, length or MAXIMUM_WINDOW_TOKENS)
    try:
        read_eviction(_EVICTION, settings.plugin.eviction.to_json(), bounds, InvalidSettingError)
    except InvalidSettingError as error:
        return _eviction_or_dtype(error)
    return None
