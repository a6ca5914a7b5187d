"""Needle in a haystack: one fact in a long text about other things, at five depths in turn.

After Kamradt, "Needle in a haystack: pressure testing LLMs", 2023.
"""

import random

from kvserving_tuner.probes.builtin import NAMES
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.scoring import recall
from kvserving_tuner.probes.tasks.base import Task, depth, log_entries

ANSWER_TOKENS = 16


def needle(chance: random.Random, words: int, number: int) -> Task:
    """Ask for a number of five digits: right where the answer has it."""
    entries = log_entries(chance, words)
    name, code = chance.choice(NAMES), str(chance.randint(10_000, 99_999))
    fact = f"The locker of {name} opens with the number"
    entries.insert(round(depth(number) * len(entries)), f"{fact} {code}.")
    question = f"With which number does the locker of {name} open?"
    messages = (("user", f"Read this log. {' '.join(entries)} {question}"),)
    return Task(
        prompt=Prompt(f"needle-{number}", messages=messages),
        grade=lambda answer: recall(answer, [code]),
        answer_tokens=ANSWER_TOKENS,
        start=fact,
    )
