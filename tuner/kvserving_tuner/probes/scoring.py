"""Scores of answers to task probes: numbers between 0 and 1, from exact rules alone.

No score compares the texts of two arms: greedy answers differ between batch sizes of one and the
same engine (vllm#23138). Each answer is held against what its prompt says is right.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

WORD: Final = re.compile(r"[^\W_]+(?:[.,]\d+)*", re.UNICODE)
SENTENCE: Final = re.compile(r"[^.!?\n]+(?:\.\d[^.!?\n]*)*")
SHORT_WORD: Final = 3
"""Words up to this length are mostly grammar and tell nothing about support."""

SUPPORT_SHARE: Final = 0.6
"""Share of a sentence's words that its context must have."""

LOOP_WORDS: Final = 6
"""Words in a row that make a phrase; repeated phrases of fewer words occur in good answers."""

LOOP_SHARE: Final = 0.5
"""Share of repeated phrases from which an answer counts as a loop."""


def recall(answer: str, expected: Sequence[str]) -> float:
    """Share of expected words or phrases that an answer has, whatever their case."""
    words = f" {' '.join(_words(answer))} "
    found = sum(f" {' '.join(_words(phrase))} " in words for phrase in expected)
    return found / len(expected) if expected else 1.0


def json_fields(answer: str, expected: Mapping[str, Any]) -> float:
    """Share of expected fields that the first JSON object of an answer has with their values."""
    found = first_object(answer)
    if found is None:
        return 0.0
    right = sum(name in found and found[name] == value for name, value in expected.items())
    return right / len(expected) if expected else 1.0


def first_object(answer: str) -> dict[str, Any] | None:
    """The first JSON object in a text, None where there is none that is complete."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"\{", answer)):
        try:
            found, _ = decoder.raw_decode(answer, start)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def groundedness(answer: str, context: str) -> float:
    """Share of an answer's sentences that its context supports; 1 for an answer of none.

    A sentence is supported where the context has each of its numbers and most of its longer words.
    That finds invented names and figures; it does not understand negation.
    """
    known = set(_words(context))
    sentences = [words for part in SENTENCE.findall(answer) if (words := _words(part))]
    if not sentences:
        return 1.0
    return sum(_is_supported(words, known) for words in sentences) / len(sentences)


def is_garbage(answer: str) -> bool:
    """Whether an answer is none: empty, undecodable, or mostly one phrase again and again."""
    text = answer.strip()
    if not text:
        return True
    if text.count("\ufffd") > 0.1 * len(text):
        return True
    words = _words(text)
    if not words:
        return len(set(text)) <= max(2, len(text) // 20)
    phrases = Counter(zip(*(words[start:] for start in range(LOOP_WORDS)), strict=False))
    total = sum(phrases.values())
    repeated = sum(count - 1 for count in phrases.values())
    return total >= LOOP_WORDS and repeated >= LOOP_SHARE * total


def _is_supported(words: Sequence[str], known: set[str]) -> bool:
    numbers = [word for word in words if word[0].isdigit()]
    longer = [word for word in words if not word[0].isdigit() and len(word) > SHORT_WORD]
    if any(number not in known for number in numbers):
        return False
    return sum(word in known for word in longer) >= SUPPORT_SHARE * len(longer)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]
