"""The protocol every actuator follows: a change goes in, what came of it per engine comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kvserving_tuner.decision import Change
from kvserving_tuner.errors import RuntimeAPIError
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.sources.base import EngineTarget


class Outcome(StrEnum):
    """What became of a change on all engines together."""

    APPLIED = "Applied"
    """Every engine reports the new value."""
    PARTIAL = "Partial"
    """Some engines report it; the next turn sees that they differ and brings them together."""
    FAILED = "Failed"
    """No engine reports it; the former value serves on."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What each engine reports after a change, and why some do not."""

    states: Mapping[str, RuntimeState] = field(default_factory=dict)
    failures: Mapping[str, RuntimeAPIError] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """What became of the change on all engines together."""
        if not self.failures and self.states:
            return Outcome.APPLIED
        return Outcome.PARTIAL if self.states else Outcome.FAILED


class Actuator(Protocol):
    """Carries changes out."""

    async def apply(
        self, targets: Sequence[EngineTarget], change: Change, change_id: str
    ) -> Applied:
        """Apply `change` to all `targets`; repeating it with the same `change_id` is safe.

        An engine that cannot be changed is named in the result; this never raises for it.
        """
        ...
