"""What leaves the KV cache while a request runs; imports neither torch nor vLLM."""

from kvserving_kernels.eviction.setting import (
    ANY_ENGINE,
    BACKENDS,
    DEFAULT_SINK_TOKENS,
    MAXIMUM_WINDOW_TOKENS,
    NO_EVICTION,
    Eviction,
    EvictionBounds,
    NoEviction,
    read_eviction,
)
from kvserving_kernels.eviction.streaming_llm import StreamingLLM

__all__ = [
    "ANY_ENGINE",
    "BACKENDS",
    "DEFAULT_SINK_TOKENS",
    "MAXIMUM_WINDOW_TOKENS",
    "NO_EVICTION",
    "Eviction",
    "EvictionBounds",
    "NoEviction",
    "StreamingLLM",
    "read_eviction",
]
