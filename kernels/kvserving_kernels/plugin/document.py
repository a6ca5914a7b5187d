"""The runtime document: what `GET /kvserving/v1/runtime` shows, as plain values."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from kvserving_kernels.eviction import NO_EVICTION, Eviction
from kvserving_kernels.plugin.changes import Envelope

API_VERSION: Final = "v1"


@dataclass(frozen=True)
class Effective:
    """Settings in force now, read from the running engine."""

    kv_cache_dtype: str
    max_active_seqs: int
    max_scheduled_tokens: int
    eviction: Eviction = NO_EVICTION

    def to_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "kv_cache_dtype": self.kv_cache_dtype,
            "max_active_seqs": self.max_active_seqs,
            "max_scheduled_tokens": self.max_scheduled_tokens,
            "eviction": self.eviction.to_json(),
        }


@dataclass(frozen=True)
class Capacity:
    """What the KV cache holds, as the engine allocated it.

    `bytes_per_token` and `kv_cache_bytes` are those of one worker: with tensor parallelism each
    worker holds its own heads of every token. `max_concurrency` is the number of requests of
    `max_model_len` tokens that fit, and `kv_cache_tokens` the tokens that these have: with
    eviction more than the cache holds at once.
    """

    kv_cache_tokens: int
    blocks: int
    block_size: int
    bytes_per_token: int
    kv_cache_bytes: int
    max_concurrency: float


@dataclass(frozen=True)
class Startup:
    """Settings fixed when the engine started."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    dtype: str
    weights: str | None = None
    """Hash that tells these weights from others; None where it is not known."""


@dataclass(frozen=True)
class Versions:
    """Software that answers."""

    vllm: str
    plugin: str


@dataclass(frozen=True)
class Counters:
    """What the engine core has counted since it started."""

    evicted_blocks: int = 0
    nonfinite_values: int = 0
    """Values that were NaN or infinite when they were stored in one of our formats."""
    saturated_values: int = 0
    """Finite values that were larger than a scale can express, and stored as the largest."""
    switches: int = 0
    """Live changes of the KV cache's format or eviction that were carried out."""
    switch_seconds: float = 0.0
    """Time that these took."""
    jit_compiles: int = 0
    """Kernels that were compiled since the engine could be asked, while requests may wait."""


@dataclass(frozen=True)
class EngineState:
    """Everything the engine tells about itself."""

    effective: Effective
    envelope: Envelope
    capacity: Capacity
    versions: Versions
    startup: Startup
    counters: Counters = Counters()


@dataclass(frozen=True)
class LastChange:
    """The newest change that passed validation. `at` is UTC in RFC 3339."""

    change_id: str
    result: str
    at: str
    error: str | None = None

    def to_json(self) -> dict[str, str]:
        """As the API shows it: `error` only where there is one."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def render(state: EngineState, last_change: LastChange | None) -> dict[str, Any]:
    """The runtime document."""
    return {
        "api_version": API_VERSION,
        "effective": state.effective.to_json(),
        "envelope": {name: values.to_json() for name, values in state.envelope.items()},
        "capacity": asdict(state.capacity),
        "versions": asdict(state.versions),
        "startup": asdict(state.startup),
        "counters": asdict(state.counters),
        "last_change": last_change.to_json() if last_change else None,
    }
