"""One engine against itself: blocks of time with the change and without it, in turns.

A single engine has no other one beside it to be compared with. It runs with the change for a block
of time and without it for another; the two make a pair. Every other pair is the other way round
(ABBA), so that a load that grows or falls steadily favors neither, and two blocks in a row need no
switch between them. Source of the design: switchback experiments, Bojinov, Simchi-Levi, Zhao,
"Design and Analysis of Switchback Experiments", Management Science 69 (2023).
"""

from collections.abc import Mapping

from kvserving_tuner.judge.shares import LEAST_RANGE
from kvserving_tuner.observation import Observation, Window
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.arm import Arm, without
from kvserving_tuner.trials.blocks import compared
from kvserving_tuner.trials.plan import Frozen

SETTLING_SECONDS = 15.0
"""Time after a switch that is in no block: requests that were in flight are recomputed then."""


class Alternation(Frozen):
    """Which arm the engine is, and what the pair's first block was."""

    pair: int = 0
    """Pairs of blocks that are done."""
    first: Arm | None = None
    """The pair's first block, once it is over."""
    probed: tuple[float, float] = (0.0, 0.0)
    """Requests that ended, and those that failed, with the change while the engine was probed."""

    @property
    def with_change(self) -> bool:
        """Whether the engine is to have the change now."""
        begins = self.pair % 2 == 0
        return begins if self.first is None else not begins

    def while_probed(self, arm: Arm) -> "Alternation":
        """After a block with the change in which the engine was probed: its failures count."""
        if arm.outcomes is None:
            return self
        ended, failed = self.probed
        probed = ended + arm.outcomes.of, failed + arm.outcomes.count
        return self.model_copy(update={"probed": probed})

    def measured(
        self, arm: Arm, slo: Slo | None = None, most_failed: float = LEAST_RANGE
    ) -> tuple["Alternation", dict[str, float]]:
        """After a block of this arm, and what the pair says of each guard once it is complete."""
        if self.with_change:
            arm = self._with_failures(arm)
        if self.first is None:
            return Alternation(pair=self.pair, first=arm), {}
        candidate, stable = (arm, self.first) if self.with_change else (self.first, arm)
        # Where nobody asked anything in one of them, the load changed and not the engine.
        numbers = {}
        if not candidate.idle and not stable.idle:
            numbers = compared(
                candidate,
                stable,
                slo,
                turns=True,
                most_failed=most_failed,
                # What waits when a turn begins is left over from another one.
                rested=candidate.begins_rested,
            )
        return Alternation(pair=self.pair + 1), numbers

    def _with_failures(self, arm: Arm) -> Arm:
        if arm.outcomes is None:
            return arm
        ended, failed = self.probed
        update = {"ended": arm.outcomes.of + ended, "failed": arm.outcomes.count + failed}
        return arm.model_copy(update=update)


def arm_of(
    observation: Observation,
    since: float,
    slo: Slo | None = None,
    own_failures: Mapping[str, float] | None = None,
) -> tuple[Arm, float] | None:
    """What the only engine did in a block that begins at `since` or later, and when that ended.

    None before there is a whole one, and where there is not exactly one engine.
    """
    if len(observation.engines) != 1:
        return None
    (engine,) = observation.engines
    window = engine.full
    if not isinstance(window, Window) or window.start < since:
        return None
    window = without(window, (own_failures or {}).get(engine.target, 0.0))
    return Arm.of([window], slo), window.end
