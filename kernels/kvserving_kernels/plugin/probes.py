"""What a probe asks for: a JSON document in, token ids to score within an engine's limits out.

Pure, and checked in the engine core, which knows its model and the formats that it can store.
"""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvserving_kernels.errors import InvalidProbeError
from kvserving_kernels.plugin.changes import Choices, IntegerRange

MAX_TOKENS: Final = 32 * 1024
"""Most tokens of one probe, whatever the model takes: it holds memory while it runs."""

LEAST_TOKENS: Final = 2
"""The first token has no likelihood."""

_FIELDS: Final = ("token_ids", "form", "as_dtype", "skip")


class Form(StrEnum):
    """How the tokens go through the cache."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Limits:
    """What an engine takes: its context, its vocabulary, and the formats that it can store.

    `dtypes` maps accepted names to formats; `live` is the format in force.
    """

    max_tokens: int
    vocabulary: int
    dtypes: Mapping[str, str]
    live: str


@dataclass(frozen=True)
class Probe:
    """Tokens to score. Those before `first` are context only.

    `dtype` is the format that the score is to hold for.
    """

    token_ids: tuple[int, ...]
    form: Form
    dtype: str
    first: int


def parse_probe(document: object, limits: Limits) -> Probe:
    """Read a probe; raises InvalidProbeError with the first field at fault."""
    if not isinstance(document, Mapping):
        raise InvalidProbeError("body", "a JSON object", _shown(document))
    for field in document:
        if field not in _FIELDS:
            expected = f"one of {', '.join(_FIELDS)}"
            raise InvalidProbeError(str(field), expected, "an unknown field")
    token_ids = _token_ids(document.get("token_ids"), limits)
    form = document.get("form")
    forms = Choices(tuple(form.value for form in Form))
    if not isinstance(form, str) or form not in forms:
        raise InvalidProbeError("form", str(forms), _shown(form))
    name = document.get("as_dtype")
    if name is not None and (not isinstance(name, str) or name not in limits.dtypes):
        expected = f"one of {', '.join(limits.dtypes)} on this engine"
        raise InvalidProbeError("as_dtype", expected, _shown(name))
    skip = document.get("skip", 0)
    # At least one token is scored.
    skips = IntegerRange(0, len(token_ids) - 1)
    if skip not in skips:
        raise InvalidProbeError("skip", str(skips), _shown(skip))
    dtype = limits.live if name is None else limits.dtypes[name]
    return Probe(token_ids, Form(form), dtype, max(1, skip))


def _token_ids(value: object, limits: Limits) -> tuple[int, ...]:
    expected = f"{LEAST_TOKENS} to {limits.max_tokens} integers"
    if not isinstance(value, list):
        raise InvalidProbeError("token_ids", f"a list of {expected}", _shown(value))
    if not LEAST_TOKENS <= len(value) <= limits.max_tokens:
        raise InvalidProbeError("token_ids", expected, f"{len(value)}")
    allowed = IntegerRange(0, limits.vocabulary - 1)
    for place, token in enumerate(value):
        if token not in allowed:
            raise InvalidProbeError(f"token_ids[{place}]", str(allowed), _shown(token))
    return tuple(value)


def _shown(value: object) -> str:
    return textwrap.shorten(json.dumps(value, default=repr), 80, placeholder=" …")
