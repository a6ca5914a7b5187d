"""What a serving's profile stands in for, where its spec leaves something open; pure.

What a user has set is never touched. Formats are allowed, not set: they are gone to where the cache
binds, and judged before all engines have them (docs/decisions/0031).
"""

from kvserving_kernels.formats import NATIVE
from kvserving_operator.api.v1alpha1 import (
    Accelerator,
    EvictionPolicy,
    KVCacheDType,
    KVServingSpec,
    Switch,
)
from kvserving_tuner.profiles import PROFILES, Profile


def profile(spec: KVServingSpec) -> Profile | None:
    """The profile that a spec names; None for Custom."""
    return PROFILES.get(spec.profile)


def allowed_dtypes(spec: KVServingSpec) -> tuple[KVCacheDType, ...]:
    """Formats that the tuner may go to: those of the spec, else of its profile."""
    if spec.tuning.allowed_dtypes is not None:
        return spec.tuning.allowed_dtypes
    used = profile(spec)
    if used is None:
        return ()
    formats = (KVCacheDType(name) for name in used.dtypes)
    plugin = spec.engine.plugin is Switch.ENABLED
    able = tuple(dtype for dtype in formats if plugin or dtype in NATIVE)
    return able if spec.kv_cache.dtype in able else (spec.kv_cache.dtype, *able)


def batched_tokens(spec: KVServingSpec) -> int | None:
    """Tokens of a step: those of the spec, else of its profile; None for the engine's default.

    Where a step's memory was counted out by hand, or prompts have to fit one step, a profile has
    no say; nor on a CPU, whose own default is small for a reason.
    """
    engine, used = spec.engine, profile(spec)
    by_hand = engine.kv_cache_memory is not None or engine.chunked_prefill is Switch.DISABLED
    if engine.max_num_batched_tokens is not None or used is None or by_hand:
        return engine.max_num_batched_tokens
    if engine.accelerator is not Accelerator.NVIDIA:
        return None
    return max(used.batched_tokens, engine.max_num_seqs)


def further_flags(spec: KVServingSpec) -> tuple[str, ...]:
    """Flags of the profile that `extraArgs` does not have, in any spelling."""
    used = profile(spec)
    if used is None:
        return ()
    given = {arg.partition("=")[0].replace("_", "-") for arg in spec.engine.extra_args}
    return tuple(
        f"{flag}={value}"
        for flag, value in used.engine_flags.items()
        # vLLM takes the beginning of a flag for it, and nested values with a dot.
        if not any(flag.startswith(name.partition(".")[0]) for name in given)
    )


def may_recommend_eviction(spec: KVServingSpec) -> bool:
    """Whether the profile's use has a window among its moves, and nothing is evicted yet."""
    used = profile(spec)
    evicts = spec.kv_cache.eviction.policy is not EvictionPolicy.NONE
    return used is not None and used.evicts and not evicts
