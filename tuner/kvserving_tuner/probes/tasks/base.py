"""A task: a prompt and a rule that tells how much of an answer is right."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.probes.builtin import Delivery
from kvserving_tuner.probes.prompts import Prompt

DEPTHS: Final = 5
"""Places at which what is asked for stands, from the start of the context to its end."""


@dataclass(frozen=True)
class Task:
    """What is asked, and how an answer is graded."""

    prompt: Prompt
    grade: Callable[[str], float]
    """From an answer, its given start included, to a number between 0 (wrong) and 1 (right)."""
    answer_tokens: int
    """Most tokens of an answer."""
    start: str = ""
    """How the answer begins: models too weak to follow the question can still go on from it, so
    that the cache is tested and not the training."""


Method = Callable[[random.Random, int, int], Task]
"""Makes the task of a number, of about so many words; arguments: chance, words, number."""


def depth(number: int) -> float:
    """Where in the context the task of a number has its answer: 0.1, 0.3, 0.5, 0.7, 0.9 in turn."""
    return (number % DEPTHS + 0.5) / DEPTHS


def log_entries(chance: random.Random, words: int) -> list[str]:
    """Made-up sentences of about so many words in all, at least one."""
    entries: list[str] = []
    counted = 0
    while not entries or counted < words:
        entries.append(Delivery(chance).sentence(chance))
        counted += len(entries[-1].split())
    return entries
