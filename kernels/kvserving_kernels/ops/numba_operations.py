"""Store and attend by kernels that Numba compiles for this processor: what serves on CPUs."""

import logging
import time
from functools import cache
from typing import Final

import numba
import numpy as np
import torch

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.formats.rotation import block_of, signs
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.numba_attend import attend_kernel
from kvserving_kernels.ops.numba_plan import memory_of, plan_of
from kvserving_kernels.ops.numba_store import store_kernel
from kvserving_kernels.ops.pages import Batch, check_attend, check_store, delivered
from kvserving_kernels.ops.rotation import rotate_back, rotate_queries
from kvserving_kernels.ops.torch_operations import prefill

logger: Final = logging.getLogger("vllm.kvserving")


class NumbaOperations(Operations):
    """The compiled implementation; kernels are compiled when it is made, never by a request."""

    def __init__(self) -> None:
        self.threads = prepare()

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
        records = check_store(page, key, value, pages, slots)
        memory = memory_of(records)
        counts = np.zeros((records.shape[1], 2), np.int64)
        store_kernel(self.threads > 1)(
            plan_of(page, records),
            memory,
            memory.view(np.uint16),
            key.float().contiguous().numpy(),
            value.float().contiguous().numpy(),
            slots.long().contiguous().numpy(),
            *_rotation(page.head_size),
            counts,
            0,
            records.shape[1],
        )
        if counters is not None and counts.any():
            counters += torch.from_numpy(counts.sum(0))

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
        records = check_attend(page, query, pages, batch)
        queries = query.float().contiguous()
        output = torch.zeros(queries.shape)
        starts = batch.query_start.int().contiguous().numpy()
        counts = np.diff(starts)
        if (counts == 1).any():
            memory = memory_of(records)
            attend_kernel(self.threads > 1)(
                plan_of(page, records),
                memory,
                memory.view(np.uint16),
                queries.numpy(),
                starts,
                batch.context_lengths.int().contiguous().numpy(),
                batch.block_table.int().contiguous().numpy(),
                records.shape[1],
                scale,
                *_rotation(page.head_size),
                output.numpy(),
                # The first pair for one thread, the number of threads for more.
                self.threads if self.threads > 1 else 0,
                len(batch.context_lengths) * records.shape[1],
            )
        for sequence in np.flatnonzero(counts > 1).tolist():
            part = slice(int(starts[sequence]), int(starts[sequence + 1]))
            length = int(batch.context_lengths[sequence])
            used = batch.block_table[sequence, : -(-length // page.block_size)]
            asked = rotate_queries(queries[part]) if page.layout.k_rotated else queries[part]
            found = prefill(page, asked, records.index_select(0, used), length, scale)
            output[part] = rotate_back(found) if page.layout.v_rotated else found
        return delivered(output.to(query.dtype), out)


@cache
def prepare() -> int:
    """Compile the kernels, once per process; returns how many threads they use: those of torch."""
    began = time.monotonic()
    threads: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if threads > 1:
        numba.set_num_threads(threads)
    attend_kernel(threads > 1)
    store_kernel(threads > 1)
    took = time.monotonic() - began
    logger.info("KV kernels compiled or loaded in %.1f s, for %d threads", took, threads)
    return threads


@cache
def _rotation(
    head_size: int,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], np.float32]:
    """The signs of a rotation and the factor that keeps lengths."""
    return np.array(signs(head_size), np.float32), np.float32(block_of(head_size) ** -0.5)
