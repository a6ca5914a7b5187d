"""How fast a probe may go: short slices, and a bounded share of the engine while users wait.

A slice holds the engine up for as long as it computes, so it is cut to a time, not to a number of
tokens. Between slices users' steps go on; the pause after a slice is a multiple of what it took.
"""

from dataclasses import dataclass
from typing import Final

SLICE_SECONDS: Final = 0.1
"""How long a slice should hold the engine up: the longest gap that a probe adds between tokens."""

USERS_SHARE: Final = 0.8
"""Share of the time that is left to users' requests while there are any."""

MOST_GROWTH: Final = 4.0
"""A slice has at most so many times the tokens of the one before: short ones are timed badly."""


@dataclass
class Pace:
    """Sizes the slices of one kind of work by how long the last one took."""

    tokens: int = 1
    slice_seconds: float = SLICE_SECONDS

    def timed(self, tokens: int, seconds: float) -> None:
        """Learn from a slice of `tokens` that took so long."""
        growth = self.slice_seconds / seconds if seconds > 0 else MOST_GROWTH
        self.tokens = max(1, int(tokens * min(MOST_GROWTH, growth)))


def pause_seconds(took_seconds: float, users: bool, users_share: float = USERS_SHARE) -> float:
    """How long to wait after a slice so that users have their share; none while there are none."""
    if not users:
        return 0.0
    return took_seconds * users_share / (1 - users_share)
