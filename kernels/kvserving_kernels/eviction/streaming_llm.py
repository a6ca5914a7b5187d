"""StreamingLLM (arXiv 2309.17453): a sequence's first tokens and a window of its latest ones.

Blocks are freed whole. So that what a token sees does not depend on how its prompt was cut into
steps, visibility too goes by whole blocks: the token at a position sees the sink blocks and every
block that reaches into its window. That is at least `sink_tokens` and `window_tokens`, itself
included, and less than one block more of each.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class StreamingLLM:
    """The policy with its two sizes; `sink_tokens` may be 0, `window_tokens` is at least 1."""

    policy: ClassVar[str] = "StreamingLLM"

    sink_tokens: int
    window_tokens: int

    def __str__(self) -> str:
        return f"{self.policy} with {self.sink_tokens} sinks and a window of {self.window_tokens}"

    def to_json(self) -> dict[str, str | int]:
        """As settings and the runtime API show it."""
        return {
            "policy": self.policy,
            "sink_tokens": self.sink_tokens,
            "window_tokens": self.window_tokens,
        }

    def sink_blocks(self, block_size: int) -> int:
        """Blocks at the start that are never freed."""
        return -(-self.sink_tokens // block_size)

    def first_window_block(self, position: int, block_size: int) -> int:
        """First block behind the sinks that the token at `position` sees."""
        starts = (position + 1 - self.window_tokens) // block_size
        return max(self.sink_blocks(block_size), starts)

    def kept_blocks(self, length: int, block_size: int) -> tuple[range, range]:
        """Sinks and window of a request of `length` stored tokens: what its next token needs."""
        blocks = -(-length // block_size)
        sinks = min(self.sink_blocks(block_size), blocks)
        window = min(self.first_window_block(length, block_size), blocks)
        return range(sinks), range(max(sinks, window), blocks)

    def held_blocks(self, computed: int, new: int, block_size: int) -> int:
        """Blocks held while `new` tokens are computed behind `computed` ones.

        All of a step's tokens are stored before the first of them is looked up, and the first one
        still sees its own window.
        """
        blocks = -(-(computed + new) // block_size)
        freed = self.first_window_block(computed, block_size) - self.sink_blocks(block_size)
        return blocks - freed

    def peak_blocks(self, length: int, step_tokens: int, block_size: int) -> int:
        """Most blocks that a request holds on its way to `length` tokens.

        `step_tokens` is the most tokens that are computed, or under way, at once.
        """
        whole = -(-length // block_size)
        window = -(-(self.window_tokens + step_tokens - 2) // block_size) + 1
        return min(whole, self.sink_blocks(block_size) + window)

    def visible_tokens(self, block_size: int) -> int:
        """Most tokens that one token sees, itself included."""
        return self.sink_blocks(block_size) * block_size + self.window_tokens + block_size - 1

    def hit_blocks(self, block_size: int) -> int:
        """Blocks before the end of a cached prefix that the token behind it needs, at most."""
        return -(-(self.window_tokens - 1) // block_size)


def smallest_window_tokens(block_size: int) -> int:
    """Shortest window that is offered: below one block, it would hold more than it is asked to."""
    return block_size
