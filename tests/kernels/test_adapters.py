"""Selection of the plugin, of a vLLM version's adapter, and the guard at start."""

import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kvserving_kernels.errors import UnsupportedEngineError, UnsupportedKVDTypeError
from kvserving_kernels.plugin import Selection, register, selection
from kvserving_kernels.plugin.adapters import SUPPORTED, adapter_for
from kvserving_kernels.plugin.guard import check_kv_dtype


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, Selection.ON_REQUEST),
        ("", Selection.NONE),
        ("kvserving_http", Selection.NONE),
        ("other", Selection.NONE),
        ("kvserving", Selection.NAMED),
        ("other,kvserving,kvserving_http", Selection.NAMED),
    ],
)
def test_how_far_the_plugin_is_asked_for(variable: str | None, expected: Selection) -> None:
    assert selection(variable) is expected


@pytest.mark.parametrize(("variable", "raises"), [(None, False), ("", False), ("kvserving", True)])
def test_only_an_engine_that_names_the_plugin_fails_for_its_version(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, raises: bool
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.1.0"))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if variable is not None:
        monkeypatch.setenv("VLLM_PLUGINS", variable)
    with pytest.raises(UnsupportedEngineError) if raises else nullcontext():
        register()


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "0.3.20", "1.0.0", "0.1.dev1+g123"])
def test_an_unsupported_version_is_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(UnsupportedEngineError) as refused:
        adapter_for(version)
    assert version in str(refused.value)
    assert all(f"{name}.x" in str(refused.value) for name in SUPPORTED)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu"])
def test_every_patch_of_a_supported_minor_has_its_adapter(version: str) -> None:
    adapter = adapter_for(version)
    assert all(callable(getattr(adapter, name)) for name in ("install", "link", "probe"))


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "nvfp4", "fp8_inc", "turboquant_k8v4"])
def test_formats_that_a_cpu_engine_would_corrupt_are_refused(dtype: str) -> None:
    with pytest.raises(UnsupportedKVDTypeError, match=r"^--kv-cache-dtype: .*Supported here: auto"):
        check_kv_dtype(dtype, "CPU", "0.32.0", {"avx2"}, "bfloat16")
    check_kv_dtype(dtype, "NVIDIA", "0.32.0", None, "bfloat16")


def test_a_cache_of_another_16_bit_type_than_the_model_is_refused() -> None:
    check_kv_dtype("bfloat16", "CPU", "0.32.0", {"avx2"}, "bfloat16")
    with pytest.raises(UnsupportedKVDTypeError, match="runs in float32"):
        check_kv_dtype("bfloat16", "CPU", "0.32.0", {"avx2"}, "float32")


@pytest.mark.parametrize("variable", ["", "other", "kvserving_http"])
def test_where_only_others_are_named_no_adapter_is_imported(variable: str) -> None:
    code = (
        "import sys, kvserving_kernels.plugin; kvserving_kernels.plugin.register(); "
        "sys.exit(any(n == 'vllm' or n.startswith('kvserving_kernels.plugin.') "
        "for n in sys.modules))"
    )
    environment = {**os.environ, "VLLM_PLUGINS": variable}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 0


def test_importing_the_plugin_imports_neither_vllm_nor_a_web_framework() -> None:
    code = (
        "import sys, kvserving_kernels.plugin; "
        "sys.exit(any(name in sys.modules for name in ('vllm', 'torch', 'fastapi')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
