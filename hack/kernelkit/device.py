"""Operations of a GPU for caches in the memory of the CPU, so that one suite serves both."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvserving_kernels.formats import PageLayout
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch
from kvserving_kernels.ops.registry import Implementation, select


def triton_device() -> str:
    """Where Triton's kernels run: on a GPU where there is one, unless they are interpreted."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return "cuda" if torch.cuda.is_available() and not interpreted else "cpu"


def operations_for(page: PageLayout, implementation: Implementation) -> Operations:
    """Operations under test."""
    device = triton_device() if implementation is Implementation.TRITON else "cpu"
    found = select(page, device, implementation)
    return OnDevice(found) if device == "cuda" else found


@dataclass(frozen=True)
class OnDevice(Operations):
    """Takes tensors to the GPU before a call and back after it, all memory around pages too."""

    operations: Operations

    def prepare(self, page: PageLayout, *shapes: Any) -> None:
        """See `ops.registry.Operations.prepare`."""
        self.operations.prepare(page, *shapes)

    def store(
        self,
        page: PageLayout,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: torch.Tensor,
        slots: torch.Tensor,
        counters: torch.Tensor | None = None,
    ) -> None:
        """See `ops.registry.Operations.store`."""
        there = _moved((key, value, pages, slots, counters))
        self.operations.store(page, *there)
        for here, moved in ((pages, there[2]), (counters, there[4])):
            if here is not None:
                _whole(here).copy_(_whole(moved))

    def attend(
        self,
        page: PageLayout,
        query: torch.Tensor,
        pages: torch.Tensor,
        batch: Batch,
        scale: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `ops.registry.Operations.attend`."""
        asked, stored, start, lengths, table, output = _moved(
            (query, pages, batch.query_start, batch.context_lengths, batch.block_table, out)
        )
        there = Batch(start, lengths, table, batch.max_queries, on_host=batch.on_host)
        found = self.operations.attend(page, asked, stored, there, scale, output)
        return found.cpu() if out is None else out.copy_(found)


def _moved(tensors: Sequence[torch.Tensor | None]) -> list[Any]:
    """The same on the GPU, with the same strides."""
    return [
        None
        if each is None
        else _whole(each).cuda().as_strided(each.shape, each.stride(), each.storage_offset())
        for each in tensors
    ]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All memory of a tensor's storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)
