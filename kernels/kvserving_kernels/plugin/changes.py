"""Validation of a requested change: a JSON document in, a change within the envelope out.

Pure, and without any web framework, because it runs in the engine core, which knows the true
bounds, and not where the request arrived.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kvserving_kernels.errors import InvalidChangeError, shown
from kvserving_kernels.eviction import Eviction, EvictionBounds, read_eviction

KNOBS: Final = ("kv_cache_dtype", "max_active_seqs", "max_scheduled_tokens", "eviction")
"""Settings that the API names; those missing from an engine's envelope need a restart there."""

_CHANGE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True)
class IntegerRange:
    """The integers that a knob takes, both ends included."""

    minimum: int
    maximum: int

    def __contains__(self, value: object) -> bool:
        # JSON's true is no number, though Python's is.
        return type(value) is int and self.minimum <= value <= self.maximum

    def __str__(self) -> str:
        return f"an integer from {self.minimum} to {self.maximum}"

    def to_json(self) -> dict[str, int]:
        """As the API's `envelope` shows it."""
        return {"minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True)
class Choices:
    """The names that a knob takes.

    `unavailable` are names that it would take if the rest of the engine were otherwise, each with
    the reason; a change may name one together with what makes it possible.
    """

    values: tuple[str, ...]
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and (value in self.values or value in self.unavailable)

    def __str__(self) -> str:
        return f"one of {', '.join(self.values)}"

    def to_json(self) -> dict[str, Any]:
        """As the API's `envelope` shows it; `unavailable` only where there is something."""
        reasons = {"unavailable": dict(self.unavailable)} if self.unavailable else {}
        return {"values": list(self.values), **reasons}


Value = int | str | Eviction
"""A setting of a knob."""

Envelope = Mapping[str, IntegerRange | Choices | EvictionBounds]
"""The knobs that may change live on an engine, each with the values it takes."""


@dataclass(frozen=True)
class Change:
    """A valid change: what to set, under the caller's name for it."""

    change_id: str
    values: Mapping[str, Value]


def parse_change(document: object, envelope: Envelope) -> Change:
    """Read a PATCH document; raises InvalidChangeError with the first field at fault."""
    if not isinstance(document, Mapping):
        raise InvalidChangeError("body", "a JSON object", shown(document))
    change_id = document.get("change_id")
    if not isinstance(change_id, str) or not _CHANGE_ID.fullmatch(change_id):
        expected = f"1 to 128 characters matching {_CHANGE_ID.pattern}"
        raise InvalidChangeError("change_id", expected, shown(change_id))
    values: dict[str, Value] = {}
    for field, value in document.items():
        if field == "change_id":
            continue
        if field not in KNOBS:
            expected = f"one of change_id, {', '.join(KNOBS)}"
            raise InvalidChangeError(str(field), expected, "an unknown field")
        allowed = envelope.get(field)
        if allowed is None:
            expected = "no live change (it is restart class on this engine)"
            raise InvalidChangeError(field, expected, shown(value))
        if isinstance(allowed, EvictionBounds):
            values[field] = read_eviction(field, value, allowed, InvalidChangeError)
            continue
        if value not in allowed:
            raise InvalidChangeError(field, str(allowed), shown(value))
        values[field] = value
    if not values:
        expected = f"at least one of {', '.join(envelope)}"
        raise InvalidChangeError("body", expected, "no setting")
    return Change(change_id, MappingProxyType(values))


def told(document: object, valid: bool) -> str:
    """A change as a log has it: known fields by name, and what a `valid` one wants of each.

    What a caller wrote besides, or wrote wrongly, has no place in a log: it may be long, or secret.
    """
    fields = document if isinstance(document, Mapping) else {}
    known = [knob for knob in KNOBS if knob in fields]
    if not valid:
        return ", ".join(known) or "no known field"
    return ", ".join(f"{name}: {shown(fields[name])}" for name in ("change_id", *known))
