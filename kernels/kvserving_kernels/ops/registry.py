"""Which implementation of the KV operations runs where."""

import logging
import os
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from typing import Final

import torch

from kvserving_kernels.errors import NoImplementationError
from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.reference import ReferenceOperations
from kvserving_kernels.ops.torch_operations import TorchOperations

logger: Final = logging.getLogger("vllm.kvserving")


class Implementation(StrEnum):
    """Names of the implementations; AUTO takes the fastest that can run."""

    AUTO = "auto"
    REFERENCE = "reference"
    TORCH = "torch"
    CPU = "cpu"
    TRITON = "triton"


def why_not(
    implementation: Implementation,
    page: PageLayout,
    device: torch.device,
    may_compile: bool = True,
) -> str | None:
    """Reason why an implementation cannot serve a layout on a device, or None where it can."""
    if implementation in (Implementation.CPU, Implementation.TORCH) and device.type != "cpu":
        return f"it runs on CPUs only, and the pages are on {device}"
    if implementation is Implementation.CPU:
        if not may_compile and not why_not_compiled.cache_info().currsize:
            return "its kernels were not compiled when this process started"
        return why_not_compiled()
    if implementation is Implementation.TRITON:
        return _why_not_triton(page, device)
    return None


def select(
    page: PageLayout,
    device: torch.device | str,
    implementation: Implementation = Implementation.AUTO,
    may_compile: bool = True,
) -> Operations:
    """Operations for a layout on a device.

    `may_compile` is for callers that can wait: compiling takes long where no request may wait.
    Each implementation that is passed over is logged with its reason. NoImplementationError where
    the one asked for cannot run; AUTO never falls back to the reference, which is too slow to
    serve.
    """
    device = torch.device(device)
    automatic = implementation is Implementation.AUTO
    candidates = _BY_PREFERENCE if automatic else (implementation,)
    reasons = []
    for candidate in candidates:
        reason = why_not(candidate, page, device, may_compile)
        if reason is None:
            logger.info("KV operations for %s on %s: %s", page.layout.dtype, device, candidate)
            return _MAKERS[candidate]()
        reasons.append(f"{candidate}: {reason}")
        logger.info("KV operations for %s not by %s", page.layout.dtype, reasons[-1])
    raise NoImplementationError(
        f"no KV operations for {page.layout.dtype} on {device}: {'; '.join(reasons)}"
    )


@cache
def why_not_compiled() -> str | None:
    """Reason why there are no compiled kernels on this CPU; None once they are compiled."""
    if find_spec("numba") is None:
        return "the package numba is not installed"
    try:
        from kvserving_kernels.ops.numba_operations import prepare

        prepare()
    # Whatever stands in a compiler's way, there is a slower implementation to serve with.
    except Exception as error:
        logger.exception("KV kernels cannot be compiled")
        return f"its kernels cannot be compiled: {type(error).__name__}: {error}"
    return None


def _why_not_triton(page: PageLayout, device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda":
        return None
    # Triton itself reads the variable when it is imported.
    if os.environ.get("TRITON_INTERPRET") != "1":
        return f"it needs a CUDA device or TRITON_INTERPRET=1, and the pages are on {device}"
    return None


def _triton() -> Operations:
    from kvserving_kernels.ops.triton_operations import TritonOperations

    return TritonOperations()


def _compiled() -> Operations:
    from kvserving_kernels.ops.numba_operations import NumbaOperations

    return NumbaOperations()


_BY_PREFERENCE: Final = (Implementation.TRITON, Implementation.CPU, Implementation.TORCH)
_MAKERS: Final[dict[Implementation, Callable[[], Operations]]] = {
    Implementation.REFERENCE: ReferenceOperations,
    Implementation.TORCH: TorchOperations,
    Implementation.CPU: _compiled,
    Implementation.TRITON: _triton,
}
