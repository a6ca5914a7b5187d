"""Prompts of a probe set: texts and conversations, one JSON object a line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvserving_tuner.errors import ProbeSetError

ROLES: Final = ("system", "user", "assistant")
MOST_PROMPTS: Final = 10_000
NAME_CHARACTERS: Final = 100
SHOWN_CHARACTERS: Final = 40
_FIELDS: Final = ("name", "prompt", "messages", "reference", "metric")

Message = tuple[str, str]
"""Role and content."""


class Metric(StrEnum):
    """How an answer is held against a reference."""

    CHRF = "chrF"
    BLEU = "BLEU"


@dataclass(frozen=True)
class Prompt:
    """What is scored: a plain text, or a conversation in the model's chat template."""

    name: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    reference: str = ""
    """A good answer to the prompt; empty where only the prompt itself is scored."""
    metric: Metric = Metric.CHRF

    @property
    def plain(self) -> str:
        """The text, also of a conversation."""
        return self.text or "\n".join(f"{role}: {content}" for role, content in self.messages)


def read_prompts(document: str) -> tuple[Prompt, ...]:
    """Prompts of a JSONL document; ProbeSetError names the line and the field at fault.

    Each line has either `prompt`, a text, or `messages`, a list of `role` and `content`. `name`,
    `reference`, a good answer, and its `metric`, chrF or BLEU, are optional. Empty lines are left
    out.
    """
    prompts: list[Prompt] = []
    # Not by `splitlines`: JSON may hold U+2028 and its like in a text.
    for number, line in enumerate(document.split("\n"), start=1):
        if line.strip():
            prompts.append(_read(line, f"line {number}"))
    if not prompts:
        raise ProbeSetError("expected at least one prompt, got none")
    if len(prompts) > MOST_PROMPTS:
        raise ProbeSetError(f"expected at most {MOST_PROMPTS} prompts, got {len(prompts)}")
    return tuple(prompts)


def _read(line: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProbeSetError(f"{where}: expected a JSON object: {error}") from None
    if not isinstance(entry, Mapping):
        raise ProbeSetError(f"{where}: expected a JSON object, got {type(entry).__name__}")
    unknown = [field for field in entry if field not in _FIELDS]
    if unknown:
        field, fields = str(unknown[0]), ", ".join(_FIELDS)
        plain = field.isascii() and field.isidentifier() and len(field) <= SHOWN_CHARACTERS
        found = field if plain else _shown(field)
        raise ProbeSetError(f"{where}: {found}: expected one of {fields}")
    if ("prompt" in entry) == ("messages" in entry):
        raise ProbeSetError(f"{where}: expected either prompt or messages")
    name = entry.get("name", where)
    if not isinstance(name, str):
        raise ProbeSetError(f"{where}: name: expected a string, got {type(name).__name__}")
    if len(name) > NAME_CHARACTERS or not name.isprintable():
        # Messages and logs hold it.
        raise ProbeSetError(
            f"{where}: name: expected at most {NAME_CHARACTERS} printable characters"
        )
    reference, metric = _reference(entry, where)
    if "messages" in entry:
        messages = _messages(entry["messages"], where)
        if reference and messages[-1][0] == "assistant":
            raise ProbeSetError(
                f"{where}: messages: expected the last one to ask what reference answers, "
                "got one of the assistant"
            )
        return Prompt(name, messages=messages, reference=reference, metric=metric)
    text = _text(entry["prompt"], f"{where}: prompt")
    return Prompt(name, text=text, reference=reference, metric=metric)


def _reference(entry: Mapping[str, object], where: str) -> tuple[str, Metric]:
    if "reference" not in entry:
        if "metric" in entry:
            raise ProbeSetError(f"{where}: metric: expected a reference beside it")
        return "", Metric.CHRF
    reference = _text(entry["reference"], f"{where}: reference")
    metric = entry.get("metric", Metric.CHRF)
    if metric not in list(Metric):
        names = ", ".join(Metric)
        raise ProbeSetError(f"{where}: metric: expected one of {names}, got {_shown(metric)}")
    return reference, Metric(str(metric))


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise ProbeSetError(f"{field}: expected a text of at least one character")
    return _encodable(value, field)


def _encodable(text: str, field: str) -> str:
    """The text, unless it is none in UTF-8: JSON can name one half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ProbeSetError(f"{field}: character {error.start + 1} is half a character") from None
    return text


def _shown(value: object) -> str:
    """What a user wrote where a word was expected, short and in ASCII."""
    text = ascii(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _messages(value: object, where: str) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ProbeSetError(f"{where}: messages: expected a list of at least one message")
    messages: list[Message] = []
    for place, message in enumerate(value):
        field = f"{where}: messages[{place}]"
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise ProbeSetError(f"{field}: expected an object of role and content")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise ProbeSetError(
                f"{field}.role: expected one of {', '.join(ROLES)}, got {_shown(role)}"
            )
        if not isinstance(content, str):
            raise ProbeSetError(f"{field}.content: expected a text, got {type(content).__name__}")
        messages.append((role, _encodable(content, f"{field}.content")))
    return tuple(messages)
