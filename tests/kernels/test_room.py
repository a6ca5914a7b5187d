"""What a running engine's cache can become, said before it is tried, with the reason."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvserving_kernels.errors import InvalidChangeError
from kvserving_kernels.eviction import NO_EVICTION, StreamingLLM
from kvserving_kernels.formats import LAYOUTS, KVCacheDType, record_bytes
from kvserving_kernels.plugin.adapters.v0_32.layouts import Layouts
from kvserving_kernels.plugin.adapters.v0_32.selection import set_cache, takes_other_blocks
from kvserving_kernels.plugin.room import Room

HEADS_AND_LAYERS = 8
BLOCK, HEAD, LENGTH = 128, 64, 1024
POLICY = StreamingLLM(4, 256)
PEAK = POLICY.peak_blocks(LENGTH, 256, BLOCK)


def _block_bytes(dtype: str) -> int:
    record = record_bytes(dtype, BLOCK, HEAD)
    assert record is not None
    return record * HEADS_AND_LAYERS


def _room(dtype: str, cache_bytes: int, **changes: Any) -> Room:
    values = {
        "dtype": dtype,
        "block_bytes": _block_bytes(dtype),
        "cache_bytes": cache_bytes,
        "block_size": BLOCK,
        "head_size": HEAD,
        "max_model_len": LENGTH,
        "step_tokens": 256,
    }
    return Room(**{**values, **changes})


@pytest.mark.parametrize("start", ["bfloat16", "float32", *sorted(LAYOUTS)])
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3", *sorted(LAYOUTS)])
def test_a_format_has_room_when_one_request_and_the_block_kept_back_fit(
    start: str, dtype: str
) -> None:
    needed = (LENGTH // BLOCK + 1) * _block_bytes(dtype)
    assert _room(start, needed).why_not(dtype, NO_EVICTION) is None
    reason = _room(start, needed - 1).why_not(dtype, NO_EVICTION)
    assert reason is not None
    assert f"--kv-cache-memory-bytes of at least {needed}" in reason
    assert f"--max-model-len of at most {LENGTH - BLOCK}" in reason


@pytest.mark.parametrize("start", sorted(LAYOUTS))
def test_a_format_of_fewer_bytes_always_fits(start: str) -> None:
    smallest = (LENGTH // BLOCK + 1) * _block_bytes(start)
    for dtype in LAYOUTS:
        if _block_bytes(dtype) <= _block_bytes(start):
            assert _room(start, smallest).why_not(dtype, NO_EVICTION) is None


def test_with_eviction_a_request_needs_its_peak() -> None:
    needed = (PEAK + 1) * _block_bytes("bfloat16")
    assert _room("int4", needed).why_not("bfloat16", POLICY) is None
    assert _room("int4", needed - 1).why_not("bfloat16", POLICY) is not None
    assert _room("int4", needed).why_not("bfloat16", NO_EVICTION) is not None


def test_blocks_that_a_user_has_fixed_are_as_many_in_every_format() -> None:
    assert _room("int4", 0, fixed_blocks=9).why_not("bfloat16", NO_EVICTION) is None
    reason = _room("int4", 0, fixed_blocks=8).why_not("int2", NO_EVICTION)
    assert reason is not None
    assert "--num-gpu-blocks-override of at least 9" in reason


def test_a_format_whose_size_is_not_known_is_left_to_the_engine() -> None:
    assert _room("int4", 1).why_not("nvfp4", NO_EVICTION) is None
    assert replace(_room("int4", 1), dtype="nvfp4").why_not("bfloat16", NO_EVICTION) is None


class FakeCore:
    """An engine core, as far as its cache's layouts depend on it."""

    def __init__(self, cache_bytes: int, dtype: str = "bfloat16", eviction: Any = None) -> None:
        self.backend: str | None = None
        self.asked = 0
        model = SimpleNamespace(
            dtype="torch.bfloat16", max_model_len=LENGTH, get_head_size=lambda: HEAD,
            is_hybrid=False, is_encoder_decoder=False, rswa_window=None,
            attention_chunk_size=None, is_mm_prefix_lm=False,
            use_mla=False, get_sliding_window=lambda: None, uses_alibi=False,
        )  # fmt: skip
        cache = SimpleNamespace(
            cache_dtype="auto", block_size=BLOCK, num_gpu_blocks_override=None,
            kv_sharing_fast_prefill=False, kv_cache_dtype_skip_layers=[],
            user_specified_block_size=True,            kv_offloading_size=None,
        )  # fmt: skip
        parallel = SimpleNamespace(
            world_size=1, prefill_context_parallel_size=1, decode_context_parallel_size=1
        )
        self.vllm_config = SimpleNamespace(
            model_config=model, cache_config=cache, parallel_config=parallel,
            additional_config={}, speculative_config=None, kv_transfer_config=None,
            attention_config=SimpleNamespace(use_non_causal=False), max_in_flight_tokens=256,
        )  # fmt: skip
        self.available_gpu_memory_for_kv_cache = cache_bytes
        self.lay_out(dtype, eviction or NO_EVICTION)
        self.model_executor = self

    def lay_out(self, dtype: str, eviction: Any) -> None:
        """Have another cache in force."""
        set_cache(self.vllm_config, dtype, eviction)
        blocks = self.available_gpu_memory_for_kv_cache // _block_bytes(dtype)
        tensor = SimpleNamespace(size=blocks * _block_bytes(dtype))
        # Layers of several kinds share one allocation, and each kind has its size.
        tensors = [tensor, tensor]
        self.scheduler = SimpleNamespace(
            kv_cache_config=SimpleNamespace(num_blocks=blocks, kv_cache_tensors=tensors)
        )

    def collective_rpc(
        self, asked: Any, timeout: float, args: tuple[()], kwargs: dict[str, Any]
    ) -> list[Any]:
        """What two workers answer."""
        self.asked += 1
        return [asked(None), asked(self.backend)]


