"""What the engine keeps of a request, and of tokens that requests share."""

from dataclasses import dataclass, field
from typing import Final

UNBOUNDED: Final = 1 << 60


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive cached blocks of a stretch that are referenced and freed together."""

    stretch: "Stretch"
    low: int
    high: int
    references: int
    """Running sequences that hold all of these blocks."""


@dataclass(slots=True, eq=False)
class Stretch:
    """Blocks of the same content, from `low` on, and which of them are cached."""

    low: int
    runs: list[Run] = field(default_factory=list)
    writer: "Sequence | None" = None
    """The only sequence that may add blocks."""

    @property
    def high(self) -> int:
        """The first block that is not cached."""
        return self.runs[-1].high if self.runs else self.low


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the engine; times in ticks."""

    index: int
    arrival: int
    due: int
    """When the scheduler sees it."""
    prompt: int
    answer: int
    known: int
    """Tokens of its prompt, and of its answer as far as it goes: what a prefill has to compute."""
    chain: tuple[tuple[Stretch, int], ...] = ()
    """Its stretches, each with the block before which it ends."""
    shares: bool = False
    """Whether other requests may have computed some of its blocks."""
    published: int = 0
    """Leading blocks that are in the prefix cache, found there or put there."""
    silent: bool = True
    """Whether its further blocks stay out of the prefix cache."""
    computed: int = 0
    """Tokens in the KV cache while it is in prefill."""
    offset: int = 0
    """While it decodes: the step number less the tokens in the KV cache before that step."""
    decoding: bool = False
    serial: int = 0
    """Place in the order of running sequences."""
    fixed: bool = False
    """Whether its context no longer grows, because blocks are evicted."""
    unreported: int = 0
    """Preemptions that the engine's counter does not show yet."""
    preemptions: int = 0
    first_token: int | None = None
    finished: int | None = None
