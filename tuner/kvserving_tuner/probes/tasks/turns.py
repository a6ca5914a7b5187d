"""Recall across turns: what the user said once in a long conversation, asked for at its end."""

import random

from kvserving_tuner.probes.builtin import EVENTS, NAMES, PLACES
from kvserving_tuner.probes.prompts import Message, Prompt
from kvserving_tuner.probes.scoring import recall
from kvserving_tuner.probes.tasks.base import Task, depth

ANSWER_TOKENS = 16
WORDS_PER_TURN = 20


def turns(chance: random.Random, words: int, number: int) -> Task:
    """Ask where one of many orders goes: right where the answer names the place."""
    count = max(2, words // WORDS_PER_TURN)
    codes = [f"K{code}" for code in chance.sample(range(1000, 10_000), count)]
    places = [chance.choice(PLACES) for _ in codes]
    messages: list[Message] = [("system", "You keep track of the orders that you are told about.")]
    for code, place in zip(codes, places, strict=True):
        told = (
            f"My order {code} goes to {place}. {chance.choice(NAMES)} says {chance.choice(EVENTS)}."
        )
        messages += [("user", told), ("assistant", "I have noted it.")]
    asked = int(depth(number) * count)
    code, place = codes[asked], places[asked]
    messages.append(("user", f"Where does my order {code} go?"))
    return Task(
        prompt=Prompt(f"recall-{number}", messages=tuple(messages)),
        grade=lambda answer: recall(answer, [place]),
        answer_tokens=ANSWER_TOKENS,
        start=f"Your order {code} goes to",
    )
