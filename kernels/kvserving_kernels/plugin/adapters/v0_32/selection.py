"""Which attention backend serves which KV format, and which engines are refused at start.

The format is not a name of vLLM's `--kv-cache-dtype`, whose list cannot be extended from outside:
it comes in `--additional-config`, vLLM's own dtype stays `auto`, and the backend sizes the pages.
Without that setting vLLM chooses as if this package were not there.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats import ALIASES, LAYOUTS, KVCacheDType, this_machine
from kvserving_kernels.formats.flags import FIELD, OBJECT
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


def install(platform: Any) -> None:
    """Wrap the platform's check of a configuration and its choice of an attention backend."""
    owner = type(platform)
    _wrap_check(owner, accelerator_of(platform))
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


def set_dtype(vllm_config: Any, dtype: str) -> None:
    """Write a format into a configuration, as the flags would have."""
    additional = dict(vllm_config.additional_config or {})
    settings = dict(additional.get(OBJECT, {}))
    settings.pop(FIELD, None)
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
    if vllm_config.speculative_config is not None:
        return "speculative decoding is not supported: leave out --speculative-config"
    if vllm_config.kv_transfer_config is not None:
        return "KV connectors are not supported: leave out --kv-transfer-config"
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        return "decode context parallelism is not supported: use --tensor-parallel-size"
    if model.use_mla:
        return "models with multi-head latent attention (MLA) are not supported"
    if model.get_sliding_window() is not None:
        return "models with sliding-window attention are not supported"
    if model.uses_alibi:
        return "models with ALiBi are not supported"
    # A GPU's block size is chosen later, from what the backend takes.
    known = cache.user_specified_block_size or vllm_config.device_config.device_type == "cpu"
    layout = LAYOUTS[dtype]
    block_size = cache.block_size if known else layout.minimum_block_size
    return layout.why_not(block_size, model.get_head_size())


def torch_name(dtype: object) -> str:
    """Name of a torch dtype without its module."""
    return str(dtype).removeprefix("torch.")


def _wrap_check(owner: Any, accelerator: str) -> None:
    original: Callable[[Any], None] = owner.check_and_update_config

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        import vllm

        model = vllm_config.model_config
        own = own_dtype(vllm_config)
        check_kv_dtype(
            vllm_config.cache_config.cache_dtype,
            accelerator,
            base_version(vllm.__version__),
            this_machine(),
            None if model is None else torch_name(model.dtype),
        )
        original(vllm_config)
        if own is not None and model is not None:
            _check_own(vllm_config, own)

    owner.check_and_update_config = classmethod(check_and_update_config)


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


def _wrap_choice(owner: Any) -> None:
    original: Callable[..., str] = owner.get_attn_backend_cls

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *rest: Any, **more: Any
    ) -> str:
        from vllm.config import get_current_vllm_config

        own = own_dtype(get_current_vllm_config())
        if own is None or attn_selector_config.attn_type != "decoder":
            return original(selected_backend, attn_selector_config, *rest, **more)
        _check_layer(own, attn_selector_config)
        module = __name__.rpartition(".")[0]
        return f"{module}.backend.{BACKEND_CLASSES[own]}"

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def _check_layer(own: KVCacheDType, layer: Any) -> None:
    refuse(
        own,
        (
            ("multi-head latent attention (MLA)", layer.use_mla),
            ("a sliding window", layer.has_sliding_window),
            ("attention sinks", layer.has_sink),
            ("sparse attention", layer.use_sparse),
            ("prefix attention of multimodal inputs", layer.use_mm_prefix),
            ("non-causal attention", layer.use_non_causal),
        ),
        f": leave out {OBJECT}.{FIELD} in --additional-config",
    )


def refuse(own: KVCacheDType, features: Iterable[tuple[str, bool]], advice: str = "") -> None:
    """Raise UnsupportedEngineError for the first feature that a layer uses."""
    for feature, used in features:
        if used:
            raise UnsupportedEngineError(
                f"KV format {own}: this model has a layer with {feature}, which needs a format of "
                f"vLLM's own{advice}"
            )
