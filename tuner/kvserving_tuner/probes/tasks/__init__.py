"""Task probes by name: a new method is a file here and a line in `METHODS`."""

import random
from collections.abc import Mapping
from typing import Final

from kvserving_tuner.probes.builtin import SEED
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.tasks.base import Method, Task
from kvserving_tuner.probes.tasks.grounded import grounded
from kvserving_tuner.probes.tasks.needle import needle
from kvserving_tuner.probes.tasks.references import reference_task
from kvserving_tuner.probes.tasks.structured import structured
from kvserving_tuner.probes.tasks.turns import turns

__all__ = ["METHODS", "Task", "builtin_task", "reference_task"]

METHODS: Final[Mapping[Probe, Method]] = {
    Probe.NEEDLE: needle,
    Probe.RECALL: turns,
    Probe.STRUCTURED_OUTPUT: structured,
    Probe.GROUNDEDNESS: grounded,
}
"""Methods whose tasks are made up; references are a user's own."""


def builtin_task(probe: Probe, words: int, number: int) -> Task:
    """A made-up task of about so many words; the same for the same arguments."""
    chance = random.Random(f"{SEED}-{probe}-{number}")  # noqa: S311
    return METHODS[probe](chance, words, number)
