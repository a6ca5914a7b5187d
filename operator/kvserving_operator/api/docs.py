"""Writes the API reference from the models, so that it cannot say anything else than they do.

python -m kvserving_operator.api.docs --write
python -m kvserving_operator.api.docs --check
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvserving_operator.api.crd import DEFINITIONS, Definition
from kvserving_operator.api.generated import run
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_operator.api.v1alpha1 import API_VERSION
from kvserving_operator.api.v1alpha1.engine_args import OWNED_FLAGS
from kvserving_tuner import decision

_INTRODUCTION = f"""\
# API reference

Version `{API_VERSION}`. Generated from the models by
`python -m kvserving_operator.api.docs --write`;
the API server enforces every rule of it when a manifest is applied.

"""


def _rows(path: str, schema: dict[str, Any], required: bool) -> Iterator[str]:
    """Give a table row for a field and for everything below it."""
    for name, child in schema.get("properties", {}).items():
        child_path = f"{path}.{name}"
        must = name in schema.get("required", [])
        yield _row(child_path, child, must)
        yield from _rows(child_path, child, must)
        items = child.get("items", {})
        if "properties" in items:
            yield from _rows(f"{child_path}[]", items, required)


def _row(path: str, schema: dict[str, Any], required: bool) -> str:
    cells = (f"`{path}`", _type(schema), _default(schema, required), schema["description"])
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in schema else "number or text"
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}{_bounds(schema, 'Items', ' entries')}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    if schema.get("type") == "integer":
        return f"integer{_bounds(schema, 'imum', '')}"
    if schema.get("format") == "date-time":
        return "time"
    return str(schema.get("type", "any"))


def _bounds(schema: dict[str, Any], suffix: str, unit: str) -> str:
    low, high = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if low is not None and high is not None:
        return f" ({low} to {high}{unit})"
    if high is not None:
        return f" (at most {high}{unit})"
    return "" if low is None else f" (at least {low}{unit})"


def _default(schema: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in schema or isinstance(schema["default"], (dict, list)):
        return ""
    return f"`{schema['default']}`"


def _rules(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """Give a line for each rule of a field and of everything below it."""
    for rule in schema.get("x-kubernetes-validations", []):
        where = f"{path}{rule.get('fieldPath', '')}"
        yield f"- `{where}`: {rule['message']}" if where else f"- {rule['message']}"
    for name, child in schema.get("properties", {}).items():
        yield from _rules(f"{path}.{name}" if path else name, child)
    if "items" in schema:
        yield from _rules(f"{path}[]", schema["items"])


def _resource(definition: Definition) -> str:
    version = definition.manifest()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"## {definition.kind}",
        "",
        f"{schema['description']} Short name `{definition.short_name}`; columns of `kubectl get`: "
        + ", ".join(column.name for column in definition.columns if not column.priority)
        + ".",
    ]
    for part in ("spec", "status"):
        child = schema["properties"][part]
        lines += ["", f"### {definition.kind} {part}", ""]
        lines += ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
        lines += _rows(part, child, required=True)
    lines += ["", f"### Rules of {definition.kind}", "", *_rules("", schema)]
    return "\n".join(lines) + "\n"


def _reasons() -> str:
    lines = ["## Conditions and reasons", "", "| Condition | Meaning |", "|---|---|"]
    lines += [f"| `{member.value}` | {member.sentence} |" for member in ConditionType]
    lines += ["", "| Reason of a condition or an Event | Meaning |", "|---|---|"]
    lines += [f"| `{member.value}` | {member.sentence} |" for member in Reason]
    return "\n".join(lines) + "\n"


def sentences(enum: type[StrEnum]) -> Mapping[str, str]:
    """Give each value of an enum with the docstring below its member."""
    (definition,) = ast.parse(inspect.getsource(enum)).body
    if not isinstance(definition, ast.ClassDef):
        raise TypeError(f"expected the source of a class, got {enum!r}")
    found = {}
    for member, below in pairwise(definition.body):
        match member, below:
            case (
                ast.Assign(value=ast.Constant(value=str(value))),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[value] = " ".join(text.split())
    return found


def _decisions() -> str:
    lines = [
        "",
        "## Decisions",
        "",
        "`status.lastDecision`, Events and audit lines name a diagnosis, an action and a reason.",
        "An Event begins with `diagnosis/reason`, or with one of them where both are the same.",
    ]
    for title, enum in (
        ("Diagnosis", decision.DiagnosisKind),
        ("Action", decision.Action),
        ("Reason of a decision", decision.Reason),
    ):
        lines += ["", f"| {title} | Meaning |", "|---|---|"]
        lines += [f"| `{value}` | {text} |" for value, text in sentences(enum).items()]
    return "\n".join(lines) + "\n"


def _flags() -> str:
    lines = ["## Flags that `extraArgs` refuses", ""]
    lines += ["Abbreviations and underscores count as well.", ""]
    lines += ["| Flag | Belongs to |", "|---|---|"]
    lines += [f"| `{flag}` | {owner} |" for flag, owner in OWNED_FLAGS.items()]
    return "\n".join(lines) + "\n\n"


def generated_files() -> dict[Path, str]:
    """Give path and content of the reference."""
    parts = [_INTRODUCTION, *(_resource(definition) + "\n" for definition in DEFINITIONS)]
    return {Path("docs/api.md"): "".join(parts) + _flags() + _reasons() + _decisions()}


if __name__ == "__main__":
    sys.exit(run("the API reference", generated_files))
