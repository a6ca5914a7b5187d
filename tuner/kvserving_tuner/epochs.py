"""Snapshots of one engine in time order, cut where counters start again.

Counters fall to zero with a restart and gauges mean something else after a change of settings, so
nothing is ever computed across either: a new epoch begins and the old snapshots are forgotten.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from kvserving_tuner.aliases import Quantity
from kvserving_tuner.observation import EpochReason
from kvserving_tuner.settings import Windows
from kvserving_tuner.snapshot import Rank, Snapshot

MAXIMUM_SNAPSHOTS = 512
"""Bound on memory should an engine be read far more often than its windows need."""
STEPPED_CLOCK_SAMPLES = 3
"""Samples in a row from before the newest one that mean the clock was set back."""
_GAUGES = frozenset(
    {Quantity.RUNNING, Quantity.WAITING, Quantity.KV_USAGE, Quantity.MAX_ACTIVE_SEQS}
)


class Added(StrEnum):
    """What became of a snapshot."""

    KEPT = "Kept"
    DUPLICATE = "Duplicate"
    OUT_OF_ORDER = "OutOfOrder"
    FROM_THE_FUTURE = "FromTheFuture"


class History:
    """The snapshots of one engine's current epoch, oldest first."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._snapshots: list[Snapshot] = []
        self._late = 0
        self.epoch_start: float | None = None
        self.epoch_reason: EpochReason | None = None
        self.away_seconds: float | None = None
        """From the last sample before the newest restart to the first one after it."""

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """Snapshots of the current epoch that a window may still need, oldest first."""
        return self._snapshots

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot, if any."""
        return self._snapshots[-1] if self._snapshots else None

    def add(self, snapshot: Snapshot, now: float) -> Added:
        """Take in one snapshot; repeated, late and future ones are dropped."""
        if snapshot.at > now + self._windows.clock_skew_seconds:
            return Added.FROM_THE_FUTURE
        last = self.newest
        if last is None:
            self._begin(snapshot, EpochReason.FIRST_SAMPLE)
            return Added.KEPT
        if snapshot.at == last.at:
            return Added.DUPLICATE
        if snapshot.at < last.at:
            if last.at <= now + self._windows.clock_skew_seconds:
                # Time has not gone back: a sample that is read once more, or has come late.
                return Added.OUT_OF_ORDER
            self._late += 1
            if self._late < STEPPED_CLOCK_SAMPLES:
                return Added.OUT_OF_ORDER
            self._begin(snapshot, EpochReason.CLOCK_STEPPED)
            return Added.KEPT
        self._late = 0
        cut = break_between(last, snapshot)
        if cut is not None:
            if cut is EpochReason.RESTART:
                self.away_seconds = snapshot.at - last.at
            self._begin(snapshot, cut)
            return Added.KEPT
        self._snapshots.append(snapshot)
        self._prune(now)
        return Added.KEPT

    def _begin(self, snapshot: Snapshot, reason: EpochReason) -> None:
        self._snapshots = [snapshot]
        self._late = 0
        self.epoch_start = snapshot.at
        self.epoch_reason = reason

    def _prune(self, now: float) -> None:
        # The newest one stays whatever its age: it tells how long an engine has been silent.
        oldest = now - max(self._windows.full_seconds, self._windows.stale_seconds) * 1.5
        first = 0
        while first < len(self._snapshots) - 1 and self._snapshots[first].at < oldest:
            first += 1
        first = max(first, len(self._snapshots) - MAXIMUM_SNAPSHOTS)
        del self._snapshots[:first]


def break_between(before: Snapshot, after: Snapshot) -> EpochReason | None:
    """Why `after` cannot be compared with `before`; None if it can."""
    if _differs(before.process, after.process) or _fell(before.ranks, after.ranks):
        return EpochReason.RESTART
    renamed = any(
        before.names[quantity] != after.names[quantity]
        for quantity in before.names.keys() & after.names.keys()
    )
    if renamed or before.ranks.keys() != after.ranks.keys():
        return EpochReason.LABELS_CHANGED
    if before.settings and after.settings and before.settings != after.settings:
        return EpochReason.SETTINGS_CHANGED
    return None


def _differs(before: Mapping[object, object], after: Mapping[object, object]) -> bool:
    return any(before[key] != after[key] for key in before.keys() & after.keys())


def _fell(before: Mapping[str, Rank], after: Mapping[str, Rank]) -> bool:
    for engine in before.keys() & after.keys():
        old, new = before[engine], after[engine]
        for quantity in (old.values.keys() & new.values.keys()) - _GAUGES:
            if new.values[quantity] < old.values[quantity]:
                return True
        for quantity in old.histograms.keys() & new.histograms.keys():
            if new.histograms[quantity].counts[-1] < old.histograms[quantity].counts[-1]:
                return True
    return False
