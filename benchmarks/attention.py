"""Time of decode attention on a GPU in each KV format, with FlashAttention 3 beside it.

Each measurement is a CUDA graph of several layers' calls, as an engine captures them; each call has
pages of its own, so that none are found in the second-level cache. The first call plans the step
for all. `us` is the median over replays of a graph, per call, `p99_us` the 99th percentile. Lengths
that are ragged lie between 0.05 and 1.95 times the context.

A row has a ratio only if the same kernels and pages gave the right output in the same run: relative
error against attention in 64 bits on the stored values, for the first and the last sequence of the
batch and for a batch of lengths around the edges of blocks.

`--fa3` names the shared library of FlashAttention 3 that vLLM ships, in `vllm/vllm_flash_attn/`.
Without it the peer is a bound: 16-bit keys and values at the rate of a copy.

    python benchmarks/attention.py --fa3 _vllm_fa3_C.abi3.so
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import envelope
import torch

from kvserving_kernels.formats import LAYOUTS, PageLayout, layout_of
from kvserving_kernels.ops import compiles
from kvserving_kernels.ops.interface import Operations
from kvserving_kernels.ops.pages import Batch, records
from kvserving_kernels.ops.records import keys_and_values
from kvserving_kernels.ops.registry import Implementation, select
from kvserving_kernels.ops.rotation import rotate, rotate_back

BLOCK_SIZE: Final = 128
POOL_BYTES: Final = 10 << 30
LAYERS: Final = 16
ERROR_LIMIT: Final = 5e-3
"""Twice what 16-bit queries, weights and outputs cost; a wrong mask or scale costs far more."""

EDGES: Final = (0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 1000, 4096)
UNIFORM: Final = ((1, 2048), (1, 8192), (1, 32768), (1, 131072), (4, 32768), (16, 8192),
                  (16, 32768), (64, 8192), (128, 4096))  # fmt: skip
RAGGED: Final = ((16, 32768), (64, 8192), (128, 4096))
MAIN_HEADS: Final = (8, 4, 128)
OTHER_HEADS: Final = ((8, 1, 128), (8, 3, 128), (8, 8, 128), (8, 4, 64), (4, 4, 256))
"""KV heads, query heads for each, channels; at 16 sequences of 8192 tokens."""

OTHER_FORMATS: Final = ("int8", "int4")
"""Formats that are measured with other heads too: each takes as long to compile as to measure."""


@dataclass(frozen=True)
class Shape:
    """What one measurement is of."""

    batch: int
    context: int
    ragged: bool
    kv_heads: int = 8
    group: int = 4
    head_size: int = 128

    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        if not self.ragged:
            return [self.context] * self.batch
        spread = torch.rand(self.batch, generator=torch.Generator().manual_seed(5)) * 1.9 + 0.05
        return [int(length) for length in (spread * self.context).long()]


def main() -> None:
    """Measure all shapes and formats and write a row for each."""
    options = _options()
    count = compiles.start()
    if options.fa3:
        torch.ops.load_library(str(options.fa3))
    shapes = [Shape(*shape, False) for shape in UNIFORM] + [Shape(*shape, True) for shape in RAGGED]
    shapes += [Shape(16, 8192, False, *heads) for heads in OTHER_HEADS]
    copy = copy_rate()
    peers = {shape: peer(shape, copy, options.fa3 is not None) for shape in shapes}
    rows: list[dict[str, Any]] = []
    late = 0
    for dtype in options.formats:
        for heads in dict.fromkeys((s.kv_heads, s.group, s.head_size) for s in shapes):
            if heads != MAIN_HEADS and dtype not in OTHER_FORMATS:
                continue
            pool = Pool(dtype, *heads)
            pool.prepare()
            prepared = count.count
            for shape in shapes:
                if (shape.kv_heads, shape.group, shape.head_size) == heads:
                    rows.append(pool.measure(shape, copy, *peers[shape]))
                    print(json.dumps(rows[-1]), flush=True)  # noqa: T201
            late += count.count - prepared
            del pool
            torch.cuda.empty_cache()
    envelope.write(
        options.out, rows, block_size=BLOCK_SIZE, layers=LAYERS, compiled_after_prepare=late
    )


class Pool:
    """Pages of one format with content, and the operations on them."""

    def __init__(self, dtype: str, kv_heads: int, group: int, head_size: int) -> None:
        self.page = layout_of(dtype).page(BLOCK_SIZE, head_size)
        self.heads = kv_heads * group
        self.kv_heads = kv_heads
        self.edges = float("inf")
        device = torch.device("cuda")
        self.operations = select(self.page, device, Implementation.TRITON)
        blocks = POOL_BYTES // self.page.block_bytes(kv_heads)
        self.pages = filled(self.operations, self.page, kv_heads, blocks)

    def prepare(self) -> None:
        """Compile what an engine compiles at start, and compare on lengths around edges."""
        device = self.pages.device
        self.operations.prepare(self.page, self.heads, self.kv_heads, torch.bfloat16, device)
        self.edges = self._error(self._batch(list(EDGES), 1)[0], list(EDGES))

    def measure(self, shape: Shape, copy: float, peer: str, peer_us: float) -> dict[str, Any]:
        """The row of a shape; `copy` in GB/s."""
        lengths = shape.lengths()
        batches = self._batch(lengths, LAYERS)
        query = self._query(len(lengths))
        out = torch.empty_like(query)
        scale = shape.head_size**-0.5

        def call(index: int) -> None:
            self.operations.attend(self.page, query, self.pages, batches[index], scale, out)

        times = replay(call, len(batches), lambda: batches[0].plans.clear())
        us = statistics.median(times)
        ends = [0, len(lengths) - 1]
        error = max(self.edges, self._error(batches[-1], lengths, ends))
        stored = sum(lengths) * self.kv_heads * self.page.bytes_per_token / us / 1e3
        return {
            "format": self.page.layout.dtype,
            "batch": shape.batch,
            "context": shape.context,
            "ragged": shape.ragged,
            "group": shape.group,
            "head_size": shape.head_size,
            "kv_heads": shape.kv_heads,
            "us": round(us, 2),
            "p99_us": round(sorted(times)[int(len(times) * 0.99)], 2),
            "stored_gbps": round(stored),
            "copy_gbps": round(copy),
            "peer": peer,
            "peer_us": round(peer_us, 2),
            "ratio": round(peer_us / us, 3) if error <= ERROR_LIMIT else None,
            "rel_error": float(f"{error:.2e}"),
        }

    def _query(self, count: int) -> torch.Tensor:
        chance = torch.Generator("cuda").manual_seed(2)
        shape = (count, self.heads, self.page.head_size)
        return torch.randn(shape, device="cuda", generator=chance).bfloat16()

    def _batch(self, lengths: Sequence[int], layers: int) -> list[Batch]:
        """Batches with the same lengths and plans, and blocks of their own."""
        tables = block_tables(lengths, BLOCK_SIZE, len(self.pages), layers)
        start = torch.arange(len(lengths) + 1, dtype=torch.int32, device="cuda")
        found = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        plans: dict[Any, Any] = {}
        return [Batch(start, found, table, 1, plans) for table in tables]

    def _error(
        self, batch: Batch, lengths: Sequence[int], sequences: Sequence[int] | None = None
    ) -> float:
        """Largest relative error of a sequence's output; infinite if it changes in a second run."""
        query = self._query(len(lengths))
        scale = self.page.head_size**-0.5
        batch.plans.clear()
        got = self.operations.attend(self.page, query, self.pages, batch, scale)
        if not torch.equal(got, self.operations.attend(self.page, query, self.pages, batch, scale)):
            return float("inf")
        found = records(self.pages, self.page)
        errors = [0.0]
        for index in range(len(lengths)) if sequences is None else sequences:
            blocks = batch.block_table[index, : -(-lengths[index] // BLOCK_SIZE)].long()
            exact = reference(self.page, query[index], found[blocks], lengths[index], scale)
            error = (got[index].double() - exact).norm()
            errors.append(float(error / exact.norm()) if lengths[index] else float(error))
        return max(errors)


def filled(
    operations: Operations, page: PageLayout, kv_heads: int, blocks: int, few: int = 64
) -> torch.Tensor:
    """Pages of so many blocks, rounded down to times `few`, of which `few` have other content."""
    chance = torch.Generator("cuda").manual_seed(1)
    size = page.block_size
    shape = (few * size, kv_heads, page.head_size)
    spread = torch.rand(shape[1:], device="cuda", generator=chance) * 1.5 + 0.1
    offset = torch.randn(shape[1:], device="cuda", generator=chance) * 2
    key = torch.randn(shape, device="cuda", generator=chance) * spread + offset
    value = torch.randn(shape, device="cuda", generator=chance) * spread
    pages = torch.empty(
        (blocks // few, few, kv_heads, size, page.bytes_per_token), dtype=torch.uint8, device="cuda"
    )
    slots = torch.arange(shape[0], device="cuda")
    operations.store(page, key.bfloat16(), value.bfloat16(), pages[0], slots)
    pages[1:] = pages[0]
    return pages.flatten(0, 1)


def reference(
    page: PageLayout, query: torch.Tensor, found: torch.Tensor, length: int, scale: float
) -> torch.Tensor:
    """Attention [heads, channels] of one query to the first tokens of records, in 64 bits."""
    if not length:
        return torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    keys, values = keys_and_values(page, found)
    keys, values = (
        part.transpose(0, 1).flatten(1, 2)[:, :length].double() for part in (keys, values)
    )
    asked = (rotate(query) if page.layout.k_rotated else query.float()).double()
    asked = asked.unflatten(0, (keys.shape[0], -1))
    weights = (asked @ keys.mT * scale).softmax(-1)
    output = (weights @ values).flatten(0, 1)
    return rotate_back(output.float()).double() if page.layout.v_rotated else output


def block_tables(lengths: Sequence[int], size: int, blocks: int, layers: int) -> list[torch.Tensor]:
    """Tables [sequences, blocks] of disjoint random blocks, as many as there are blocks for."""
    counts = [-(-length // size) for length in lengths]
    layers = max(1, min(layers, blocks // sum(counts)))
    order = torch.randperm(blocks, dtype=torch.int32)
    tables = torch.zeros((layers, len(lengths), max(counts)), dtype=torch.int32)
    place = 0
    for table in tables:
        for row, count in zip(table, counts, strict=True):
            row[:count] = order[place : place + count]
            place += count
    return list(tables.cuda())


def replay(
    call: Callable[[int], None], calls: int, before: Callable[[], None], times: int = 41
) -> list[float]:
    """Microseconds per call of each replay of a graph of `calls` calls."""
    stream = torch.cuda.Stream()
    found = []
    with torch.cuda.stream(stream):
        before()
        call(0)
        before()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(calls):
                call(index)
        for turn in range(times + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            if turn >= 2:
                found.append(start.elapsed_time(end) * 1e3 / calls)
    return found


def copy_rate() -> float:
    """GB/s of a copy on the device, bytes read and written."""
    source = torch.empty(1 << 30, device="cuda")
    target = torch.empty_like(source)
    torch.cuda.synchronize()
    rates = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        rates.append(8 * (1 << 30) / start.elapsed_time(end) / 1e6)
    return float(statistics.median(rates[2:]))


def peer(shape: Shape, copy: float, has_fa3: bool) -> tuple[str, float]:
    """Name and microseconds of 16-bit attention of the same shape."""
    if not has_fa3:
        bytes_ = sum(shape.lengths()) * shape.kv_heads * shape.head_size * 4
        return "bound: 16-bit bytes at the copy's rate", bytes_ / copy / 1e3
    return "FlashAttention 3, bfloat16", _fa3(shape)


def _fa3(shape: Shape) -> float:
    library = torch.ops._vllm_fa3_C
    lengths, size = shape.lengths(), shape.head_size
    heads, kv_heads = shape.kv_heads * shape.group, shape.kv_heads
    blocks = 2 * POOL_BYTES // (BLOCK_SIZE * kv_heads * size * 4)
    key = torch.randn((blocks, BLOCK_SIZE, kv_heads, size), dtype=torch.bfloat16, device="cuda")
    value = key.clone()
    tables = block_tables(lengths, BLOCK_SIZE, blocks, LAYERS)
    start = torch.arange(len(lengths) + 1, dtype=torch.int32, device="cuda")
    found = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    query = torch.randn((len(lengths), heads, size), dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(query)
    longest = max(lengths)
    plan = library.get_scheduler_metadata(
        len(lengths), 1, longest, heads, kv_heads, size, size, torch.bfloat16, found, start, None,
        None, None, None, BLOCK_SIZE, 0, True, -1, -1, False, 0, None, 0,
    )  # fmt: skip

    def call(index: int) -> None:
        library.fwd(
            query, key, value, None, None, None, out, start, None, None, None, found, 1, longest,
            tables[index], None, None, None, None, None, None, None, None, size**-0.5, True, -1,
            -1, 0.0, True, plan, 0, None, 0, None, 1, 0, None,
        )  # fmt: skip

    return statistics.median(replay(call, len(tables), lambda: None))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", default=list(LAYOUTS))
    parser.add_argument("--fa3", type=Path, help="shared library of FlashAttention 3")
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/attention_h200.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
