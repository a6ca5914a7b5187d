"""Which engines are refused a format of ours or eviction when their configuration is checked."""

import re
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
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"use_mla": True}}, r"multi-head latent attention \(MLA\)"),
        ({"model": {"get_sliding_window": lambda: 4096}}, "sliding-window attention"),
        ({"model": {"uses_alibi": True}}, "ALiBi"),
        ({"speculative_config": object()}, "--speculative-config"),
        (
            {
                "parallel_config": SimpleNamespace(
                    prefill_context_parallel_size=1, decode_context_parallel_size=2
                )
            },
            "decode context parallelism .* --tensor-parallel-size",
        ),
    ],
    ids=["mla", "sliding window", "alibi", "speculation", "context parallelism"],
)
def test_engines_without_plain_pages_of_all_tokens_are_refused(
    platform: Any, asked: object, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedEngineError, match=rf"^--additional-config kvserving.*{reason}"):
        platform.check_and_update_config(config(asked, **changes))
    # Nor does an engine that runs offer such a format, or eviction.
    assert re.search(reason, str(selection.why_not(config({}, **changes), KVCacheDType.INT4)))
    assert re.search(reason, str(selection.why_not_evict(config({}, **changes))))
    platform.check_and_update_config(config({}, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {
                "parallel_config": SimpleNamespace(
                    prefill_context_parallel_size=2, decode_context_parallel_size=1
                )
            },
            "prefill context parallelism",
        ),
        ({"cache": {"kv_sharing_fast_prefill": True}}, "--kv-sharing-fast-prefill"),
    ],
    ids=["context parallelism", "fast prefill"],
)
def test_eviction_alone_is_refused_where_steps_do_not_see_all_tokens(
    platform: Any, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedEngineError, match=reason):
        platform.check_and_update_config(config(EVICT, **changes))
    platform.check_and_update_config(config(INT4, **changes))


LAYER_FEATURES = {
    "use_mla": r"multi-head latent attention \(MLA\)",
    "has_sliding_window": "a sliding window",
    "has_sink": "attention sinks",
    "use_sparse": "sparse attention",
    "use_mm_prefix": "prefix attention of multimodal inputs",
    "use_non_causal": "non-causal attention",
}
"""What a layer may have that needs vLLM's own cache, and how it is called."""


def layer(*features: str, attn_type: str = "decoder") -> Any:
    """What vLLM asks a platform about when it builds a layer, without features but for these."""
    return SimpleNamespace(
        attn_type=attn_type, **{name: name in features for name in LAYER_FEATURES}
    )


def choose(
    platform: Any, monkeypatch: pytest.MonkeyPatch, additional: object, asked_about: Any
) -> str:
    """Path of the backend that an engine with such an `--additional-config` gives a layer."""
    stand_in(monkeypatch, "vllm.config", get_current_vllm_config=lambda: config(additional))
    path: str = platform.get_attn_backend_cls(None, asked_about)
    return path


@pytest.mark.parametrize(
    ("asked", "subject", "field"),
    [(INT4, "KV format int4", "kv_cache_dtype"), (EVICT, "eviction StreamingLLM", "eviction")],
)
@pytest.mark.parametrize("feature", LAYER_FEATURES)
def test_a_layer_that_needs_vllms_own_cache_is_refused(
    platform: Any, monkeypatch: pytest.MonkeyPatch,
    asked: object, subject: str, field: str, feature: str,
) -> None:  # fmt: skip
    message = f"^{subject}: .*{LAYER_FEATURES[feature]}, .*leave out kvserving.{field} "
    with pytest.raises(UnsupportedEngineError, match=message):
        choose(platform, monkeypatch, asked, layer(feature))
    # It is vLLM's business without a setting of ours, and in layers that have no cache.
    assert choose(platform, monkeypatch, {}, layer(feature)) == "CPU_ATTN"
    encoder = layer(feature, attn_type="encoder_only")
    assert choose(platform, monkeypatch, asked, encoder) == "CPU_ATTN"


@pytest.mark.parametrize("dtype", selection.BACKEND_CLASSES)
def test_a_plain_layer_gets_the_backend_of_its_format(
    platform: Any, monkeypatch: pytest.MonkeyPatch, dtype: KVCacheDType
) -> None:
    additional = {"kvserving": {"kv_cache_dtype": dtype.value}}
    path = choose(platform, monkeypatch, additional, layer())
    assert path.rpartition(".")[2] == selection.BACKEND_CLASSES[dtype]


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
