"""Store and attend by Triton kernels, on a GPU or in Triton's interpreter."""

from typing import Final

import torch

from kvserving_kernels.formats.layout import PageLayout
from kvserving_kernels.ops import expanded
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch, check_attend, check_store, delivered
from kvserving_kernels.ops.rotation import rotate_back, rotate_queries
from kvserving_kernels.ops.triton_attend import attend_rows
from kvserving_kernels.ops.triton_chunks import compile_chunks_for, prefill, takes_chunks
from kvserving_kernels.ops.triton_step import MOST_TOKENS, compile_for, decode, signs_on, takes
from kvserving_kernels.ops.triton_store import store, tuning

PROGRAMS: Final = 512
"""Programs to aim at: about four on each of the 132 multiprocessors of an H200."""

MAXIMUM_SPLITS: Final = 32
"""More shares of one sequence cost more to merge than they gain."""


class TritonOperations(Operations):
    """The Triton implementation; never waits for the device, and reads no length on the host."""

    def prepare(
        self,
        page: PageLayout,
        heads: int,
        kv_heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """See `ops.registry.Operations.prepare`."""
        compile_for(page, heads, kv_heads, dtype, device)
        compile_chunks_for(page, heads, kv_heads, dtype, device)
        expanded.compile_for(page, kv_heads, dtype, device)

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
        if not len(slots):
            return
        store(
            page,
            key if key.stride(2) == 1 else key.contiguous(),
            value if value.stride(2) == 1 else value.contiguous(),
            slots,
            records,
            signs_on(page.head_size, key.device),
            counters,
            tuning(len(slots)),
        )

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
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if out is not None and out.dtype is query.dtype and out.is_contiguous():
            output = out
        if len(query):
            self._attend(page, query, records, batch, scale, output)
        return output if out is None or output is out else delivered(output, out)

    def _attend(
        self,
        page: PageLayout,
        query: torch.Tensor,
        records: torch.Tensor,
        batch: Batch,
        scale: float,
        output: torch.Tensor,
    ) -> None:
        kv_heads = records.shape[1]
        most = len(query) if batch.max_queries is None else batch.max_queries
        # Two sizes only, since each is compiled.
        tokens = 1 if most <= 1 else MOST_TOKENS
        if most <= tokens and takes(page, query, kv_heads, tokens):
            decode(page, query, records, batch, tokens, scale, output, cover=True)
            return
        groups = expanded.takes(page, query, kv_heads, batch)
        if groups is not None:
            expanded.prefill(page, query, records, batch, groups, scale, output)
            rest = expanded.singles(batch, groups)
            if len(rest.context_lengths):
                decode(page, query, records, rest, 1, scale, output, cover=False)
            return
        # In a batch with prompts, sequences with one query each are still decoded, unless the batch
        # has one sequence only: then there is nothing beside it to launch for.
        single = len(batch.context_lengths) > 1 and takes(page, query, kv_heads, 1)
        if takes_chunks(page, query, kv_heads):
            prefill(page, query, records, batch, 2 if single else 1, scale, output)
        else:
            output.copy_(_by_rows(page, query, records, batch, scale, not single))
        if single:
            decode(page, query, records, batch, 1, scale, output, cover=False)


def _by_rows(
    page: PageLayout,
    query: torch.Tensor,
    records: torch.Tensor,
    batch: Batch,
    scale: float,
    with_single: bool,
) -> torch.Tensor:
    """Output of all rows in 32 bits; zero where a sequence has one query, unless `with_single`."""
    rows = torch.arange(query.shape[0], device=query.device)
    # The last sequence also gets the rows after all queries, with length zero.
    owners = torch.searchsorted(batch.query_start[1:].contiguous(), rows, right=True)
    beyond = owners >= batch.context_lengths.shape[0]
    owners = owners.clamp(max=batch.context_lengths.shape[0] - 1)
    after = batch.query_start[1:][owners] - 1 - rows
    lengths = (batch.context_lengths[owners] - after).clamp(min=0)
    nothing = beyond | (batch.context_lengths[owners] == 0)
    if not with_single:
        nothing |= batch.query_start.diff()[owners] == 1
    lengths = torch.where(nothing, 0, lengths)
    queries = rotate_queries(query) if page.layout.k_rotated else query.float()
    queries = (queries * scale).contiguous()
    wanted = PROGRAMS // (len(rows) * records.shape[1])
    splits = max(1, min(wanted, MAXIMUM_SPLITS, batch.block_table.shape[1]))
    output = attend_rows(page, queries, records, batch.block_table, owners, lengths, splits)
    return rotate_back(output) if page.layout.v_rotated else output
