"""When the parts of one turn began and ended, for those who follow a decision."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class StageName(StrEnum):
    """Parts of a turn."""

    READ = "read"
    """Engines are asked what is in force."""
    OBSERVE = "observe"
    """Metrics are read."""
    DECIDE = "decide"
    """Diagnosis and proposal, one computation."""
    ACT = "act"
    """Engines are told."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One part, in seconds since the epoch."""

    name: StageName
    start: float
    end: float


class Stopwatch:
    """Takes the time of the parts of one turn."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stages: list[Stage] = []

    @contextmanager
    def times(self, name: StageName) -> Iterator[None]:
        """Time what is done inside."""
        start = self._clock()
        try:
            yield
        finally:
            self._stages.append(Stage(name, start, self._clock()))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Parts so far, in the order in which they ended."""
        return tuple(self._stages)
