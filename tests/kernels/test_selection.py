"""Which engines are refused a format of ours or eviction when their configuration is checked."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from enginekit import stand_in
from kvserving_kernels.errors import UnsupportedEngineError
from kvserving_kernels.formats import KVCacheDType
from kvserving_kernels.plugin.adapters.v0_32 import selection

POLICY = {"policy": "StreamingLLM", "sink_tokens": 4, "window_tokens": 256}
INT4 = {"kvserving": {"kv_cache_dtype": "int4"}}
EVICT = {"kvserving": {"eviction": POLICY}}


FULL_ATTENTION = {
    "dtype": "torch.bfloat16", "max_model_len": 1024, "get_head_size": lambda: 64,
    "is_hybrid": False, "is_encoder_decoder": False, "rswa_window": None,
    "attention_chunk_size": None, "use_mla": False, "uses_alibi": False,
    "is_mm_prefix_lm": False,
    "get_sliding_window": lambda: None,
}  # fmt: skip
"""A model's configuration, as far as it is asked."""


class Platform:
    """A platform of vLLM's that finds nothing wrong."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Leave it as it is."""

    @classmethod
    def get_attn_backend_cls(cls, *arguments: Any) -> str:
        """The choice of vLLM's own."""
        return "CPU_ATTN"

    def is_cpu(self) -> bool:
        """A CPU."""
        return True


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Any:
    vllm = ModuleType("vllm")
    vllm.__dict__["__version__"] = "0.32.0"
    monkeypatch.setitem(sys.modules, "vllm", vllm)

    class Wrapped(Platform):
        """One of its own for each test, since it is changed."""

    platform = Wrapped()
    selection.install(platform, guarded=True)
    return platform


def config(additional: object, **changes: Any) -> Any:
    """The configuration of an engine that can have every format and eviction, but for changes."""
    cache = SimpleNamespace(
        cache_dtype="auto", block_size=128, user_specified_block_size=True,
        kv_sharing_fast_prefill=False, kv_cache_dtype_skip_layers=[],
        kv_offloading_size=changes.pop("kv_offloading_size", None),
    )  # fmt: skip
    model = SimpleNamespace(**{**FULL_ATTENTION, **changes.pop("model", {})})
    cache.__dict__.update(changes.pop("cache", {}))
    values = {
        "additional_config": additional,
        "model_config": model,
        "cache_config": cache,
        "device_config": SimpleNamespace(device_type="cpu"),
        "parallel_config": SimpleNamespace(
            prefill_context_parallel_size=1, decode_context_parallel_size=1
        ),
        "attention_config": SimpleNamespace(use_non_causal=False),
        "speculative_config": None,
        "kv_transfer_config": None,
    }
    return SimpleNamespace(**{**values, **changes})


@pytest.mark.parametrize("asked", [INT4, EVICT])
@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"kv_transfer_config": object()}, "--kv-transfer-config"),
        ({"kv_offloading_size": 4.0}, "--kv-offloading-size"),
        # vLLM makes a connector from any size but none.
        ({"kv_offloading_size": 0.0}, "--kv-offloading-size"),
    ],
)
def test_kv_connectors_are_refused_however_they_are_asked_for(
    platform: Any, asked: object, changes: dict[str, Any], flag: str
) -> None:
    platform.check_and_update_config(config(asked))
    with pytest.raises(UnsupportedEngineError, match=f"KV connectors .*{flag}$"):
        platform.check_and_update_config(config(asked, **changes))
    # Without a setting of ours it is vLLM's business.
    platform.check_and_update_config(config({}, **changes))


@pytest.mark.parametrize("asked", [INT4, EVICT])
@pytest.mark.parametrize(
    "model",
    [
        {"is_hybrid": True},
        {"is_encoder_decoder": True},
        {"rswa_window": 512},
        {"attention_chunk_size": 8192},
    ],
    ids=str,
)
def test_models_whose_pages_vllm_would_pad_or_copy_are_refused(
    platform: Any, asked: object, model: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedEngineError, match="full attention in every layer"):
        platform.check_and_update_config(config(asked, model=model))
    platform.check_and_update_config(config({}, model=model))


@pytest.mark.parametrize("asked", [INT4, EVICT])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"is_mm_prefix_lm": True}},
        {"attention_config": SimpleNamespace(use_non_causal=True)},
    ],
    ids=str,
)
def test_models_whose_tokens_see_later_ones_are_refused(
    platform: Any, asked: object, changes: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedEngineError, match="tokens see later ones"):
        platform.check_and_update_config(config(asked, **changes))
    # Nor does an engine that runs offer such a format.
    assert selection.why_not(config({}, **changes), KVCacheDType.INT4) is not None
    platform.check_and_update_config(config({}, **changes))


@pytest.mark.parametrize("asked", [INT4, EVICT])
def test_layers_that_are_to_stay_as_they_are_are_refused(platform: Any, asked: object) -> None:
    cache = {"kv_cache_dtype_skip_layers": ["0", "1"]}
    with pytest.raises(UnsupportedEngineError, match=r"--kv-cache-dtype-skip-layers$"):
        platform.check_and_update_config(config(asked, cache=cache))
    platform.check_and_update_config(config({}, cache=cache))


@pytest.mark.parametrize(
    ("engines", "forgotten"),
    [
        ([{}], 0),
        ([{}, {}], 0),
        ([INT4], 1),
        ([{}, INT4], 1),
        ([INT4, {}], 2),
        ([INT4, {}, {}], 2),
        ([INT4, EVICT], 2),
    ],
    ids=str,
)
def test_engines_one_after_the_other_have_backends_of_their_own(
    platform: Any, monkeypatch: pytest.MonkeyPatch, engines: list[object], forgotten: int
) -> None:
    cleared = []
    choose = SimpleNamespace(cache_clear=lambda: cleared.append(True))
    stand_in(monkeypatch, "vllm.v1.attention.selector", _cached_get_attn_backend=choose)
    for additional in engines:
        platform.check_and_update_config(config(additional))
    assert len(cleared) == forgotten
