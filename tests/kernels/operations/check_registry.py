"""Which implementation is chosen, and what is said of the others."""

import logging

import pytest

from kvserving_kernels.errors import NoImplementationError
from kvserving_kernels.formats import layout_of
from kvserving_kernels.ops.cpu import CPUOperations
from kvserving_kernels.ops.reference import ReferenceOperations
from kvserving_kernels.ops.registry import Implementation, select

PAGE = layout_of("int4").page(64, 64)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_a_cpu_gets_the_cpu_implementation_and_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert isinstance(select(PAGE, "cpu"), CPUOperations)
    refused, chosen = caplog.messages
    assert refused.startswith("KV operations for int4 not by triton: ")
    assert chosen == "KV operations for int4 on cpu: cpu"


def test_the_reference_must_be_asked_for() -> None:
    assert isinstance(select(PAGE, "cpu", Implementation.REFERENCE), ReferenceOperations)
    with pytest.raises(NoImplementationError) as caught:
        select(PAGE, "meta")
    assert "cpu: it runs on CPUs only, and the pages are on meta" in str(caught.value)
    assert "triton: " in str(caught.value)
