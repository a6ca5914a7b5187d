"""Engines by the KV cache that they are to have: a trial's candidates, and the others; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvserving_operator.live import KVSettings
from kvserving_operator.observe import PodView
from kvserving_operator.revisions import Revision
from kvserving_operator.trials.record import Record, Trials
from kvserving_tuner.trials.progress import Verdict


@dataclass(frozen=True)
class Group:
    """Pods with one wish; without settings they keep what they have."""

    settings: KVSettings | None
    key: str
    """Names the attempt to bring them there."""
    pods: tuple[PodView, ...]
    aside: bool = False
    """Whether they are not the fleet that is reported: a trial's candidates, and pods of another
    template."""
    urgent: bool = False
    """Whether they are brought there together."""


def _is_given_up(record: Record | None, settings: KVSettings, live: KVSettings) -> bool:
    """Whether pods of another template may have settings that nobody is to meet any more."""
    if record is None:
        return settings != live
    if record.revision:
        return settings != record.stable
    return record.remains != record.candidate


def grouped(
    alive: Sequence[PodView], current: Revision | None, trials: Trials, retry: str
) -> tuple[Group, ...]:
    """Groups of these pods; those of another template than the one in force keep what they have.

    But for what a trial has given them: until they are replaced, users meet it there.
    """
    if current is None or current.live is None:
        return (Group(None, "", tuple(alive)),)
    record = trials.running
    chosen = record.progress.candidates if record is not None else ()
    candidates = tuple(p for p in alive if p.name in chosen and p.revision == current.hash)
    others = tuple(p for p in alive if p not in candidates and p.revision == current.hash)
    foreign = tuple(p for p in alive if p.revision != current.hash)
    settings = current.live if trials.settled is None else trials.settled.settings
    if record is not None and not record.revision:
        settings = record.remains
    # A template's trial sends nothing to engines that run.
    attempt = retry if record is None or record.revision else record.name
    conclusion = None if record is None else record.progress.conclusion
    fell = trials.settled is not None and trials.settled.verdict is Verdict.ROLLED_BACK
    urgent = fell if conclusion is None else conclusion.verdict is Verdict.ROLLED_BACK
    groups = [Group(settings, settings.key(attempt), others, urgent=urgent)]
    if record is not None and candidates:
        key = record.candidate.key(attempt)
        groups.append(Group(record.candidate, key, candidates, aside=True))
    if foreign and _is_given_up(record, settings, current.live):
        key = settings.key(f"{attempt}/former")
        # At once: once the trial is over, nothing keeps users away from them.
        groups.append(Group(settings, key, foreign, aside=True, urgent=True))
    elif foreign:
        groups.append(Group(None, "", foreign))
    return tuple(groups)
