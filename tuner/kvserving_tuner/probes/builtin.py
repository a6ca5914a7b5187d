"""The built-in probe set: conversations that are made up, of any number and length.

Each asks the cache for what stands far back: an answer repeats names and figures of the context, so
that a key or value that was stored badly makes the next token less likely. Four kinds take turns:
records with questions about them, a long conversation under a system prompt, a report that is
written from notes, and records as JSON.
"""

import json
import random
from collections.abc import Callable
from typing import Final

from kvserving_tuner.probes.prompts import Message, Prompt

SEED: Final = 7
PLACES: Final = (
    "the harbour", "the northern depot", "the old mill", "the city library", "the airfield",
    "the botanical garden", "the upper valley", "the train station", "the market hall",
    "the water works", "the observatory", "the printing house",
)  # fmt: skip
NAMES: Final = (
    "Amara Okafor", "Lukas Brandt", "Mei Tanaka", "Sofia Rinaldi", "Tomas Novak", "Leila Haddad",
    "Jonas Lindqvist", "Priya Raman", "Carlos Mendez", "Ingrid Solberg", "Pavel Orlov",
    "Hannah Clarke", "Youssef Karim", "Elena Petrova", "Daniel Osei", "Marta Kowalska",
)  # fmt: skip
GOODS: Final = (
    "copper wire", "window glass", "seed potatoes", "printing paper", "bicycle tyres",
    "ceramic tiles", "green tea", "medical gloves", "oak boards", "solar panels", "sheep's wool",
    "spare batteries",
)  # fmt: skip
EVENTS: Final = (
    "a storm had closed the road", "the crane was being repaired", "two drivers were ill",
    "the scales showed a wrong weight", "the labels had been mixed up", "a buyer changed the date",
    "the bridge was open for ships", "the invoice lacked a signature",
)  # fmt: skip
QUESTIONS: Final = (
    "Who signed for {good}, and how many crates were there?",
    "What do we know about the delivery of {good}?",
    "Remind me where {good} went and who received it.",
)


def builtin(count: int, words: int) -> tuple[Prompt, ...]:
    """So many prompts of about so many words; the same for the same arguments."""
    kinds: tuple[Callable[[random.Random, int], list[Message]], ...] = (
        _questions, _conversation, _report, _json_records,
    )  # fmt: skip
    prompts = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        chance = random.Random(f"{SEED}-{number}")  # noqa: S311
        name = f"{kind.__name__.strip('_')}-{number}"
        prompts.append(Prompt(name, messages=tuple(kind(chance, words))))
    return tuple(prompts)


class Delivery:
    """One made-up fact with five figures or names that an answer can repeat."""

    def __init__(self, chance: random.Random) -> None:
        self.good = chance.choice(GOODS)
        self.crates = chance.randint(12, 980)
        self.place = chance.choice(PLACES)
        self.person = chance.choice(NAMES)
        self.code = f"{chance.choice('BCDFGHKLMNPRST')}{chance.randint(1000, 9999)}"
        self.event = chance.choice(EVENTS)

    def sentence(self, chance: random.Random) -> str:
        """The fact in one of three wordings."""
        return chance.choice(
            (
                f"Order {self.code}: {self.crates} crates of {self.good} reached {self.place}, "
                f"where {self.person} signed for them, although {self.event}.",
                f"{self.person} took over {self.crates} crates of {self.good} at {self.place} "
                f"under order {self.code}; the day before, {self.event}.",
                f"Because {self.event}, the {self.crates} crates of {self.good} of order "
                f"{self.code} came late to {self.place} and went to {self.person}.",
            )
        )

    def answer(self) -> str:
        """The fact as an answer repeats it."""
        return (
            f"Order {self.code} brought {self.crates} crates of {self.good} to {self.place}. "
            f"{self.person} signed for them. On the way {self.event}."
        )


def _deliveries(chance: random.Random, count: int) -> list[Delivery]:
    return [Delivery(chance) for _ in range(max(2, count))]


def _questions(chance: random.Random, words: int) -> list[Message]:
    """Half context, half questions about it, from all depths."""
    found = _deliveries(chance, words // 60)
    context = " ".join(each.sentence(chance) for each in found)
    messages = [("system", "Answer from the log alone."), ("user", f"The log reads: {context}")]
    messages.append(("assistant", f"I have read all {len(found)} entries of the log."))
    for each in chance.sample(found, len(found)):
        question = chance.choice(QUESTIONS).format(good=f"{each.good} of order {each.code}")
        messages += [("user", question), ("assistant", each.answer())]
    return messages


def _conversation(chance: random.Random, words: int) -> list[Message]:
    """Facts come one at a time, and each answer goes back to an earlier one."""
    host = chance.choice(NAMES)
    messages = [
        ("system", f"You are the dispatcher's assistant. You speak with {host} and keep track."),
    ]
    told: list[Delivery] = []
    while sum(len(content.split()) for _, content in messages) < words:
        told.append(Delivery(chance))
        earlier = chance.choice(told)
        messages += [
            ("user", f"{told[-1].sentence(chance)} What did I tell you about {earlier.code}?"),
            ("assistant", f"{host}, you told me this: {earlier.answer()}"),
        ]
    return messages


def _report(chance: random.Random, words: int) -> list[Message]:
    """Short notes, then a long answer written from them."""
    found = _deliveries(chance, words // 45)
    notes = "; ".join(f"{each.code} {each.good} {each.crates} {each.person}" for each in found)
    answer = " ".join(
        f"Entry {number} of the week concerns {each.person}. {each.answer()}"
        for number, each in enumerate(found, start=1)
    )
    total = sum(each.crates for each in found)
    return [
        ("user", f"Write the weekly report from these notes: {notes}."),
        ("assistant", f"{answer} In all, {total} crates were delivered in {len(found)} orders."),
    ]


def _json_records(chance: random.Random, words: int) -> list[Message]:
    """Sentences, and the same as structured output."""
    found = _deliveries(chance, words // 50)
    context = " ".join(each.sentence(chance) for each in found)
    rows = [
        {"order": each.code, "crates": each.crates, "goods": each.good, "receiver": each.person}
        for each in found
    ]
    return [
        ("user", f"Give every delivery as one JSON object a line. {context}"),
        ("assistant", "\n".join(json.dumps(row) for row in rows)),
    ]
