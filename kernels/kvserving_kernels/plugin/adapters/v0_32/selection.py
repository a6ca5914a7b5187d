"""Which attention backend serves which KV format, and which engines are refused at start.

The format is not a name of vLLM's `--kv-cache-dtype`, whose list cannot be extended from outside:
it comes in `--additional-config`, vLLM's own dtype stays `auto`, and the backend sizes the pages.
Eviction comes the same way. Without these settings vLLM chooses as if this package were not there.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from kvserving_kernels.errors import InvalidSettingError, UnsupportedEngineError
from kvserving_kernels.eviction import (
    BACKENDS,
    NO_EVICTION,
    Eviction,
    EvictionBounds,
    StreamingLLM,
    read_eviction,
)
from kvserving_kernels.formats import ALIASES, LAYOUTS, KVCacheDType, this_machine
from kvserving_kernels.formats.flags import EVICTION_FIELD, FIELD, OBJECT
from kvserving_kernels.plugin.adapters import base_version
from kvserving_kernels.plugin.guard import CPU, NVIDIA, check_kv_dtype
from kvserving_kernels.plugin.settings import read_settings

BACKEND_CLASSES = {
    KVCacheDType.INT8: "Int8Backend",
    KVCacheDType.K8V4: "K8V4Backend",
    KVCacheDType.INT4: "Int4Backend",
    KVCacheDType.INT4_HADAMARD: "Int4HadamardBackend",
    KVCacheDType.INT2: "Int2Backend",
    KVCacheDType.K2V4: "K2V4Backend",
}
"""Classes of `backend` by format; vLLM imports them by path."""


def install(platform: Any, guarded: bool) -> None:
    """Wrap the platform's check of a configuration and its choice of an attention backend.

    `guarded` engines are also refused formats that vLLM would store wrongly.
    """
    owner = type(platform)
    _wrap_check(owner, accelerator_of(platform), guarded)
    _wrap_choice(owner)


def accelerator_of(platform: Any) -> str:
    """What the formats' support is asked about on a platform of vLLM's."""
    return CPU if platform.is_cpu() else NVIDIA


def own_dtype(vllm_config: Any) -> KVCacheDType | None:
    """The format that this package stores for an engine, None where vLLM stores its own."""
    return read_settings(vllm_config.additional_config).kv_cache_dtype


def effective_dtype(vllm_config: Any) -> str:
    """Public name of the KV format that an engine stores; `auto` is resolved."""
    own = own_dtype(vllm_config)
    if own is not None:
        return own.value
    name = vllm_config.cache_config.cache_dtype
    if name == "auto":
        return torch_name(vllm_config.model_config.dtype)
    return str(ALIASES.get(name, name))


def own_eviction(vllm_config: Any) -> Eviction:
    """What leaves an engine's cache while requests run."""
    return read_settings(vllm_config.additional_config).eviction


def is_asked_for(vllm_config: Any) -> bool:
    """Whether an engine has a setting of ours."""
    return own_dtype(vllm_config) is not None or own_eviction(vllm_config) != NO_EVICTION


def set_cache(vllm_config: Any, dtype: str, eviction: Eviction) -> None:
    """Write format and eviction into a configuration, as the flags would have."""
    additional = dict(vllm_config.additional_config or {})
    settings = dict(additional.get(OBJECT, {}))
    settings.pop(FIELD, None)
    settings.pop(EVICTION_FIELD, None)
    if eviction != NO_EVICTION:
        settings[EVICTION_FIELD] = eviction.to_json()
    if dtype in LAYOUTS:
        settings[FIELD] = dtype
        vllm_config.cache_config.cache_dtype = "auto"
    else:
        native = dtype == torch_name(vllm_config.model_config.dtype)
        vllm_config.cache_config.cache_dtype = "auto" if native else dtype
    vllm_config.additional_config = {**additional, OBJECT: settings}
    # Backends differ in how the bytes of a cache may be arranged: vLLM is to resolve it again.
    vllm_config.cache_config.kv_cache_layout = None


