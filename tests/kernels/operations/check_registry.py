"""Which implementation is chosen, and what is said of the others."""

import logging
from collections.abc import Iterator

import pytest
import torch

from kvserving_kernels.errors import NoImplementationError
from kvserving_kernels.formats import layout_of
from kvserving_kernels.ops import numba_operations, registry
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.numba_operations import NumbaOperations
from kvserving_kernels.ops.reference import ReferenceOperations
from kvserving_kernels.ops.registry import Implementation, select
from kvserving_kernels.ops.torch_operations import TorchOperations

PAGE = layout_of("int4").page(64, 64)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def asked_again() -> Iterator[None]:
    """Whether there are compiled kernels is asked once per process."""
    registry.why_not_compiled.cache_clear()
    yield
    registry.why_not_compiled.cache_clear()


@pytest.fixture
def log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """An engine's log: vLLM shows its own loggers only, and hands nothing on to the root."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, "vllm.kvserving")
    return caplog


def _said(log: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in log.messages if message.startswith("KV operations")]


def test_a_cpu_gets_the_compiled_implementation_and_a_reason(
    log: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(select(PAGE, "cpu"), NumbaOperations)
    refused, chosen = _said(log)
    assert refused.startswith("KV operations for int4 not by triton: ")
    assert chosen == "KV operations for int4 on cpu: cpu"


@pytest.mark.usefixtures("asked_again")
def test_without_numba_torch_serves_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    assert isinstance(select(PAGE, "cpu"), TorchOperations)
    assert _said(log)[1:] == [
        "KV operations for int4 not by cpu: the package numba is not installed",
        "KV operations for int4 on cpu: torch",
    ]


@pytest.mark.usefixtures("asked_again")
def test_a_compiler_that_fails_does_not_stop_the_engine(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    def fail() -> int:
        raise OSError("no code can be mapped")

    monkeypatch.setattr(numba_operations, "prepare", fail)
    assert isinstance(select(PAGE, "cpu"), TorchOperations)
    reason = "its kernels cannot be compiled: OSError: no code can be mapped"
    assert f"KV operations for int4 not by cpu: {reason}" in log.messages
    with pytest.raises(NoImplementationError, match=reason):
        select(PAGE, "cpu", Implementation.CPU)


@pytest.mark.usefixtures("asked_again")
def test_a_caller_that_cannot_wait_gets_torch_until_kernels_are_compiled(
    log: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(select(PAGE, "cpu", may_compile=False), TorchOperations)
    reason = "its kernels were not compiled when this process started"
    assert f"KV operations for int4 not by cpu: {reason}" in log.messages
    assert registry.why_not_compiled() is None
    assert isinstance(select(PAGE, "cpu", may_compile=False), NumbaOperations)


def test_the_reference_must_be_asked_for() -> None:
    assert isinstance(select(PAGE, "cpu", Implementation.REFERENCE), ReferenceOperations)
    with pytest.raises(NoImplementationError) as caught:
        select(PAGE, "meta")
    assert "cpu: it runs on CPUs only, and the pages are on meta" in str(caught.value)
    assert "torch: it runs on CPUs only, and the pages are on meta" in str(caught.value)
    assert "triton: " in str(caught.value)


@pytest.mark.parametrize("implementation", [Implementation.REFERENCE, Implementation.TORCH])
def test_what_is_compiled_for_no_shape_has_nothing_to_prepare(
    implementation: Implementation,
) -> None:
    operations = select(PAGE, "cpu", implementation)
    # The interface's own: nothing stands in each of them again.
    assert type(operations).prepare is Operations.prepare
    operations.prepare(PAGE, 8, 2, torch.float32, torch.device("cpu"))
