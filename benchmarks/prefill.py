"""Time of prefill attention on a GPU in each KV format, with FlashAttention 3 beside it.

Every sequence of a batch has a chunk of queries, the last of its context. Each measurement is a
CUDA graph of several layers' calls, each with pages of its own, as in `benchmarks/attention.py`;
`us` is the median over replays of a graph, per call. `tflops` counts two products of two operations
per query head, channel and token that a query sees.

A row has a ratio only if the same kernels and pages gave the right output in the same run: relative
error against attention in 64 bits on the stored values, for some rows of the first and the last
sequence and of a batch of chunks around the edges of blocks and tiles; and the same bits twice.

`--fa3` names the shared library of FlashAttention 3 that vLLM ships, in `vllm/vllm_flash_attn/`.
Without it there is no peer. `--variants` measures other cuts of the kernel, and writes nothing:

    python benchmarks/prefill.py --fa3 _vllm_fa3_C.abi3.so
    python benchmarks/prefill.py --formats int4 --variants '' stages=2 registers=0 rows=64,warps=4
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import envelope
import torch
from attention import block_tables, filled, reference, replay

from kvserving_kernels.formats import LAYOUTS, layout_of
from kvserving_kernels.ops import compiles, expanded, triton_chunks
from kvserving_kernels.ops.pages import Batch, records
from kvserving_kernels.ops.registry import Implementation, select
from kvserving_kernels.ops.triton_chunks import Tuning

BLOCK_SIZE: Final = 64
KV_HEADS: Final = 8
HEADS: Final = 32
HEAD_SIZE: Final = 128
LAYERS: Final = 4
REPLAYS: Final = 15
CHECKED_ROWS: Final = 24
"""Query tokens of a sequence that are compared with attention in 64 bits."""

ERROR_LIMIT: Final = 1e-2
"""Twice what keys and weights in bfloat16 cost; a wrong mask or scale costs far more."""

SHAPES: Final = ((1, 2048, 2048), (1, 2048, 8192), (1, 2048, 32768), (4, 2048, 8192),
                 (1, 8192, 8192), (1, 256, 32768))  # fmt: skip
EDGES: Final = ((33, 33), (1, 4096), (70, 200), (2, 0), (500, 1000), (64, 64), (129, 8195))
"""Queries and tokens of sequences of one batch."""


@dataclass(frozen=True)
class Shape:
    """What one measurement is of: sequences, their queries, and their tokens with the queries."""

    batch: int
    chunk: int
    context: int

    def sequences(self) -> list[tuple[int, int]]:
        """Queries and tokens of each sequence."""
        return [(self.chunk, self.context)] * self.batch

    def operations(self) -> float:
        """Operations of both products."""
        seen = self.chunk * (self.context - self.chunk) + self.chunk * (self.chunk + 1) / 2
        return 4.0 * self.batch * HEADS * HEAD_SIZE * seen


def main() -> None:
    """Measure all shapes and formats, and write a row for each or print those of variants."""
    options = _options()
    count = compiles.start()
    if options.fa3:
        torch.ops.load_library(str(options.fa3))
        if not options.variants:
            expanded.use(_flash)
    shapes = [Shape(*shape) for shape in options.shapes]
    peers = {shape: _fa3(shape) if options.fa3 else None for shape in shapes}
    rows: list[dict[str, Any]] = []
    late = 0
    for dtype in options.formats:
        pool = Pool(dtype, shapes)
        for variant in options.variants or [None]:
            if variant is not None:
                _use(variant)
            failed = pool.prepare()
            prepared = count.count
            for shape in shapes:
                row = {"error": failed} if failed else pool.measure(shape, peers[shape])
                row = {"format": dtype, "variant": variant or "", **row}
                rows.append(row)
                print(json.dumps(row), flush=True)  # noqa: T201
                if failed:
                    break
            late += count.count - prepared
        del pool
        torch.cuda.empty_cache()
    if not options.variants:
        envelope.write(
            options.out, rows, block_size=BLOCK_SIZE, layers=LAYERS, compiled_after_prepare=late
        )


class Pool:
    """Pages of one format with content, and the operations on them."""

    def __init__(self, dtype: str, shapes: Sequence[Shape]) -> None:
        self.page = layout_of(dtype).page(BLOCK_SIZE, HEAD_SIZE)
        self.edges = float("inf")
        device = torch.device("cuda")
        self.operations = select(self.page, device, Implementation.TRITON)
        most = max(shape.batch * -(-shape.context // BLOCK_SIZE) for shape in shapes)
        blocks = -(-max(LAYERS * most, 1024) // 64) * 64
        self.pages = filled(self.operations, self.page, KV_HEADS, blocks)

    def prepare(self) -> str:
        """Compile what an engine compiles at start; why that failed, or nothing."""
        device = self.pages.device
        # What was compiled for another cut must not count.
        triton_chunks.compile_chunks_for.cache_clear()
        # A cut that does not fit is a row too.
        try:
            self.operations.prepare(self.page, HEADS, KV_HEADS, torch.bfloat16, device)
            self.edges = self._error(self._batch(EDGES, 1)[0], EDGES, range(len(EDGES)))
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
        return ""

    def measure(self, shape: Shape, peer_us: float | None) -> dict[str, Any]:
        """The row of a shape."""
        sequences = shape.sequences()
        batches = self._batch(sequences, LAYERS)
        query = self._query(sequences)
        out = torch.empty_like(query)
        scale = HEAD_SIZE**-0.5

        def call(index: int) -> None:
            self.operations.attend(self.page, query, self.pages, batches[index], scale, out)

        times = replay(call, len(batches), lambda: batches[0].plans.clear(), REPLAYS)
        us = statistics.median(times)
        error = max(self.edges, self._error(batches[-1], sequences, {0, shape.batch - 1}))
        right = error <= ERROR_LIMIT and peer_us is not None
        return {
            "batch": shape.batch,
            "chunk": shape.chunk,
            "context": shape.context,
            "us": round(us, 1),
            "longest_us": round(max(times), 1),
            "tflops": round(shape.operations() / us / 1e6),
            "peer": "FlashAttention 3, bfloat16" if peer_us else None,
            "peer_us": round(peer_us, 1) if peer_us else None,
            "peer_tflops": round(shape.operations() / peer_us / 1e6) if peer_us else None,
            "ratio": round(peer_us / us, 3) if right and peer_us else None,
            "rel_error": float(f"{error:.2e}"),
        }

    def _query(self, sequences: Sequence[tuple[int, int]]) -> torch.Tensor:
        chance = torch.Generator("cuda").manual_seed(2)
        shape = (sum(count for count, _ in sequences), HEADS, HEAD_SIZE)
        return torch.randn(shape, device="cuda", generator=chance).bfloat16()

    def _batch(self, sequences: Sequence[tuple[int, int]], layers: int) -> list[Batch]:
        """Batches with the same lengths and plans, and blocks of their own."""
        counts, lengths = (list(column) for column in zip(*sequences, strict=True))
        tables = block_tables(lengths, BLOCK_SIZE, len(self.pages), layers)
        start = torch.tensor([0, *counts]).cumsum(0).int().cuda()
        found = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        plans: dict[Any, Any] = {}
        on_host = (start.tolist(), lengths)
        return [Batch(start, found, table, max(counts), plans, on_host) for table in tables]

    def _error(self, batch: Batch, sequences: Sequence[tuple[int, int]], compared: Any) -> float:
        """Largest relative error of a sequence's rows; infinite if they change in a second run."""
        query = self._query(sequences)
        scale = HEAD_SIZE**-0.5
        batch.plans.clear()
        got = self.operations.attend(self.page, query, self.pages, batch, scale)
        if not torch.equal(got, self.operations.attend(self.page, query, self.pages, batch, scale)):
            return float("inf")
        found = records(self.pages, self.page)
        errors = [0.0]
        start = 0
        for index, (count, length) in enumerate(sequences):
            first, start = start, start + count
            if index not in compared:
                continue
            blocks = batch.block_table[index, : -(-length // BLOCK_SIZE)].long()
            step = max(1, count // CHECKED_ROWS)
            for row in {*range(0, count, step), count - 1}:
                seen = max(length - (count - 1 - row), 0)
                exact = reference(self.page, query[first + row], found[blocks], seen, scale)
                error = (got[first + row].double() - exact).norm()
                errors.append(float(error / exact.norm()) if seen else float(error))
        return max(errors)


def _fa3(shape: Shape) -> float:
    """Microseconds of FlashAttention 3 on pages of 16-bit keys and values of the same shape."""
    library = torch.ops._vllm_fa3_C
    blocks = LAYERS * shape.batch * -(-shape.context // BLOCK_SIZE)
    key = torch.randn((blocks, BLOCK_SIZE, KV_HEADS, HEAD_SIZE), device="cuda").bfloat16()
    value = key.clone()
    lengths = [shape.context] * shape.batch
    tables = block_tables(lengths, BLOCK_SIZE, blocks, LAYERS)
    start = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda") * shape.chunk
    found = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    rows = shape.batch * shape.chunk
    query = torch.randn((rows, HEADS, HEAD_SIZE), device="cuda").bfloat16()
    out = torch.empty_like(query)
    plan = library.get_scheduler_metadata(
        shape.batch, shape.chunk, shape.context, HEADS, KV_HEADS, HEAD_SIZE, HEAD_SIZE,
        torch.bfloat16, found, start, None, None, None, None, BLOCK_SIZE, 0, True, -1, -1, False, 0,
        None, 0,
    )  # fmt: skip

    def call(index: int) -> None:
        library.fwd(
            query, key, value, None, None, None, out, start, None, None, None, found, shape.chunk,
            shape.context, tables[index], None, None, None, None, None, None, None, None,
            HEAD_SIZE**-0.5, True, -1, -1, 0.0, True, plan, 0, None, 0, None, 1, 0, None,
        )  # fmt: skip

    return statistics.median(replay(call, len(tables), lambda: None, REPLAYS))


def _flash(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, query_starts: torch.Tensor,
    key_starts: torch.Tensor, most_queries: int, most_keys: int, scale: float, out: torch.Tensor,
) -> None:  # fmt: skip
    torch.ops._vllm_fa3_C.fwd(
        query, keys, values, None, None, None, out, query_starts, key_starts, None, None, None,
        most_queries, most_keys, None, None, None, None, None, None, None, None, None, scale, True,
        -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None,
    )  # fmt: skip


def _use(variant: str) -> None:
    """Cut the kernel as `name=value,...` says; fields that are not named keep their defaults.

    No limit on registers is `registers=0`.
    """
    changes: dict[str, Any] = {}
    for pair in filter(None, variant.split(",")):
        name, _, value = pair.partition("=")
        changes[name] = bool(int(value)) if name == "apart" else int(value) or None
    tuned = replace(Tuning(), **changes)
    triton_chunks.tuning = lambda page: tuned


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", default=list(LAYOUTS))
    parser.add_argument("--fa3", type=Path, help="shared library of FlashAttention 3")
    parser.add_argument(
        "--shapes", nargs="+", default=SHAPES, metavar="BATCH,CHUNK,CONTEXT",
        type=lambda text: tuple(int(part) for part in text.split(",")),
    )  # fmt: skip
    parser.add_argument("--variants", nargs="+", metavar="FIELD=VALUE,...")
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/prefill_h200.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
