"""StreamingLLM as the simulator has it: the engine's own arithmetic, and what follows from it."""

from dataclasses import dataclass

from kvserving_kernels.eviction import StreamingLLM
from kvserving_tuner.errors import SimulationError


@dataclass(frozen=True)
class Window(StreamingLLM):
    """Sinks and a window of the latest tokens; the rest of a sequence is freed by whole blocks."""

    def __post_init__(self) -> None:
        """Refuse sizes that are none."""
        if self.sink_tokens < 0:
            raise SimulationError("sink_tokens", "at least 0", str(self.sink_tokens))
        if self.window_tokens < 1:
            raise SimulationError("window_tokens", "at least 1", str(self.window_tokens))

    def freed_blocks(self, computed: int, block_size: int) -> int:
        """Blocks that a sequence of so many computed tokens has given back."""
        return self.first_window_block(computed, block_size) - self.sink_blocks(block_size)

    def full_at(self, block_size: int) -> int:
        """Computed tokens from which on a block is freed for each one that is filled."""
        return self.visible_tokens(block_size)
