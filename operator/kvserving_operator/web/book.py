"""All that the web view shows, kept from look to look in the memory of this process alone."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvserving_operator.api.v1alpha1 import KVServing, KVServingStatus, KVTrial
from kvserving_operator.looks import Look
from kvserving_operator.trials.record import Record
from kvserving_operator.web.curves import TrialCurves
from kvserving_operator.web.history import MOST_HAPPENINGS, Happening, Series
from kvserving_operator.web.samples import happenings_of, sample_of

MOST_TRIALS: Final = 24
"""Trials whose curves are kept, of all KVServings together: the rest shows final numbers alone."""

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class Entry:
    """One KVServing."""

    namespace: str
    name: str
    since: float
    """When it was first looked at by this process, in seconds since the epoch."""
    looked_at: float = 0.0
    serving: KVServing | None = None
    """None where its spec could never be read."""
    status: KVServingStatus = field(default_factory=KVServingStatus)
    record: Record | None = None
    """The trial under way."""
    trials: dict[str, KVTrial] = field(default_factory=dict)
    """KVTrials as last listed."""
    series: Series = field(default_factory=Series)
    happenings: deque[Happening] = field(default_factory=lambda: deque(maxlen=MOST_HAPPENINGS))

    @property
    def title(self) -> str:
        """Namespace and name in one."""
        return f"{self.namespace}/{self.name}"


class Book:
    """A watcher of looks."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._curves: OrderedDict[tuple[str, str, str], TrialCurves] = OrderedDict()

    def __iter__(self) -> Iterator[Entry]:
        """Entries by namespace and name."""
        return iter([entry for _, entry in sorted(self._entries.items())])

    def entry(self, namespace: str, name: str) -> Entry | None:
        """One KVServing; None where none of that name was looked at."""
        return self._entries.get((namespace, name))

    def curves(self, namespace: str, name: str, trial: str) -> TrialCurves | None:
        """Curves of a trial; None where none are kept."""
        return self._curves.get((namespace, name, trial))

    def looked(self, look: Look) -> None:
        """Take in a look."""
        facts = look.facts
        entry = self._entry(facts.ref.namespace, facts.ref.name, facts.now)
        entry.serving, entry.status, entry.looked_at = facts.serving, look.status, facts.now
        entry.happenings.extend(happenings_of(look))
        sample = sample_of(facts)
        if sample is not None:
            entry.series.add(sample)
        entry.record = facts.trials.running
        if facts.trial is not None:
            entry.trials = {trial.metadata.name: trial for trial in facts.trial.found}
            if facts.trial.record is not None:
                self._add(entry, facts.trial.record, facts.now)

    def refused(self, namespace: str, name: str, status: KVServingStatus, now: float) -> None:
        """Take in that a spec cannot be read."""
        entry = self._entry(namespace, name, now)
        entry.status, entry.looked_at = status, now

    def forgotten(self, namespace: str, name: str) -> None:
        """Drop a KVServing that is gone."""
        self._entries.pop((namespace, name), None)
        for key in [key for key in self._curves if key[:2] == (namespace, name)]:
            del self._curves[key]

    def _entry(self, namespace: str, name: str, now: float) -> Entry:
        return self._entries.setdefault((namespace, name), Entry(namespace, name, now))

    def _add(self, entry: Entry, record: Record, now: float) -> None:
        key = (entry.namespace, entry.name, record.name)
        curves = self._curves.setdefault(key, TrialCurves(now))
        curves.add(record)
        self._curves.move_to_end(key)
        while len(self._curves) > MOST_TRIALS:
            self._curves.popitem(last=False)
