"""What fits: formats and contexts side by side; pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from kvserving_tuner.errors import SizingError
from kvserving_tuner.sizing.gpus import memory_bytes
from kvserving_tuner.sizing.layers import ModelShape
from kvserving_tuner.sizing.memory import (
    Layout,
    bytes_per_token,
    sequence_bytes,
    sequences_that_fit,
)

UTILIZATION: Final = 0.92
"""Share of a GPU's memory that an engine takes, vLLM's own default since 0.20."""
WORKSPACE_BYTES: Final = 2 * 1024**3
"""What activations, graphs and libraries take of it, where nobody has estimated it."""


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
    utilization: float = UTILIZATION
    step_tokens: int = 0
    """Most tokens under way at once, which sliding windows hold besides themselves."""
    workspaces: Mapping[str, int] = field(default_factory=dict)
    """Bytes that engines take besides weights and cache, by format."""

    def __post_init__(self) -> None:
        """Raise SizingError for numbers that no engine has."""
        numbers = {
            "tensor-parallel": self.tensor_parallel,
            "pipeline-parallel": self.pipeline_parallel,
            "block-size": 1 if self.block_size is None else self.block_size,
        }
        for name, value in numbers.items():
            if value < 1:
                raise SizingError(name, "a whole number of at least 1", str(value))
        if self.step_tokens < 0:
            raise SizingError("max-num-batched-tokens", "at least 0", str(self.step_tokens))
        if not 0 < self.utilization <= 1:
            raise SizingError(
                "gpu-memory-utilization", "more than 0 and at most 1", str(self.utilization)
            )

    @property
    def devices(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel * self.pipeline_parallel

    def layout(self, dtype: str) -> Layout:
        """How a cache of a format is kept."""
        return Layout(
            dtype,
            self.block_size,
            self.tensor_parallel,
            self.pipeline_parallel,
            self.step_tokens,
        )


def plan(shape: ModelShape, question: Question) -> tuple[Row, ...]:
    """Rows for every format and context that was asked for."""
    rows = []
    for dtype in question.dtypes:
        layout = question.layout(dtype)
        per_token = bytes_per_token(shape, layout)
        for context in question.contexts:
            fits = {
                gpu: sequences_that_fit(shape, layout, context, cache_bytes(question, gpu, dtype))
                for gpu in question.gpus
            }
            # What it holds once it is computed; steps under way count for what is admitted.
            size = sequence_bytes(shape, replace(layout, step_tokens=0), context)
            rows.append(Row(dtype, per_token, context, size, fits))
    return tuple(rows)


def cache_bytes(question: Question, gpu: str, dtype: str = "") -> float:
    """Bytes that are left for the KV cache on each GPU; SizingError where nothing is."""
    workspace = question.workspaces.get(dtype, WORKSPACE_BYTES)
    usable = memory_bytes(gpu) * question.utilization - workspace
    left = usable - question.weights_bytes / question.devices
    if left <= 0:
        gib = question.weights_bytes / 1024**3
        needed = math.floor(question.weights_bytes / usable) + 1 if usable > 0 else 0
        hint = f" (at least {needed} are needed)" if needed else ""
        raise SizingError(
            "gpu",
            f"room for {gib:.1f} GiB of weights on {question.devices} of them{hint} and a KV cache",
            gpu,
        )
    return left
