"""Structured output: one JSON object with given fields, after a long text.

What the object says stands in the last message: this asks for form under a long context, where the
other methods ask for what stands far back.
"""

import json
import random

from kvserving_tuner.probes.builtin import Delivery
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.scoring import json_fields
from kvserving_tuner.probes.tasks.base import Task, log_entries

ANSWER_TOKENS = 64


def structured(chance: random.Random, words: int, number: int) -> Task:
    """Ask for a delivery as JSON: the share of its fields that are there with their values."""
    log = " ".join(log_entries(chance, words))
    shown, asked = Delivery(chance), Delivery(chance)
    question = (
        "Write the last delivery as one JSON object and nothing else. "
        f"Delivery: {_line(shown)} JSON: {json.dumps(_fields(shown))} "
        f"Delivery: {_line(asked)} JSON:"
    )
    return Task(
        prompt=Prompt(f"structured-{number}", messages=(("user", f"{log} {question}"),)),
        grade=lambda answer: json_fields(answer, _fields(asked)),
        answer_tokens=ANSWER_TOKENS,
        start="{",
    )


def _line(delivery: Delivery) -> str:
    return (
        f"order {delivery.code}, {delivery.crates} crates, {delivery.good}, "
        f"received by {delivery.person}."
    )


def _fields(delivery: Delivery) -> dict[str, str | int]:
    return {
        "order": delivery.code,
        "crates": delivery.crates,
        "goods": delivery.good,
        "receiver": delivery.person,
    }
