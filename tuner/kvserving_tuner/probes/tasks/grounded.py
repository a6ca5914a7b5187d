"""Groundedness: how much of a summary its text supports.

A sentence counts as supported where the text has each of its figures and most of its longer words.
This finds invented names and figures, which is how a damaged cache shows first. It does not see a
right word in a wrong place, a wrong relation between right words, or a negation; a second model
would, and would bring its own errors.
"""

import random

from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.scoring import groundedness, is_garbage
from kvserving_tuner.probes.tasks.base import Task, log_entries

ANSWER_TOKENS = 64


def grounded(chance: random.Random, words: int, number: int) -> Task:
    """Ask for a summary: the share of its sentences that are supported, 0 for no answer."""
    log = " ".join(log_entries(chance, words))
    question = "Summarize this log in three short sentences, with names and figures."

    def grade(answer: str) -> float:
        # Nothing said, or one phrase again and again, is no unsupported statement, and no answer.
        return 0.0 if is_garbage(answer) else groundedness(answer, log)

    return Task(
        prompt=Prompt(f"grounded-{number}", messages=(("user", f"Log: {log} {question}"),)),
        grade=grade,
        answer_tokens=ANSWER_TOKENS,
    )