def why_not(vllm_config: Any, dtype: KVCacheDType) -> str | None:
    """Reason why an engine cannot store one of our formats, or None where it can."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    reason = _why_not_paged(vllm_config)
    if reason is not None:
        return reason
    layout = LAYOUTS[dtype]
    known = _knows_block_size(vllm_config)
    block_size = cache.block_size if known else layout.minimum_block_size
    return layout.why_not(block_size, model.get_head_size())


def takes_other_blocks(vllm_config: Any, dtype: KVCacheDType) -> bool:
    """Whether blocks that a running engine chose itself are too small for a format of ours.

    An engine that starts with the format chooses larger ones.
    """
    cache = vllm_config.cache_config
    chosen = not cache.user_specified_block_size
    return chosen and int(cache.block_size) < LAYOUTS[dtype].minimum_block_size


def why_not_evict(vllm_config: Any) -> str | None:
    """Reason why an engine cannot free blocks of a running request, or None where it can."""
    if vllm_config.parallel_config.prefill_context_parallel_size > 1:
        return "prefill context parallelism is not supported: use --tensor-parallel-size"
    if vllm_config.cache_config.kv_sharing_fast_prefill:
        return "leave out --kv-sharing-fast-prefill"
    return _why_not_paged(vllm_config)


def unfit_backend(name: str) -> str:
    """Reason why an attention backend of vLLM's cannot leave freed blocks out."""
    return (
        f"expected one of the attention backends {', '.join(BACKENDS)} or a KV format of this "
        f"package, got {name}: set --attention-backend"
    )


def eviction_bounds(vllm_config: Any) -> EvictionBounds:
    """Parameters of eviction that an engine of known block size takes."""
    return EvictionBounds.of_engine(
        int(vllm_config.cache_config.block_size), int(vllm_config.model_config.max_model_len)
    )


def _knows_block_size(vllm_config: Any) -> bool:
    # A GPU's block size is chosen later, from what the backend takes.
    asked_for = bool(vllm_config.cache_config.user_specified_block_size)
    return asked_for or vllm_config.device_config.device_type == "cpu"


def _why_not_paged(vllm_config: Any) -> str | None:
    """Reason why an engine's cache is not plain pages of keys and values of all tokens."""
    model = vllm_config.model_config
    if vllm_config.speculative_config is not None:
        return "speculative decoding is not supported: leave out --speculative-config"
    # From the size vLLM makes the connector only after the platform has looked.
    if vllm_config.cache_config.kv_offloading_size is not None:
        return "KV connectors are not supported: leave out --kv-offloading-size"
    if vllm_config.kv_transfer_config is not None:
        return "KV connectors are not supported: leave out --kv-transfer-config"
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        return "decode context parallelism is not supported: use --tensor-parallel-size"
    if vllm_config.cache_config.kv_cache_dtype_skip_layers:
        return "all layers are stored alike: leave out --kv-cache-dtype-skip-layers"
    # With states, windows or chunks beside it, vLLM pads the pages of full attention, splits its
    # hashes finer than its blocks, and copies blocks that are filled in part.
    if (
        model.is_hybrid
        or model.is_encoder_decoder
        or model.rswa_window is not None
        or model.attention_chunk_size is not None
    ):
        return "only decoder models with full attention in every layer are supported"
    if model.use_mla:
        return "models with multi-head latent attention (MLA) are not supported"
    if model.is_mm_prefix_lm or vllm_config.attention_config.use_non_causal:
        return "models whose tokens see later ones are not supported"
    if model.get_sliding_window() is not None:
        return "models with sliding-window attention are not supported"
    if model.uses_alibi:
        return "models with ALiBi are not supported"
    return None


def torch_name(dtype: object) -> str:
    """Name of a torch dtype without its module."""
    return str(dtype).removeprefix("torch.")


