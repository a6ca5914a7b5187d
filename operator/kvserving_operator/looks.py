"""What others are told of each look at a KVServing: the web view and traces are made from that."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from kvserving_operator.actions import Announce
from kvserving_operator.api.v1alpha1 import KVServingStatus
from kvserving_operator.facts import Facts
from kvserving_tuner.decision import Decision

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """One look: what was found out, what followed, and what was said about it."""

    facts: Facts
    status: KVServingStatus
    decision: Decision | None = None
    """The tuner's decision, where it says something new."""
    decided: Announce | None = None
    """Event about it."""
    announced: tuple[Announce, ...] = ()
    """Events about all else but what the roll-out has said."""

    @property
    def said(self) -> tuple[Announce, ...]:
        """All Events of this look; that of the decision first."""
        first = () if self.decided is None else (self.decided,)
        rollout = (each for each in self.facts.step.actions if isinstance(each, Announce))
        return (*first, *rollout, *self.announced)


class Watcher(Protocol):
    """Is told of looks; it decides nothing and changes nothing."""

    def looked(self, look: Look) -> None:
        """Take in a look."""

    def refused(self, namespace: str, name: str, status: KVServingStatus, now: float) -> None:
        """Take in that a spec cannot be read; `now` in epoch seconds."""

    def forgotten(self, namespace: str, name: str) -> None:
        """Drop what is kept of a KVServing that is gone."""


class Watchers:
    """Tells all of them; one that fails is logged and disturbs neither the look nor the others."""

    def __init__(self, watchers: Iterable[Watcher] = ()) -> None:
        self._watchers = tuple(watchers)

    def looked(self, look: Look) -> None:
        """Tell of a look."""
        for watcher in self._watchers:
            try:
                watcher.looked(look)
            except Exception:
                logger.exception("%s/%s: not shown", look.facts.ref.namespace, look.facts.ref.name)

    def refused(self, namespace: str, name: str, status: KVServingStatus, now: float) -> None:
        """Tell of a spec that cannot be read."""
        for watcher in self._watchers:
            try:
                watcher.refused(namespace, name, status, now)
            except Exception:
                logger.exception("%s/%s: not shown", namespace, name)

    def forgotten(self, namespace: str, name: str) -> None:
        """Tell of a KVServing that is gone."""
        for watcher in self._watchers:
            watcher.forgotten(namespace, name)
