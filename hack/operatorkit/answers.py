"""A model of words that can look up, as far as its cache still has what is asked for."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


class WordModel:
    """Tokens are words; an answer comes from the words that an eviction keeps."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._words: list[str] = []

    def tokens(self, text: str) -> list[int]:
        """A number for each word."""
        found = []
        for word in text.split():
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(word)
            found.append(self._ids[word])
        return found

    def answer(self, tokens: Sequence[int], eviction: Mapping[str, Any]) -> str:
        """What comes next after these tokens."""
        if eviction.get("policy", "None") != "None":
            sinks, window = eviction.get("sink_tokens", 4), eviction["window_tokens"]
            tokens = [*tokens[:sinks], *tokens[max(sinks, len(tokens) - window) :]]
        text = " ".join(self._words[token] for token in tokens)
        for rule in (_locker, _order, _delivery, _summary):
            said = rule(text)
            if said:
                return said
        return " I do not know."


def _locker(text: str) -> str:
    asked = re.search(r"(The locker of [\w ]+ opens with the number)$", text)
    told = asked and re.search(rf"{asked[1]} (\d+)\.", text)
    return f" {told[1]}." if told else ""


def _order(text: str) -> str:
    asked = re.search(r"Your order (\w+) goes to$", text)
    told = asked and re.search(rf"My order {asked[1]} goes to ([\w ]+)\.", text)
    return f" {told[1]}." if told else ""


def _delivery(text: str) -> str:
    found = re.findall(r"order (\w+), (\d+) crates, ([\w' ]+), received by ([\w ]+)\. JSON:", text)
    if not text.endswith("{") or not found:
        return ""
    order, crates, goods, receiver = found[-1]
    fields = {"order": order, "crates": int(crates), "goods": goods, "receiver": receiver}
    return json.dumps(fields)[1:]


def _summary(text: str) -> str:
    if "Summarize this log" not in text:
        return ""
    return " ".join(text.split()[-60:-40])
