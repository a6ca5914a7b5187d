"""How many blocks a sequence holds under StreamingLLM (docs/eviction.md), by arithmetic alone."""

from dataclasses import dataclass

from kvserving_tuner.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Window:
    """Sinks and a window of the latest tokens; the rest of a sequence is freed by whole blocks."""

    sink_tokens: int
    window_tokens: int

    def __post_init__(self) -> None:
        """Refuse sizes that are none."""
        if self.sink_tokens < 0:
            raise SimulationError("sink_tokens", "at least 0", str(self.sink_tokens))
        if self.window_tokens < 1:
            raise SimulationError("window_tokens", "at least 1", str(self.window_tokens))

    def sink_blocks(self, block_size: int) -> int:
        """Blocks at the start that are never freed."""
        return -(-self.sink_tokens // block_size)

    def freed_blocks(self, computed: int, block_size: int) -> int:
        """Blocks that a sequence of so many computed tokens has given back."""
        starts = (computed + 1 - self.window_tokens) // block_size
        return max(0, starts - self.sink_blocks(block_size))

    def full_at(self, block_size: int) -> int:
        """Computed tokens from which on a block is freed for each one that is filled."""
        return (self.sink_blocks(block_size) + 1) * block_size + self.window_tokens - 1

    def peak_blocks(self, length: int, step_tokens: int, block_size: int) -> int:
        """Most blocks held on the way to `length` tokens, `step_tokens` of them at once."""
        whole = -(-length // block_size)
        window = -(-(self.window_tokens + step_tokens - 2) // block_size) + 1
        return min(whole, self.sink_blocks(block_size) + window)
