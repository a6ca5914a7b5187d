"""What to change first where a cache holds too little, in the order of the ladder; pure."""

from collections.abc import Sequence
from typing import Final

from kvserving_kernels.formats import LAYOUTS
from kvserving_tuner.ladder.formats import EIGHT_BITS, FOUR_BITS, MIXED
from kvserving_tuner.sizing.layers import LayerKind, ModelShape
from kvserving_tuner.sizing.plan import Question, Row

ENOUGH_SEQUENCES: Final = 4
"""Fewer sequences at once leave most of a GPU's decode speed unused."""
MILDEST_FIRST: Final = (*EIGHT_BITS, *MIXED, *FOUR_BITS)
"""Fewer than 4 bits are for who asks for them, and are advised to nobody."""


def advice(rows: Sequence[Row], question: Question) -> str:
    """What to change first, in a sentence or two; empty where no GPU was named.

    The longest context decides. The format that comes first is the one to begin with: where it
    holds too few sequences, the mildest that holds enough comes next, and more GPUs after all.
    """
    gpus = [gpu for row in rows[:1] for gpu in row.sequences]
    if not gpus:
        return ""
    gpu, context = gpus[0], max(row.context for row in rows)
    found = {row.dtype: row.sequences[gpu] for row in rows if row.context == context}
    first, count = next(iter(found.items()))
    others = [(name, found[name]) for name in MILDEST_FIRST if name in found and name != first]
    fit = "sequence fits" if count == 1 else "sequences fit"
    said = f"{count} {fit} on {_machines(question, gpu)} with {first}, at {context} tokens each."
    if count >= ENOUGH_SEQUENCES:
        return f"{said[:-1]}: nothing has to change for memory's sake."
    best = _mildest(others)
    more = f"serve on more GPUs (--tensor-parallel {2 * question.tensor_parallel})"
    if best is None or best[1] <= count:
        return f"{said} Begin with a shorter --max-model-len, or {more}."
    trial = " in a trial" if best[0] in LAYOUTS else ""
    said = f"{said} Try {best[0]}{trial} first: it holds {best[1]}."
    if best[1] < ENOUGH_SEQUENCES:
        return f"{said} For {ENOUGH_SEQUENCES} or more, {more} or allow less context."
    return said


def notes(shape: ModelShape, question: Question) -> tuple[str, ...]:
    """What a reader of the figures has to know about this model."""
    found = []
    if shape.unsized_layers:
        found.append(
            f"The state of {shape.unsized_layers} layers without attention is not part of this: "
            "the configuration does not say its size."
        )
    parallel = question.tensor_parallel
    if parallel > 1 and any(group.kind is LayerKind.LATENT for group in shape.groups):
        found.append(
            f"Each of {parallel} GPUs keeps a copy of the latents (MLA): data parallelism, "
            "an engine for each GPU, holds more."
        )
    heads = [g.kv_heads for g in shape.groups if g.kind in (LayerKind.FULL, LayerKind.SLIDING)]
    if heads and min(heads) < parallel:
        found.append(
            f"{min(heads)} KV heads on {parallel} GPUs: some keep copies, "
            "and more GPUs hold no more tokens."
        )
    return tuple(found)


def _mildest(others: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    """The first that is enough; else the one that gives most."""
    enough = [entry for entry in others if entry[1] >= ENOUGH_SEQUENCES]
    return enough[0] if enough else max(others, key=lambda entry: entry[1], default=None)


def _machines(question: Question, gpu: str) -> str:
    return gpu if question.devices == 1 else f"{question.devices} x {gpu}"
