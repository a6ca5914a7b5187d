"""Reading an eviction setting, from the engine's flags or from a requested change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from kvserving_kernels.errors import InvalidFieldError, shown
from kvserving_kernels.eviction.streaming_llm import StreamingLLM, smallest_window_tokens

UNAVAILABLE: Final = ("H2O", "SnapKV")
"""Policies of the API that no engine carries out yet."""

BACKENDS: Final = ("CPU_ATTN", "FLASH_ATTN")
"""vLLM's attention backends whose kernels take the batch as it is described to them: these, and
those of our formats, can leave freed blocks out."""

DEFAULT_SINK_TOKENS: Final = 4
"""As many as the method's authors found to suffice."""

MAXIMUM_SINK_TOKENS: Final = 4096
MAXIMUM_WINDOW_TOKENS: Final = 10_000_000


@dataclass(frozen=True)
class NoEviction:
    """Every token stays until its request ends."""

    policy: ClassVar[str] = "None"

    def __str__(self) -> str:
        return "no eviction"

    def to_json(self) -> dict[str, str | int]:
        """As settings and the runtime API show it."""
        return {"policy": self.policy}


NO_EVICTION: Final = NoEviction()

Eviction = NoEviction | StreamingLLM
"""A policy with its parameters."""

POLICIES: Final = (NoEviction.policy, StreamingLLM.policy)
"""Names of the policies that engines carry out."""


@dataclass(frozen=True)
class EvictionBounds:
    """The policies that an engine takes, with the bounds of their parameters, ends included.

    `unavailable` are policies that it would take if the rest of the engine were otherwise, each
    with the reason.
    """

    sink_tokens: tuple[int, int]
    window_tokens: tuple[int, int]
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_engine(
        cls, block_size: int, max_model_len: int, unavailable: Mapping[str, str] | None = None
    ) -> "EvictionBounds":
        """Bounds for a block size and a longest context."""
        return cls(
            sink_tokens=(0, min(MAXIMUM_SINK_TOKENS, max_model_len)),
            window_tokens=(smallest_window_tokens(block_size), max_model_len),
            unavailable=unavailable or {},
        )

    def to_json(self) -> dict[str, Any]:
        """As the API's `envelope` shows it; `unavailable` only where there is something."""
        low_sinks, high_sinks = self.sink_tokens
        low_window, high_window = self.window_tokens
        reasons = {"unavailable": dict(self.unavailable)} if self.unavailable else {}
        return {
            "values": [policy for policy in POLICIES if policy not in self.unavailable],
            **reasons,
            "sink_tokens": {
                "minimum": low_sinks,
                "maximum": high_sinks,
                "default": min(DEFAULT_SINK_TOKENS, high_sinks),
            },
            "window_tokens": {"minimum": low_window, "maximum": high_window},
        }


ANY_ENGINE: Final = EvictionBounds((0, MAXIMUM_SINK_TOKENS), (1, MAXIMUM_WINDOW_TOKENS))
"""What holds whatever an engine's block size and longest context."""


def read_eviction(
    field: str,
    document: object,
    bounds: EvictionBounds,
    error: type[InvalidFieldError],
) -> Eviction:
    """Read `{"policy", ...}`; raises `error` with the field at fault."""
    if not isinstance(document, Mapping):
        raise error(field, 'an object such as {"policy": "None"}', shown(document))
    policy = document.get("policy")
    known = ", ".join(POLICIES)
    if policy in UNAVAILABLE:
        raise error(f"{field}.policy", f"one of {known}", f"{shown(policy)}, not available yet")
    if policy not in POLICIES:
        raise error(f"{field}.policy", f"one of {known}", shown(policy))
    parameters = () if policy == NoEviction.policy else ("sink_tokens", "window_tokens")
    for name, value in document.items():
        if name != "policy" and name not in parameters:
            expected = f"no field but {', '.join(('policy', *parameters))} with policy {policy}"
            raise error(f"{field}.{name}", expected, shown(value))
    if policy == NoEviction.policy:
        return NO_EVICTION
    sinks = document.get("sink_tokens", DEFAULT_SINK_TOKENS)
    window = document.get("window_tokens")
    return StreamingLLM(
        _integer(f"{field}.sink_tokens", sinks, bounds.sink_tokens, error),
        _integer(f"{field}.window_tokens", window, bounds.window_tokens, error),
    )


def _integer(
    field: str, value: object, bounds: tuple[int, int], error: type[InvalidFieldError]
) -> int:
    low, high = bounds
    # JSON's true is no number, though Python's is.
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise error(field, f"an integer from {low} to {high}", shown(value))
