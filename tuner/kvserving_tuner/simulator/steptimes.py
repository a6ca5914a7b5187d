"""How long an engine step takes: an affine function of what the step does, with fitted constants.

    seconds = base + prefill_token * tokens + prefill_pair * pairs
            + sequence * decoding + cache_byte * bytes read

`tokens` are the prompt tokens computed, `pairs` those tokens with each token that they look at,
`decoding` the sequences that get one token, and `bytes read` the KV cache of those.

Inside the simulator time is a whole number of picoseconds: sums of many steps are then the same
whether they are added one by one or all at once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from kvserving_tuner.errors import SimulationError

TICKS_PER_SECOND: Final = 10**12


def ticks(seconds: float) -> int:
    """A time in ticks."""
    return round(seconds * TICKS_PER_SECOND)


def seconds(at: int) -> float:
    """A time in seconds."""
    return at / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class StepTicks:
    """Step times of one KV cache format, in ticks."""

    base: int
    token: int
    pair: int
    sequence: int
    context: int
    """For each token of a decoding sequence's context."""


@dataclass(frozen=True)
class StepTimes:
    """Constants of one engine on one machine, in seconds."""

    base_seconds: float
    prefill_token_seconds: float
    sequence_seconds: float
    cache_byte_seconds: float
    prefill_pair_seconds: float = 0.0
    intake_seconds: float = 0.0
    """From a request's arrival until the scheduler sees it: parsing and tokenising."""

    def __post_init__(self) -> None:
        """Refuse what would make time stand still or go back."""
        for name, value in asdict(self).items():
            if not (value > 0 if name == "base_seconds" else value >= 0) or value == float("inf"):
                low = "more than 0" if name == "base_seconds" else "at least 0"
                raise SimulationError(name, f"a finite number of seconds, {low}", str(value))

    def in_ticks(self, bytes_per_token: float) -> StepTicks:
        """For a cache that takes so many bytes a token."""
        return StepTicks(
            base=max(1, ticks(self.base_seconds)),
            token=ticks(self.prefill_token_seconds),
            pair=ticks(self.prefill_pair_seconds),
            sequence=ticks(self.sequence_seconds),
            context=ticks(self.cache_byte_seconds * bytes_per_token),
        )

    def to_json(self) -> dict[str, float]:
        """As files have it."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Read a document; SimulationError names the field at fault."""
        if not isinstance(document, Mapping):
            raise SimulationError("step times", "a JSON object", type(document).__name__)
        known = {field.name for field in fields(cls)}
        for name, value in document.items():
            if name not in known:
                raise SimulationError(str(name), f"one of {', '.join(sorted(known))}", "it")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SimulationError(str(name), "a number of seconds", repr(value))
        missing = {"base_seconds", "prefill_token_seconds", "sequence_seconds"} - document.keys()
        missing |= {"cache_byte_seconds"} - document.keys()
        if missing:
            raise SimulationError(sorted(missing)[0], "a number of seconds", "nothing")
        return cls(**{str(name): float(value) for name, value in document.items()})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; SimulationError says what is wrong with it."""
        return cls.from_json(read_json(path, "step times"))

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One kind of step and how long it took on a real engine."""

    seconds: float
    prefill_tokens: float = 0.0
    prefill_pairs: float = 0.0
    decoding: float = 0.0
    cache_bytes: float = 0.0


def fitted(steps: Sequence[MeasuredStep], intake_seconds: float = 0.0) -> StepTimes:
    """Constants that explain measured steps best by relative error, none of them negative.

    A constant that the measurements do not call for, or would make negative, is 0.
    SimulationError where they do not even give a base.
    """
    features = np.array(
        [[1.0, s.prefill_tokens, s.prefill_pairs, s.decoding, s.cache_bytes] for s in steps]
    )
    measured = np.array([step.seconds for step in steps])
    if not len(steps) or not (measured > 0).all():
        raise SimulationError("steps", "measured steps, each longer than 0 s", str(len(steps)))
    weighted = features / measured[:, None]
    # Columns of like size, so that the solver's cut-off treats them alike.
    sizes = np.abs(weighted).max(axis=0)
    kept = [column for column in range(features.shape[1]) if sizes[column] > 0]
    found = np.zeros(features.shape[1])
    while kept:
        scaled = weighted[:, kept] / sizes[kept]
        solution = np.linalg.lstsq(scaled, np.ones(len(steps)), rcond=None)[0]
        if (solution >= 0).all():
            found[kept] = solution / sizes[kept]
            break
        del kept[int(np.argmin(solution))]
    base, token, pair, sequence, cache_byte = (float(value) for value in found)
    return StepTimes(base, token, sequence, cache_byte, pair, intake_seconds)


def read_json(path: Path, field: str) -> Any:
    """A JSON file's document; SimulationError says what is wrong with the file."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise SimulationError(field, "a file that can be read", f"{path}: {error.strerror}") from (
            error
        )
    except ValueError as error:
        raise SimulationError(field, "a JSON document", f"{path}: {error}") from error
