"""Requests and blocks as the stepwise scheduler keeps them: one object each."""

from dataclasses import dataclass, field

from kvserving_tuner.simulator.workload import Request

Name = tuple[object, int]
"""A block's content: a stretch, and the block's place in the sequence."""


@dataclass(eq=False)
class Block:
    """One block of the cache."""

    references: int = 0
    name: Name | None = None


@dataclass(eq=False)
class Job:
    """One request as the engine sees it."""

    index: int
    request: Request
    due: int
    generated: int = 0
    computed: int = 0
    chunk: int = 0
    prefill: int = 0
    blocks: list[Block | None] = field(default_factory=list)
    named: int = 0
    silent: bool = True
    unreported: int = 0
    preemptions: int = 0
    first_token: int | None = None
    finished: int | None = None

    @property
    def known(self) -> int:
        """Tokens whose values are known."""
        return self.request.prompt + self.generated

    def name(self, at: int, size: int) -> Name:
        """Content of its block number `at`."""
        for shared in self.request.prefix:
            if (at + 1) * size <= shared.end:
                return (shared.id, at)
        session = self.request.session
        return ((self.index,) if session is None else session, at)
