"""Stretches of time in which engines with a change are probed, and in which they are not.

A probe takes time of the engine that it asks, and no engine without the change is asked as much.
What engines make of users' requests is compared in quiet stretches alone, on both sides in the same
time. A quiet stretch begins once the last probe is answered and what it held up is done.
"""

from enum import StrEnum
from typing import Final

from kvserving_tuner.trials.plan import Frozen

LONGER: Final = 1.1
"""A queue over another one that is not longer yet."""


class Stretch(StrEnum):
    """What is done with engines that have the change."""

    PROBING = "Probing"
    """They are asked probes and tasks."""
    SETTLING = "Settling"
    """They are asked nothing more, and get done with what probes held up."""
    QUIET = "Quiet"
    """They serve users alone."""


class Schedule(Frozen):
    """The stretch that a trial is in, and what there was of each kind."""

    stretch: Stretch = Stretch.PROBING
    seconds: float = 0.0
    """Time of the stretch, without that in which the trial held."""
    waited: float = 0.0
    """The part of it since the last block, or since the queue last got shorter."""
    since: float = 0.0
    """When the next quiet block begins at the earliest, in seconds since the epoch."""
    blocks: int = 0
    """Blocks of this stretch, where it is quiet."""
    in_flight: float | None = None
    """Requests that the engines had when the last probe was answered and have not finished since;
    None before it is answered."""
    shortest: float | None = None
    """Fewest requests that have waited at an engine since then, in the mean."""
    queue: float | None = None
    """Requests that waited at an engine when it was to be probed, in the mean."""
    quiet: int = 0
    """Blocks of the trial that were quiet, and `probed` those in which something was probed."""
    probed: int = 0

    @property
    def is_quiet(self) -> bool:
        """Whether engines serve users alone."""
        return self.stretch is Stretch.QUIET

    def becomes(self, stretch: Stretch, **update: object) -> "Schedule":
        """At the beginning of a stretch."""
        new = {"seconds": 0.0, "waited": 0.0, "blocks": 0, "in_flight": None, "shortest": None}
        return self.model_copy(update={"stretch": stretch, **new, **update})

    def after(self, passed: float) -> "Schedule":
        """So many seconds later."""
        update = {"seconds": self.seconds + passed, "waited": self.waited + passed}
        return self.model_copy(update=update)

    def with_queue(self, queue: float | None) -> "Schedule":
        """With so many requests waiting at an engine, in the mean; None where it is not known."""
        if queue is None or (self.shortest is not None and LONGER * queue >= self.shortest):
            return self
        return self.model_copy(update={"shortest": queue, "waited": 0.0})

    def with_quiet_block(self, end: float) -> "Schedule":
        """After a block in a quiet stretch."""
        update = {"since": end, "waited": 0.0, "blocks": self.blocks + 1, "quiet": self.quiet + 1}
        return self.model_copy(update=update)

    def with_probed_block(self) -> "Schedule":
        """After a block that was not quiet throughout."""
        return self.model_copy(update={"probed": self.probed + 1})
