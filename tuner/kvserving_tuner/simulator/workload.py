"""Requests: when they arrive, how long they and their answers are, and what they share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvserving_tuner.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Shared:
    """A stretch of tokens that requests have in common, up to and without position `end`.

    Requests that name the same `id` agree in all tokens from their first to `end`: they name the
    same stretches before it.
    """

    id: str | int
    end: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request; times in seconds from the start of its workload.

    What lies behind the last stretch of `prefix` is its own, unless it has a `session`: then its
    answer, too, is found by later requests of that session, whose prompts continue it.
    """

    arrival: float
    prompt: int
    answer: int
    prefix: tuple[Shared, ...] = ()
    session: str | int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no request."""
        if not self.arrival >= 0:
            raise SimulationError("arrival", "at least 0 s", str(self.arrival))
        if self.prompt < 1 or self.answer < 1:
            got = f"{self.prompt} and {self.answer}"
            raise SimulationError("prompt and answer", "at least 1 token each", got)
        ends = [0, *(shared.end for shared in self.prefix), self.prompt]
        if any(after < before for before, after in pairwise(ends)):
            raise SimulationError("prefix", "ends in order, within the prompt", str(ends[1:-1]))


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and where they come from."""

    name: str
    requests: tuple[Request, ...]

    @classmethod
    def of(cls, name: str, requests: Iterable[Request]) -> "Workload":
        """Sort requests by arrival; SimulationError where there are none."""
        found = tuple(sorted(requests, key=lambda request: request.arrival))
        if not found:
            raise SimulationError("workload", "at least one request", f"none in {name}")
        return cls(name, found)

    @property
    def seconds(self) -> float:
        """From the start to the last arrival."""
        return self.requests[-1].arrival

    def cut(self, seconds: float) -> "Workload":
        """The requests that arrive in the first `seconds`."""
        return Workload.of(self.name, (r for r in self.requests if r.arrival < seconds))

    def faster(self, factor: float) -> "Workload":
        """The same requests at `factor` times the rate."""
        if not factor > 0:
            raise SimulationError("speed", "more than 0", str(factor))
        moved = (replace(r, arrival=r.arrival / factor) for r in self.requests)
        return Workload(self.name, tuple(moved))


def mean_lengths(requests: Sequence[Request]) -> tuple[float, float]:
    """Mean tokens of prompts and of answers."""
    count = len(requests)
    return sum(r.prompt for r in requests) / count, sum(r.answer for r in requests) / count
