"""Which pods are to be on the candidates' track, and what share they are to get; pure.

A pod is taken out of the stable arm before it takes a change and goes back after it has given it
up, so that nobody meets a change outside of its share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvserving_operator.live import KVSettings, differences
from kvserving_operator.observe import PodView
from kvserving_operator.traffic.load import Share, share
from kvserving_operator.trials.record import Record
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.trials.progress import State


@dataclass(frozen=True)
class Wish:
    """Where pods and requests are to go."""

    candidates: frozenset[str] = frozenset()
    """Pods on the candidates' track; all others are on the stable one."""
    weight: int = 0
    """Percent of the requests for them."""
    takes: bool = True
    """Whether all of them have the change; before, their share does not grow."""
    asked: int = 0
    """Percent that the trial's step asks for; 0 where none runs."""
    raised: bool = False
    """Whether `weight` is the candidates' part of the pods, as they or the others cannot carry
    their share else."""


def wish(
    record: Record | None,
    pods: Sequence[PodView],
    runtime: Mapping[str, RuntimeState],
    load: float | None,
    *,
    raised: bool = False,
) -> Wish:
    """Wish of a trial for the pods that are not on their way out; without one all are stable."""
    if record is None:
        return Wish()
    if record.revision:
        return _of_template(record, pods, load, raised=raised)
    ready = frozenset(pod.name for pod in pods if pod.ready)
    labelled = frozenset(pod.name for pod in pods if not pod.stable)
    if record.progress.state not in (State.RUNNING, State.APPROVAL):
        leaving = frozenset(
            name for name in labelled & ready if not _has(record.remains, runtime.get(name))
        )
        # Rather a pod with the change for everybody than nobody for anybody.
        return Wish(leaving if ready - leaving else frozenset())
    chosen = frozenset(record.progress.candidates) & ready
    if not chosen or not ready - chosen:
        # One pod, or a step with all of them: there is nothing to choose between.
        return Wish()
    asked = record.plan.steps[record.progress.step]
    found: Share = share(asked, len(chosen), len(ready - chosen), load, raised=raised)
    takes = all(_has(record.candidate, runtime.get(name)) for name in chosen)
    return Wish(chosen, found.percent, takes, asked, found.raised)


def _of_template(
    record: Record, pods: Sequence[PodView], load: float | None, *, raised: bool
) -> Wish:
    """The same where pods were started for the trial: they are candidates as long as they live."""
    mine = frozenset(pod.name for pod in pods if pod.apart)
    ready = frozenset(pod.name for pod in pods if pod.ready)
    if not ready - mine:
        return Wish(mine - ready)
    if record.ready_for_all:
        # They run what all others get: a share by route says nothing any more.
        return Wish()
    if record.progress.state not in (State.RUNNING, State.APPROVAL) or not mine & ready:
        return Wish(mine)
    asked = record.plan.steps[record.progress.step]
    found = share(asked, len(mine & ready), len(ready - mine), load, raised=raised)
    return Wish(mine, found.percent, mine <= ready, asked, found.raised)


def _has(settings: KVSettings, state: RuntimeState | None) -> bool:
    return state is not None and not differences(settings, state)
