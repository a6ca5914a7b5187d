"""Whether a KVServing's KV cache holds what its spec promises, by the tuner's own plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvserving_operator.api.quantity import quantity_bytes
from kvserving_operator.api.v1alpha1 import KVCacheDType
from kvserving_tuner.sizing.files import GIB, ModelFiles, read_model
from kvserving_tuner.sizing.layers import ModelShape
from kvserving_tuner.sizing.memory import bytes_per_token, capacity, sequences_that_fit
from kvserving_tuner.sizing.plan import UTILIZATION, Question, cache_bytes
from kvserving_tuner.sizing.shape import read_shape

MIB = 1024**2


@dataclass(frozen=True)
class Fit:
    """One format in the memory of one engine's KV cache."""

    dtype: str
    bytes_per_token: int
    context: int
    """Tokens of the longest request."""
    sequences: int
    """Requests of that length which fit at once."""
    tokens: int
    """Tokens that fit in all."""

    def to_json(self) -> dict[str, Any]:
        """As `--output json` shows it."""
        return {
            "dtype": self.dtype,
            "bytesPerToken": self.bytes_per_token,
            "contextTokens": self.context,
            "sequences": self.sequences,
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class Model:
    """A model's files as far as sizes need them."""

    shape: ModelShape
    files: ModelFiles

    @classmethod
    def read(cls, config: Path, weights_gib: float | None) -> "Model":
        """From `config.json` or its folder; SizingError names what cannot be read."""
        files = read_model(config, weights_gib)
        return cls(read_shape(files.config), files)


def fits(spec: Mapping[str, Any], model: Model, gpu: str = "") -> tuple[Fit, ...]:
    """What fits in the spec's format, and in those that the tuner may go to.

    `spec` has its defaults. Empty where nothing says how large the cache is. Raises SizingError for
    a model or a GPU of which nothing is known.
    """
    engine = spec["engine"]
    question = _question(engine, model)
    memory = _memory(engine, model, question, gpu)
    context = engine.get("maxModelLen") or model.shape.max_length or 0
    if memory is None or not context:
        return ()
    allowed = (spec.get("tuning") or {}).get("allowedDtypes") or ()
    found = []
    for name in dict.fromkeys((spec["kvCache"]["dtype"], *allowed)):
        layout = question.layout(model.shape.dtype if name == KVCacheDType.AUTO else str(name))
        per_token = bytes_per_token(model.shape, layout)
        count = sequences_that_fit(model.shape, layout, context, memory)
        tokens = capacity(model.shape, layout, context, memory).tokens
        found.append(Fit(str(name), per_token, context, count, tokens))
    return tuple(found)


def shortfall(spec: Mapping[str, Any], found: tuple[Fit, ...]) -> str:
    """What is wrong with the memory in the spec's own format; empty where a request fits."""
    if not found or found[0].sequences >= 1:
        return ""
    fit = found[0]
    need = fit.bytes_per_token * fit.context
    given = spec["engine"].get("kvCacheMemory") or "what the GPU has left"
    roomier = [each.dtype for each in found[1:] if each.sequences >= 1]
    other = f"; {' or '.join(roomier)} would fit" if roomier else ""
    return (
        f"expected room for one request of {fit.context} tokens (spec.engine.maxModelLen), some "
        f"{need / MIB:.0f} MiB in {fit.dtype} over all devices and one block more, got {given}, "
        f"which holds {fit.tokens} tokens{other}"
    )


def _question(engine: Mapping[str, Any], model: Model) -> Question:
    """What the tuner's plan is asked."""
    parallelism = engine.get("parallelism") or {}
    percent = engine.get("gpuMemoryUtilizationPercent")
    return Question(
        (),
        (),
        block_size=engine.get("blockSize"),
        tensor_parallel=parallelism.get("tensor", 1),
        pipeline_parallel=parallelism.get("pipeline", 1),
        weights_bytes=model.files.weights_bytes or 0.0,
        utilization=UTILIZATION if percent is None else percent / 100,
        step_tokens=engine.get("maxNumBatchedTokens") or 0,
    )


def _memory(engine: Mapping[str, Any], model: Model, question: Question, gpu: str) -> float | None:
    """Bytes of the KV cache on one device; None where nothing says it."""
    given = engine.get("kvCacheMemory")
    if given is not None:
        return float(quantity_bytes(str(given)))
    if not gpu:
        return None
    # Without the size of the weights nothing is left to be told.
    model.files.known_weights()
    return cache_bytes(question, gpu)


def row(fit: Fit) -> tuple[str, str, str, str, str]:
    """A fit for a table."""
    size = fit.bytes_per_token * fit.context / GIB
    return (
        fit.dtype, f"{fit.bytes_per_token / 1024:.2f}", f"{size:.3f}", str(fit.tokens),
        str(fit.sequences),
    )  # fmt: skip


COLUMNS = ("FORMAT", "KIB/TOKEN", "GIB/REQUEST", "TOKENS", "REQUESTS AT ONCE")
