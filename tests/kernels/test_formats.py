"""Which KV formats are supported where, and what a refusal tells its reader."""

from pathlib import Path

import pytest

from kvserving_kernels.formats import (
    DTYPES,
    LAYOUTS,
    KVCacheDType,
    supported_dtypes,
    this_machine,
    why_not,
)
from kvserving_kernels.formats.machine import parse_cpuinfo

AVX2 = frozenset({"sse4_2", "avx", "avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AMX = AVX2 | {"amx_tile", "amx_bf16"}
VERSION = "0.32.0"


def _supported(accelerator: str, features: frozenset[str] | None = None) -> set[str]:
    answer = supported_dtypes(accelerator, VERSION, features)
    assert set(answer) == set(KVCacheDType)
    return {dtype.value for dtype, reason in answer.items() if reason is None}


def test_every_format_has_a_description() -> None:
    assert set(DTYPES) == set(KVCacheDType)
    assert all(info.summary for info in DTYPES.values())


def test_native_formats_have_their_size_and_the_others_none_yet() -> None:
    sizes = {dtype.value: info.bits_per_element for dtype, info in DTYPES.items()}
    known = {name: bits for name, bits in sizes.items() if bits is not None}
    assert known == {"bfloat16": 16.0, "float16": 16.0, "fp8_e4m3": 8.0}


@pytest.mark.parametrize(
    ("features", "fp8"), [(AVX2, False), (AVX512, True), (AMX, True), (None, True)]
)
def test_fp8_on_a_cpu_follows_its_instruction_sets(
    features: frozenset[str] | None, fp8: bool
) -> None:
    expected = {"auto", "bfloat16", "float16"} | ({"fp8_e4m3"} if fp8 else set())
    assert _supported("CPU", features) - set(LAYOUTS) == expected


def test_part_of_avx512_is_not_enough() -> None:
    assert why_not("fp8_e4m3", "CPU", VERSION, AVX2 | {"avx512f", "avx512bw"}) is not None


def test_a_gpu_stores_what_vllm_stores_and_what_the_plugin_does() -> None:
    assert _supported("NVIDIA") == {"auto", "bfloat16", "float16", "fp8_e4m3", *LAYOUTS}


def test_a_refusal_says_what_is_needed_what_is_there_and_what_works() -> None:
    assert why_not("fp8_e4m3", "CPU", VERSION, AVX2) == (
        "fp8_e4m3 on CPU needs AVX-512 or AMX; this machine has avx2. "
        "Supported here: auto, bfloat16, float16, int8, k8v4, int4, int4_hadamard, int2, k2v4"
    )


def test_a_format_without_kernels_is_refused_on_every_platform() -> None:
    for accelerator in ("CPU", "NVIDIA"):
        reason = why_not("nuq4", accelerator, VERSION, AVX512)
        assert reason is not None
        assert reason.startswith("nuq4 has no KV kernels yet. Supported here: auto, ")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_format_of_ours_needs_an_engine_that_the_plugin_knows(name: str) -> None:
    assert why_not(name, "CPU", "0.32.7", AVX2, "float32") is None
    assert why_not(name, "NVIDIA", "0.32.0") is None
    reason = why_not(name, "CPU", "0.33.0", AVX2)
    assert reason is not None
    assert reason.startswith(f"{name} needs the kvserving plugin on vLLM 0.32.x; this is vLLM 0.33")


@pytest.mark.parametrize("name", ["int5", "nvfp4", "turboquant_k8v4", "int8_per_token_head"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    reason = why_not(name, "CPU", VERSION, AVX512)
    assert reason is not None
    assert f"'{name}' is not a KV cache format" in reason
    assert "int4_hadamard" in reason


@pytest.mark.parametrize("model_dtype", ["bfloat16", "float16", "float32"])
def test_a_16_bit_cache_on_cpu_must_be_the_models_own(model_dtype: str) -> None:
    for dtype in ("bfloat16", "float16"):
        reason = why_not(dtype, "CPU", VERSION, AVX2, model_dtype)
        assert (reason is None) == (dtype == model_dtype)
    assert why_not("auto", "CPU", VERSION, AVX2, model_dtype) is None
    assert why_not("float16", "NVIDIA", VERSION, None, model_dtype) is None


def test_an_unknown_accelerator_is_refused() -> None:
    assert "expected CPU or NVIDIA" in (why_not("auto", "TPU", VERSION) or "")


@pytest.mark.parametrize(
    "text",
    [
        "processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: other\n",
        "Features : avx2 fpu",
    ],
)
def test_cpu_features_are_those_of_the_first_processor(text: str) -> None:
    assert parse_cpuinfo(text) == {"fpu", "avx2"}


def test_a_machine_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert this_machine(tmp_path / "missing") is None
    empty = tmp_path / "cpuinfo"
    empty.write_text("processor : 0\n")
    assert this_machine(empty) is None
