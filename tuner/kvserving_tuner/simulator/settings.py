"""What an engine is started with, and what of it may change while it serves."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.eviction import Window


@dataclass(frozen=True)
class EngineSettings:
    """Settings under vLLM's own names, with its defaults; checked as it checks them.

    `bytes_per_token` has each KV format that may be switched to, with what one token takes in it
    on all devices together; `cache_bytes` is the memory that all of them share.
    """

    cache_bytes: float
    bytes_per_token: Mapping[str, float]
    dtype: str
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_active_seqs: int | None = None
    max_scheduled_tokens: int | None = None
    max_model_len: int | None = None
    """Longest request, prompt and answer; None: what the cache holds in the largest format."""
    watermark: float = 0.0
    reserve_full_isl: bool = True
    prefix_caching: bool = True
    eviction: Window | None = None
    max_num_queued_reqs: int | None = None
    """Requests in flight from which on new ones are refused."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of requests without a first token from which on new ones are refused."""
    switch_seconds: float = 1.5
    """Pause of a live switch of format or eviction; 1.4 to 1.9 s on one H200 with 8 layers."""

    def __post_init__(self) -> None:
        """Refuse what an engine would refuse, by field."""
        if self.dtype not in self.bytes_per_token:
            raise SimulationError("dtype", f"one of {', '.join(self.bytes_per_token)}", self.dtype)
        for dtype, size in self.bytes_per_token.items():
            if not size > 0:
                raise SimulationError(f"bytes_per_token of {dtype}", "more than 0", str(size))
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise SimulationError(name, "at least 1", str(getattr(self, name)))
        within("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs, None)
        if self.max_active_seqs is not None:
            within("max_active_seqs", self.max_active_seqs, 1, self.max_num_seqs)
        if self.max_scheduled_tokens is not None:
            low, high = self.max_num_seqs, self.max_num_batched_tokens
            within("max_scheduled_tokens", self.max_scheduled_tokens, low, high)
        if not 0 <= self.watermark < 1:
            raise SimulationError("watermark", "at least 0 and below 1", str(self.watermark))
        if self.switch_seconds < 0:
            raise SimulationError("switch_seconds", "at least 0", str(self.switch_seconds))
        self.check_length(self.dtype, self.eviction)

    def blocks(self, dtype: str) -> int:
        """Blocks that the cache has in a format."""
        return int(self.cache_bytes // (self.bytes_per_token[dtype] * self.block_size))

    def capacity_tokens(self, dtype: str) -> int:
        """Tokens that the cache holds in a format."""
        return self.blocks(dtype) * self.block_size

    @property
    def longest(self) -> int:
        """Longest request that is taken, in tokens."""
        return self.max_model_len or min(map(self.capacity_tokens, self.bytes_per_token))

    def admitted_blocks(self, tokens: int, eviction: Window | None) -> int:
        """Blocks by which a request of so many known tokens is admitted."""
        if eviction is None:
            return -(-tokens // self.block_size)
        return eviction.peak_blocks(tokens, self.max_num_batched_tokens, self.block_size)

    def check_length(self, dtype: str, eviction: Window | None) -> None:
        """SimulationError where a request of the longest length could never be served."""
        needed = max(1, self.admitted_blocks(self.longest, eviction))
        if self.blocks(dtype) < needed:
            raise SimulationError(
                "cache_bytes",
                f"room for {max(1, self.longest)} tokens in {dtype}",
                f"room for {self.capacity_tokens(dtype)}",
            )


def within(name: str, value: int, low: int, high: int | None) -> None:
    """SimulationError unless `value` lies within bounds, both included."""
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise SimulationError(name, bounds, str(value))
