"""What ends a trial at once, without statistics: engines with the change that do not work; pure."""

from collections.abc import Collection

from kvserving_operator.observe import PodView
from kvserving_operator.trials.asking import Answer
from kvserving_operator.trials.record import Record
from kvserving_tuner.judge import HardStop
from kvserving_tuner.observation import GaugeWindow, Observation, Window
from kvserving_tuner.readings import Known

GARBAGE_IN_A_ROW = 3
"""Tasks of which 16 bits get something right and the change gives no answer at all. One by itself
may be a model's whim."""


def end_of(pods: Collection[PodView], ended: Collection[str]) -> HardStop | None:
    """Stop for engines that have ended with the change; None where none has."""
    if not ended:
        return None
    exits = [pod.last_exit for pod in pods if pod.name in ended]
    killed = any(each is not None and each.out_of_memory for each in exits)
    return HardStop.OUT_OF_MEMORY if killed else HardStop.CRASHED


def is_mute(record: Record, observation: Observation | None, has: Collection[str]) -> bool:
    """Whether an engine with the change gives no token to requests that it has, and others do.

    That takes a window in which it had requests all the time and has done nothing for any of them,
    while an engine without the change gave tokens.
    """
    engines = () if observation is None else observation.engines
    windows = {each.target: each.full for each in engines if isinstance(each.full, Window)}
    candidates = record.progress.candidates
    others = [window for name, window in windows.items() if name not in candidates]
    if not any(_count(window, "generation_tokens") for window in others):
        return False
    return any(
        _works_in_vain(windows[name])
        for name in candidates
        if name in has and name in windows and windows[name].start >= record.block_from
    )


def with_garbage(count: int, answer: Answer) -> int:
    """Tasks in a row that came to no answer, with one more answer of an engine with the change."""
    if not answer.baseline:
        # What 16 bits cannot do either says nothing.
        return count if answer.is_garbage else 0
    worse = answer.grade is not None and answer.grade < answer.baseline
    # What is as good as with 16 bits is an answer, whatever it looks like.
    return count + 1 if answer.is_garbage and worse else 0


def _works_in_vain(window: Window) -> bool:
    busy = isinstance(window.running, GaugeWindow) and window.running.minimum >= 1
    done = [_count(window, name) for name in ("generation_tokens", "prompt_tokens", "finished")]
    return busy and all(each == 0 for each in done)


def _count(window: Window, name: str) -> float | None:
    """Increase of a counter; None where it is not known."""
    reading = getattr(window, name)
    return reading.value if isinstance(reading, Known) else None
