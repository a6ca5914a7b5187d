"""Keeps what prompts say out of errors: these reach status, Events and logs, which many may read.

Engines quote what they do not like. Prompts may be confidential, so that words of an engine which
repeat a part of what it was asked are left out.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from kvserving_tuner.errors import ChangeFailed, Rejected, RuntimeAPIError

WITHHELD: Final = "the engine's words quote the prompt and are left out"
QUOTE_CHARACTERS: Final = 12
"""A run of so many characters of a prompt is a quotation."""
LONG_CHARACTERS: Final = 2000
"""More words than that are taken for a quotation unread."""


def withheld(error: RuntimeAPIError, body: Mapping[str, object]) -> RuntimeAPIError:
    """The error, without its words where they quote what was asked."""
    said = [error.message]
    if isinstance(error, Rejected):
        said += [error.field, error.expected, error.got]
    sent = list(_texts([body.get(key) for key in ("prompt", "messages", "token_ids")]))
    if not any(_quotes(words, text) for words in said for text in sent):
        return error
    if isinstance(error, Rejected):
        return Rejected(error.target, "", "", "", WITHHELD)
    if isinstance(error, ChangeFailed):
        return ChangeFailed(error.target, WITHHELD, error.reason)
    return type(error)(error.target, WITHHELD)


def _quotes(words: str, text: str) -> bool:
    if len(words) > LONG_CHARACTERS:
        return True
    size = min(QUOTE_CHARACTERS, len(text))
    spellings = (text, repr(text), json.dumps(text))
    return size > 0 and any(
        words[start : start + size] in spelling
        for spelling in spellings
        for start in range(len(words) - size + 1)
    )


def _texts(found: object) -> Iterable[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, Mapping):
        yield from _texts(found.get("content"))
    elif isinstance(found, list | tuple):
        if found and all(type(each) is int for each in found):
            yield repr(list(found))
            yield json.dumps(found, separators=(",", ":"))
        else:
            for each in found:
                yield from _texts(each)
