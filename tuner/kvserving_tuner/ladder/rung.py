"""One step of the ladder as a plain description, and what it may propose."""

from collections.abc import Callable
from dataclasses import dataclass

from kvserving_tuner.decision import (
    Change,
    CostClass,
    Forecast,
    Knob,
    Reason,
    Risk,
    RungName,
    Value,
)
from kvserving_tuner.ladder.situation import Situation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change that a rung would make now.

    `advice` marks one that is right whatever it gains, or whose gain nothing that was measured
    tells: it is recommended and never made.
    """

    knob: Knob
    from_value: Value
    to_value: Value
    cost: CostClass
    reason: Reason
    message: str
    forecast: Forecast | None = None
    advice: bool = False

    @property
    def change(self) -> Change:
        """The change itself."""
        return Change(self.knob, self.from_value, self.to_value, self.cost)


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder.

    `cost` is what it costs where engines can do it; None where that depends on the engine.
    `consider` gives its change, or a clause that says why it is passed over.
    """

    name: RungName
    cost: CostClass | None
    risk: Risk
    precondition: str
    consider: Callable[[Situation], Candidate | str]