def _wrap_check(owner: Any, accelerator: str, guarded: bool) -> None:
    original: Callable[[Any], None] = owner.check_and_update_config
    asked_before = False

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        nonlocal asked_before
        import vllm

        model = vllm_config.model_config
        own, eviction = own_dtype(vllm_config), own_eviction(vllm_config)
        if guarded or is_asked_for(vllm_config):
            check_kv_dtype(
                vllm_config.cache_config.cache_dtype,
                accelerator,
                base_version(vllm.__version__),
                this_machine(),
                None if model is None else torch_name(model.dtype),
            )
        original(vllm_config)
        # A process may build one engine after the other, and each is to have its own.
        asked = is_asked_for(vllm_config)
        if asked or asked_before:
            _forget_choices()
        asked_before = asked
        if own is not None and model is not None:
            _check_own(vllm_config, own)
        if eviction != NO_EVICTION and model is not None:
            _check_eviction(vllm_config, eviction)

    owner.check_and_update_config = classmethod(check_and_update_config)


def _forget_choices() -> None:
    """Have vLLM choose attention backends anew.

    It remembers choices by its own dtype, which is `auto` for all of our formats.
    """
    selector = sys.modules.get("vllm.v1.attention.selector")
    if selector is not None:
        selector._cached_get_attn_backend.cache_clear()


def _check_own(vllm_config: Any, own: KVCacheDType) -> None:
    flag = vllm_config.cache_config.cache_dtype
    where = f"--additional-config {OBJECT}.{FIELD}"
    if flag != "auto":
        raise UnsupportedEngineError(
            f"{where} is {own} and --kv-cache-dtype is {flag}: expected only one of them"
        )
    reason = why_not(vllm_config, own)
    if reason is not None:
        raise UnsupportedEngineError(f"{where}: {own}: {reason}")


def _check_eviction(vllm_config: Any, eviction: Eviction) -> None:
    reason = why_not_evict(vllm_config)
    if reason is not None:
        where = f"--additional-config {OBJECT}.{EVICTION_FIELD}"
        raise UnsupportedEngineError(f"{where}: {eviction.policy}: {reason}")
    if _knows_block_size(vllm_config):
        field = f"{OBJECT}.{EVICTION_FIELD}"
        read_eviction(field, eviction.to_json(), eviction_bounds(vllm_config), InvalidSettingError)


def _wrap_choice(owner: Any) -> None:
    original: Callable[..., str] = owner.get_attn_backend_cls

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *rest: Any, **more: Any
    ) -> str:
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        own, eviction = own_dtype(config), own_eviction(config)
        decoder = attn_selector_config.attn_type == "decoder"
        if own is None or not decoder:
            path = original(selected_backend, attn_selector_config, *rest, **more)
        else:
            _check_layer(f"KV format {own}", FIELD, attn_selector_config)
            path = f"{__name__.rpartition('.')[0]}.backend.{BACKEND_CLASSES[own]}"
        if not isinstance(eviction, StreamingLLM) or not decoder:
            return path
        _check_layer(f"eviction {eviction.policy}", EVICTION_FIELD, attn_selector_config)
        from kvserving_kernels.plugin.adapters.v0_32.evicting import published

        return published(path, eviction, config.max_in_flight_tokens)

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def _check_layer(subject: str, field: str, layer: Any) -> None:
    refuse(
        subject,
        (
            ("multi-head latent attention (MLA)", layer.use_mla),
            ("a sliding window", layer.has_sliding_window),
            ("attention sinks", layer.has_sink),
            ("sparse attention", layer.use_sparse),
            ("prefix attention of multimodal inputs", layer.use_mm_prefix),
            ("non-causal attention", layer.use_non_causal),
        ),
        f": leave out {OBJECT}.{field} in --additional-config",
    )


def refuse(subject: str, features: Iterable[tuple[str, bool]], advice: str = "") -> None:
    """Raise UnsupportedEngineError for the first feature that a layer uses."""
    for feature, used in features:
        if used:
            raise UnsupportedEngineError(
                f"{subject}: this model has a layer with {feature}, which needs vLLM's own cache"
                f"{advice}"
            )
