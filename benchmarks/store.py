"""Time of storing a layer's keys and values on a GPU in each KV format, with bfloat16 beside it.

Each measurement is a CUDA graph of several layers' calls, as an engine captures them; each call has
pages of its own, so that none are found in the second-level cache, and all take the same slices of
one projection. Decode steps store one token for each sequence, at any place of a block whose
earlier tokens are there; prompts store whole blocks. `us` is the median over replays, per call.

The peer in the same run is vLLM's `reshape_and_cache_flash` where vLLM can be imported, else a copy
by index. A row has a ratio only if the bytes stored are those of the torch implementation.

    python benchmarks/store.py
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import envelope
import torch
from attention import replay

from kvserving_kernels.formats import LAYOUTS, layout_of
from kvserving_kernels.ops import compiles
from kvserving_kernels.ops.quantize import new_counters
from kvserving_kernels.ops.registry import Implementation, select

KV_HEADS: Final = 8
GROUP: Final = 4
HEAD_SIZE: Final = 128
BLOCK_SIZE: Final = 64
LAYERS: Final = 16
BLOCKS_PER_LAYER: Final = 256


@dataclass(frozen=True)
class Shape:
    """What one measurement stores."""

    tokens: int
    is_decode: bool


SHAPES: Final = (
    *(Shape(tokens, True) for tokens in (1, 16, 64, 256)),
    *(Shape(tokens, False) for tokens in (2048, 8192)),
)


def main() -> None:
    """Measure all shapes and formats and write a row for each."""
    options = _options()
    count = compiles.start()
    name, copy = peer()
    peers = {shape: _peer_us(shape, copy) for shape in SHAPES}
    rows: list[dict[str, Any]] = []
    late = 0
    for dtype in options.formats:
        pool = Pool(dtype)
        prepared = count.count
        for shape in SHAPES:
            rows.append(pool.measure(shape, name, peers[shape]))
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
        late += count.count - prepared
        del pool
        torch.cuda.empty_cache()
    envelope.write(
        options.out, rows, block_size=BLOCK_SIZE, layers=LAYERS, compiled_after_prepare=late
    )


class Pool:
    """Full pages of one format, and the operations on them."""

    def __init__(self, dtype: str) -> None:
        self.page = layout_of(dtype).page(BLOCK_SIZE, HEAD_SIZE)
        device = torch.device("cuda")
        self.operations = select(self.page, device, Implementation.TRITON)
        self.operations.prepare(self.page, KV_HEADS * GROUP, KV_HEADS, torch.bfloat16, device)
        self.counters = new_counters(device)
        shape = (LAYERS * BLOCKS_PER_LAYER, KV_HEADS, BLOCK_SIZE, self.page.bytes_per_token)
        self.pages = torch.empty(shape, dtype=torch.uint8, device=device)
        key, value = inputs(BLOCKS_PER_LAYER * BLOCK_SIZE)
        slots = torch.arange(len(key), device=device)
        self._store(key, value, slots)
        self.pages.view(LAYERS, BLOCKS_PER_LAYER, *shape[1:])[1:] = self.pages[:BLOCKS_PER_LAYER]

    def measure(self, shape: Shape, peer: str, peer_us: float) -> dict[str, Any]:
        """The row of a shape."""
        slots = layers_of_slots(shape)
        key, value = inputs(shape.tokens)
        exact = self._is_exact(key, value, slots[0])
        times = replay(lambda index: self._store(key, value, slots[index]), LAYERS, lambda: None)
        us = statistics.median(times)
        return {
            "format": self.page.layout.dtype,
            "tokens": shape.tokens,
            "decode": shape.is_decode,
            "us": round(us, 2),
            "p99_us": round(sorted(times)[int(len(times) * 0.99)], 2),
            "peer": peer,
            "peer_us": round(peer_us, 2),
            "ratio": round(peer_us / us, 3) if exact else None,
            "same_bytes": exact,
        }

    def _store(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        self.operations.store(self.page, key, value, self.pages, slots, self.counters)

    def _is_exact(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> bool:
        """Whether the blocks of these slots become what torch makes of them on the CPU."""
        blocks, found = (slots // BLOCK_SIZE).unique(return_inverse=True)
        pages = self.pages[blocks].cpu()
        operations = select(self.page, "cpu", Implementation.TORCH)
        small = found * BLOCK_SIZE + slots % BLOCK_SIZE
        operations.store(self.page, key.cpu(), value.cpu(), pages, small.cpu())
        self._store(key, value, slots)
        return bool(torch.equal(self.pages[blocks].cpu(), pages))


def inputs(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as slices of one projection, their channels unlike in offset and spread."""
    chance = torch.Generator("cuda").manual_seed(tokens)
    shape = (tokens, (GROUP + 2) * KV_HEADS, HEAD_SIZE)
    spread = torch.rand(shape[1:], device="cuda", generator=chance) * 1.5 + 0.1
    offset = torch.randn(shape[1:], device="cuda", generator=chance) * 2
    projected = torch.randn(shape, device="cuda", generator=chance) * spread + offset
    _, key, value = projected.bfloat16().split([GROUP * KV_HEADS, KV_HEADS, KV_HEADS], 1)
    return key, value


def layers_of_slots(shape: Shape) -> list[torch.Tensor]:
    """Slots of each layer's call, in blocks of its own."""
    chance = torch.Generator().manual_seed(3)
    order = torch.randperm(LAYERS * BLOCKS_PER_LAYER, generator=chance)
    found = []
    for blocks in order.view(LAYERS, BLOCKS_PER_LAYER):
        if shape.is_decode:
            places = torch.randint(0, BLOCK_SIZE, (shape.tokens,), generator=chance)
            slots = blocks[: shape.tokens] * BLOCK_SIZE + places
        else:
            whole = blocks[: shape.tokens // BLOCK_SIZE, None] * BLOCK_SIZE
            slots = (whole + torch.arange(BLOCK_SIZE)).flatten()
        found.append(slots.cuda())
    return found


Copy = Callable[..., None]
"""Takes keys, values, their caches [blocks, tokens, kv_heads, head_size] and the slots."""


def peer() -> tuple[str, Copy]:
    """Name and function of a store in bfloat16."""
    try:
        from vllm import _custom_ops
    except ImportError:
        return "copy by index, bfloat16", _copy_by_index
    one = torch.ones((), device="cuda")

    def copy(*tensors: torch.Tensor) -> None:
        _custom_ops.reshape_and_cache_flash(*tensors, "auto", one, one)

    return "vLLM's reshape_and_cache_flash, bfloat16", copy


def _copy_by_index(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    keys.flatten(0, 1).index_copy_(0, slots, key)
    values.flatten(0, 1).index_copy_(0, slots, value)


def _peer_us(shape: Shape, copy: Copy) -> float:
    sizes = (LAYERS * BLOCKS_PER_LAYER, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
    keys, values = (torch.empty(sizes, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    slots = layers_of_slots(shape)
    key, value = inputs(shape.tokens)
    times = replay(lambda index: copy(key, value, keys, values, slots[index]), LAYERS, lambda: None)
    return statistics.median(times)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", default=list(LAYOUTS))
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/store_h200.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