@pytest.fixture(autouse=True)
def evicting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the module that needs torch and vLLM."""
    package = "kvserving_kernels.plugin.adapters.v0_32"
    module = ModuleType(f"{package}.evicting")
    # A worker is here no more than what it answers.
    module.__dict__["backend_that_cannot_evict"] = lambda worker: worker
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules[package], "evicting", module, raising=False)


def _layouts(core: FakeCore, *names: str, **reasons: str) -> Layouts:
    """Layouts of an engine whose model and machine have these formats, and others not."""
    return Layouts(core, lambda _: {**dict.fromkeys(names), **reasons})


FULL = (LENGTH // BLOCK + 1) * _block_bytes("bfloat16")
SMALL = (LENGTH // BLOCK + 1) * _block_bytes("int4")


def test_all_is_offered_where_all_fits() -> None:
    layouts = _layouts(FakeCore(FULL), "auto", "bfloat16", "int4")
    assert layouts.dtypes().to_json() == {"values": ["auto", "bfloat16", "int4"]}
    assert layouts.evictions().to_json() == {
        "values": ["None", "StreamingLLM"],
        "sink_tokens": {"minimum": 0, "maximum": LENGTH, "default": 4},
        "window_tokens": {"minimum": BLOCK, "maximum": LENGTH},
    }


def test_a_larger_format_than_there_is_room_for_is_not_offered_and_refused() -> None:
    layouts = _layouts(FakeCore(SMALL, "int4"), "auto", "bfloat16", "int4", "int2")
    shown = layouts.dtypes().to_json()
    assert shown["values"] == ["int4", "int2"]
    assert set(shown["unavailable"]) == {"auto", "bfloat16"}
    assert str(FULL) in shown["unavailable"]["auto"]
    with pytest.raises(InvalidChangeError) as refused:
        layouts.check({"kv_cache_dtype": "auto"})
    assert refused.value.field == "kv_cache_dtype"
    assert str(FULL) in str(refused.value)
    layouts.check({"kv_cache_dtype": "int2"})
    layouts.check({"max_active_seqs": 8})


def test_a_format_may_come_with_the_eviction_that_makes_room() -> None:
    room = (PEAK + 1) * _block_bytes("bfloat16")
    layouts = _layouts(FakeCore(room, "int4"), "auto", "int4")
    assert "auto" in layouts.dtypes().unavailable
    layouts.check({"kv_cache_dtype": "auto", "eviction": POLICY})
    evicting = _layouts(FakeCore(room, "bfloat16", POLICY), "auto", "int4")
    shown = evicting.evictions().to_json()
    assert shown["values"] == ["StreamingLLM"]
    assert "takes 9 blocks" in shown["unavailable"]["None"]
    with pytest.raises(InvalidChangeError) as refused:
        evicting.check({"eviction": NO_EVICTION})
    assert refused.value.field == "eviction"
    evicting.check({"eviction": NO_EVICTION, "kv_cache_dtype": "int4"})


def test_eviction_on_a_backend_that_cannot_is_not_offered_and_refused() -> None:
    core = FakeCore(FULL)
    core.backend = "TRITON_ATTN"
    layouts = _layouts(core, "auto", "int4")
    shown = layouts.evictions().to_json()
    assert shown["values"] == ["None"]
    assert "CPU_ATTN, FLASH_ATTN" in shown["unavailable"]["StreamingLLM"]
    assert "got TRITON_ATTN" in shown["unavailable"]["StreamingLLM"]
    with pytest.raises(InvalidChangeError, match="got TRITON_ATTN"):
        layouts.check({"eviction": POLICY})
    # Formats of our own have kernels of our own.
    layouts.check({"eviction": POLICY, "kv_cache_dtype": "int4"})
    assert core.asked == 1

    # What a format's backend cannot do is still known when another is in force.
    core.lay_out("int4", POLICY)
    assert "auto" in layouts.dtypes().unavailable
    layouts.check({"kv_cache_dtype": "auto", "eviction": NO_EVICTION})
    assert core.asked == 1


def test_what_a_model_has_against_eviction_is_said() -> None:
    core = FakeCore(FULL)
    core.vllm_config.speculative_config = object()
    shown = _layouts(core).evictions().to_json()
    assert shown["values"] == ["None"]
    assert "speculative" in shown["unavailable"]["StreamingLLM"]
    assert core.asked == 0


def test_what_is_in_force_is_never_refused() -> None:
    core = FakeCore(2 * _block_bytes("int4"), "int4", POLICY)
    layouts = _layouts(core, "int4")
    assert layouts.dtypes().values == ("int4",)
    layouts.check({"kv_cache_dtype": "int4", "eviction": POLICY})
    assert "StreamingLLM" in layouts.evictions().to_json()["values"]


def test_a_format_that_model_or_machine_lack_is_shown_and_refused_with_the_reason() -> None:
    layouts = _layouts(FakeCore(FULL), "auto", "int4", float16="this model runs in bfloat16")
    assert layouts.dtypes().to_json() == {
        "values": ["auto", "int4"],
        "unavailable": {"float16": "this model runs in bfloat16"},
    }
    with pytest.raises(InvalidChangeError, match="this model runs in bfloat16"):
        layouts.check({"kv_cache_dtype": "float16"})
    # One that is not there at all is left to what reads the change.
    layouts.check({"kv_cache_dtype": "fp8_e4m3"})


@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize(("block", "chosen"), [(16, True), (16, False), (32, True), (128, True)])
def test_a_format_that_takes_larger_blocks_than_the_engine_chose_takes_a_restart(
    dtype: KVCacheDType, block: int, chosen: bool
) -> None:
    cache = SimpleNamespace(block_size=block, user_specified_block_size=not chosen)
    per_token = dtype in (KVCacheDType.INT8, KVCacheDType.K8V4)
    # What a user asked for stays, and is the reason that they are given.
    assert takes_other_blocks(SimpleNamespace(cache_config=cache), dtype) == (
        chosen and block == 16 and not per_token
    )
