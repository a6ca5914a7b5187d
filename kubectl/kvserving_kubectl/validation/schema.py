"""A CRD's structural schema: defaults as the API server fills them in, and what breaks it."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from kvserving_kubectl.validation.documents import Place

Schema = Mapping[str, Any]
INT_OR_STRING = "x-kubernetes-int-or-string"
KEPT = "x-kubernetes-preserve-unknown-fields"
LIST_TYPE, MAP_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
TYPES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}
OWN_FIELDS = ("apiVersion", "kind", "metadata")
SHOWN = 128


def without_nulls(value: Any) -> Any:
    """Plain data without null fields, which the API server drops as well."""
    if isinstance(value, Mapping):
        return {str(k): without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def defaulted(value: Any, schema: Schema) -> Any:
    """A value with the schema's defaults, as the API server stores it."""
    if isinstance(value, Mapping) and "properties" in schema:
        filled = dict(value)
        for name, child in schema["properties"].items():
            if name not in filled and "default" in child:
                filled[name] = copy.deepcopy(child["default"])
            if name in filled:
                filled[name] = defaulted(filled[name], child)
        return filled
    if isinstance(value, list) and "items" in schema:
        return [defaulted(item, schema["items"]) for item in value]
    if isinstance(value, Mapping) and isinstance(schema.get("additionalProperties"), Mapping):
        return {
            name: defaulted(item, schema["additionalProperties"]) for name, item in value.items()
        }
    return value


def faults(value: Any, schema: Schema) -> Iterator[tuple[Place, str]]:
    """What breaks the schema: the place, and what was expected and what came."""
    validator = _Validator(_closed(schema, root=True))
    found = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.path)))
    broken = [tuple(error.absolute_path) for error in found]
    for error in found:
        place = tuple(error.absolute_path)
        # What has the wrong type has every other fault as well; only that one helps.
        below = any(place[: len(other)] == other and other != place for other in broken)
        if below and error.validator not in ("type", "additionalProperties"):
            continue
        yield from _told(error, place)


def shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _told(error: ValidationError, place: Place) -> Iterator[tuple[Place, str]]:
    kind, wanted, value = error.validator, error.validator_value, error.instance
    if kind == "additionalProperties":
        known = list(error.schema.get("properties") or ())
        for name in sorted(set(value) - set(known), key=str):
            near = get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield (*place, name), f"no such field{hint}"
        return
    if kind == "required":
        for name in wanted:
            if name not in value and f"'{name}'" in error.message:
                yield (*place, name), "is required"
        return
    yield place, _sentence(str(kind), wanted, value)


def _sentence(kind: str, wanted: Any, value: Any) -> str:
    got = f"got {shown(value)}"
    if kind == "type":
        return f"expected {TYPES[wanted]}, {got}{_trap(value)}"
    if kind == "enum":
        return f"expected one of {', '.join(map(str, wanted))}, {got}{_trap(value)}"
    if kind == "pattern":
        return f"expected text that matches {wanted}, {got}"
    if kind in ("minimum", "maximum"):
        word = "at least" if kind == "minimum" else "at most"
        return f"expected {word} {wanted}, {got}"
    if kind in ("minLength", "maxLength"):
        word = "at least" if kind == "minLength" else "at most"
        return f"expected {word} {wanted} characters, got {len(value)}"
    if kind in ("minItems", "maxItems", "minProperties", "maxProperties"):
        word = "at least" if kind.startswith("min") else "at most"
        return f"expected {word} {wanted} entries, got {len(value)}"
    if kind == LIST_TYPE:
        return "expected entries that differ" + (f", {got}" if wanted == "set" else "")
    if kind == MAP_KEYS:
        return f"expected entries that differ in their {', '.join(wanted)}"
    if kind == "anyOf":
        return f"expected a whole number or a text, {got}"
    if kind == INT_OR_STRING:
        return f"expected a whole number of 64 bits, or a text, {got}"
    if kind == "format":
        return f"expected {wanted}, {got}"
    raise TypeError(f"expected a key of a structural schema, got {kind}")


def _trap(value: Any) -> str:
    """Explain what YAML makes of bare words."""
    if isinstance(value, bool):
        word = "on, yes or true" if value else "Off, no or false"
        return f' (YAML reads a bare {word} as {str(value).lower()}: quote it, such as "Off")'
    return ""


def _closed(schema: Schema, *, root: bool = False) -> dict[str, Any]:
    """The schema with no other fields than those that it names, as a strict server takes it."""
    closed = dict(schema)
    if "properties" in closed:
        closed["properties"] = {
            name: ({"type": "object"} if root and name == "metadata" else _closed(child))
            for name, child in closed["properties"].items()
        }
        if not closed.get(KEPT) and "additionalProperties" not in closed:
            closed["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(closed.get(key), Mapping):
            closed[key] = _closed(closed[key])
    closed.pop("default", None)
    return closed


def _is_set(validator: Any, wanted: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if wanted == "set" and isinstance(value, list):
        seen = [json.dumps(item, sort_keys=True, default=str) for item in value]
        if len(set(seen)) < len(seen):
            yield ValidationError("entries are repeated")


def _is_map(validator: Any, wanted: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, list):
        entries = [item for item in value if isinstance(item, Mapping)]
        keys = [tuple(shown(entry.get(key)) for key in wanted) for entry in entries]
        if len(set(keys)) < len(keys):
            yield ValidationError("entries are repeated")


def _has_format(
    validator: Any, wanted: str, value: Any, schema: Schema
) -> Iterator[ValidationError]:
    if wanted == "date-time" and isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            yield ValidationError("no moment")
    if wanted in ("int32", "int64") and _is_larger(value, int(wanted[3:])):
        yield ValidationError("too large")


def _is_int64(
    validator: Any, wanted: bool, value: Any, schema: Schema
) -> Iterator[ValidationError]:
    if wanted and _is_larger(value, 64):
        yield ValidationError("too large")


def _is_larger(value: Any, bits: int) -> bool:
    """Whether a whole number does not fit into so many bits, its sign included."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and not -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def _matches(validator: Any, wanted: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Patterns of Go's kind: their `$` is the very end of a text."""
    if isinstance(value, str) and re.search(re.sub(r"(?<!\\)\$$", r"\\Z", wanted), value) is None:
        yield ValidationError("no match")


_Validator: Any = extend(
    Draft202012Validator,
    {
        LIST_TYPE: _is_set,
        MAP_KEYS: _is_map,
        "format": _has_format,
        "pattern": _matches,
        INT_OR_STRING: _is_int64,
    },
)
