"""Cross-field rules, declared once beside a model and enforced twice.

The API server evaluates a rule's CEL expression; the models evaluate its Python twin, so that a
manifest can be checked without a cluster. Both print the same message, built from one template.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from kvserving_operator.api.errors import FieldError

RULES_KEY = "x-kubernetes-validations"
_PLACEHOLDER = re.compile(r"\{self([A-Za-z0-9_.]*)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule over a value.

    `message` may hold placeholders such as `{self.maxNumSeqs}`, which name fields in API spelling.
    `message_cel` and `message_python` replace the template where the text needs more than that.
    """

    cel: str
    holds: Callable[[Any], bool]
    message: str
    field: str = ""
    message_cel: str = ""
    message_python: Callable[[Any], str] | None = None

    def as_schema(self) -> dict[str, Any]:
        """Give the rule as an entry of `x-kubernetes-validations`."""
        entry: dict[str, Any] = {"rule": self.cel}
        expression = self.message_cel or _cel_message(self.message)
        if expression:
            entry["messageExpression"] = expression
        # What the API server says where the expression gives no single line.
        entry["message"] = _PLACEHOLDER.sub(
            lambda match: f"{{{match[1].rpartition('.')[2] or 'value'}}}", self.message
        )
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry

    def fault(self, value: Any) -> FieldError | None:
        """Give the fault when `value` breaks the rule."""
        if self.holds(value):
            return None
        if self.message_python is not None:
            return FieldError(self.field, self.message_python(value))
        text = _PLACEHOLDER.sub(lambda match: str(_resolve(value, match[1])), self.message)
        return FieldError(self.field, text)


def _cel_message(template: str) -> str:
    """Turn a template into a CEL string expression, or nothing when it has no placeholder."""
    values = [f"self{path}" for path in _PLACEHOLDER.findall(template)]
    if not values:
        return ""
    # Joining with `+` would do, but the API server estimates its cost beyond every limit.
    text = _PLACEHOLDER.sub("%s", template.replace("%", "%%"))
    return f"{cel_string(text)}.format([{', '.join(values)}])"


def cel_string(text: str) -> str:
    """Quote text as a CEL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _resolve(value: Any, path: str) -> Any:
    """Follow a dotted path in API spelling through models."""
    for part in filter(None, path.split(".")):
        value = getattr(value, to_snake(part))
    return value


def raise_faults(rules: tuple[Rule, ...], value: Any) -> None:
    """Raise one pydantic error that carries every broken rule."""
    faults = [fault for rule in rules if (fault := rule.fault(value)) is not None]
    if faults:
        raise PydanticCustomError(
            "rule",
            "{summary}",
            {"summary": "; ".join(map(str, faults)), "faults": tuple(faults)},
        )


class Checked:
    """Annotation that attaches rules to a scalar or list type."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Run the Python twins after the type's own validation."""

        def check(value: Any) -> Any:
            raise_faults(self.rules, value)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Write the CEL expressions into the JSON schema."""
        json_schema = handler(schema)
        entries = [rule.as_schema() for rule in self.rules]
        return {**json_schema, RULES_KEY: [*json_schema.get(RULES_KEY, []), *entries]}
