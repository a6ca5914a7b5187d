"""What fits: formats and contexts side by side, and what to change first; pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.gpus import memory_bytes
from kvserving_tuner.sizing.memory import (
    Layout,
    bytes_per_token,
    sequence_bytes,
    sequences_that_fit,
)
from kvserving_tuner.sizing.shape import ModelShape

UTILIZATION: Final = 0.9
"""Share of a GPU's memory that an engine takes, vLLM's own default."""
WORKSPACE_BYTES: Final = 2 * 1024**3
"""What activations, graphs and libraries take of it: 1 to 3 GiB with a budget of 8,192 tokens."""
ENOUGH_SEQUENCES: Final = 4
"""Fewer sequences at once leave most of a GPU's decode speed unused."""


@dataclass(frozen=True)
class Row:
    """One format at one context."""

    dtype: str
    bytes_per_token: int
    context: int
    bytes: int
    sequences: dict[str, int]
    """Sequences that fit at once, by GPU."""

    def to_json(self) -> dict[str, Any]:
        """As `--output json` shows it."""
        row = asdict(self)
        return row if self.sequences else {k: v for k, v in row.items() if k != "sequences"}


@dataclass(frozen=True)
class Question:
    """What somebody wants to know."""

    dtypes: Sequence[str]
    contexts: Sequence[int]
    gpus: Sequence[str] = ()
    block_size: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    weights_bytes: float = 0.0


def plan(shape: ModelShape, question: Question) -> tuple[Row, ...]:
    """Rows for every format and context that was asked for."""
    rows = []
    for dtype in question.dtypes:
        layout = Layout(
            dtype, question.block_size, question.tensor_parallel, question.pipeline_parallel
        )
        per_token = bytes_per_token(shape, layout)
        for context in question.contexts:
            fits = {
                gpu: sequences_that_fit(shape, layout, context, cache_bytes(question, gpu))
                for gpu in question.gpus
            }
            size = sequence_bytes(shape, layout, context)
            rows.append(Row(dtype, per_token, context, size, fits))
    return tuple(rows)


def cache_bytes(question: Question, gpu: str) -> float:
    """Bytes that are left for the KV cache on each GPU; SizingError where nothing is."""
    devices = question.tensor_parallel * question.pipeline_parallel
    left = memory_bytes(gpu) * UTILIZATION - WORKSPACE_BYTES - question.weights_bytes / devices
    if left <= 0:
        gib = question.weights_bytes / 1024**3
        raise SizingError(
            "gpu", f"room for {gib:.1f} GiB of weights on {devices} of them and a KV cache", gpu
        )
    return left


def advice(rows: Sequence[Row]) -> str:
    """What to change first, in a sentence; empty where no GPU was named."""
    gpus = [gpu for row in rows[:1] for gpu in row.sequences]
    if not gpus:
        return ""
    gpu, context = gpus[0], max(row.context for row in rows)
    found = {row.dtype: row.sequences[gpu] for row in rows if row.context == context}
    first, *others = found.items()
    where = f"sequences of {context} tokens fit on {gpu}"
    if first[1] >= ENOUGH_SEQUENCES or not others:
        return f"{first[1]} {where} with {first[0]}: nothing has to change for memory's sake."
    # The mildest that is enough; else the one that gives most.
    enough = [name for name, count in others if count >= ENOUGH_SEQUENCES]
    best = enough[0] if enough else max(others, key=lambda entry: entry[1])[0]
    trial = " in a trial" if best in LAYOUTS else ""
    return f"{first[1]} {where} with {first[0]}. Try {best}{trial} first: {found[best]} fit."
