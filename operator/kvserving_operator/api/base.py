"""Base model and field types that every custom resource shares.

Attributes are snake_case, the API's names are camelCase; models are frozen; unknown fields of a
spec are faults, unknown fields of a status (written by another operator version) are dropped.
"""

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kvserving_operator.api.plain import plain
from kvserving_operator.api.quantity import QUANTITY_PATTERN
from kvserving_operator.api.quantity import quantity_bytes as quantity_bytes
from kvserving_operator.api.rules import RULES_KEY, Checked, Rule, raise_faults


class ApiModel(BaseModel):
    """A part of a resource that a user writes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _follows_its_rules(self) -> Self:
        raise_faults(self.rules, self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Write the model's rules into its JSON schema."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema[RULES_KEY] = [rule.as_schema() for rule in cls.rules]
        return schema

    def to_api(self) -> dict[str, Any]:
        """Give the object as the Kubernetes API spells it, without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """A part of a resource that the operator writes."""

    model_config = ConfigDict(extra="ignore")


class _SchemaKeys:
    """Annotation that adds keys to the JSON schema and checks nothing."""

    def __init__(self, **keys: Any) -> None:
        self.keys = {name.replace("_", "-"): value for name, value in keys.items()}

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core_schema), **self.keys}


Atomic = _SchemaKeys(x_kubernetes_list_type="atomic")
AsSet = _SchemaKeys(x_kubernetes_list_type="set")
Opaque = _SchemaKeys(x_kubernetes_preserve_unknown_fields=True)


def map_by(*keys: str) -> _SchemaKeys:
    """Annotate a list whose entries are told apart by these fields."""
    return _SchemaKeys(x_kubernetes_list_type="map", x_kubernetes_list_map_keys=list(keys))


class _OfflineOnly(Checked):
    """Rules that the schema states by other means."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema)


def unique_by(attribute: str) -> Checked:
    """Check offline what the API server enforces through `listMapKeys`."""

    def holds(entries: Any) -> bool:
        values = [getattr(entry, attribute) for entry in entries]
        return len(values) == len(set(values))

    message = f"entries must differ in their {to_camel(attribute)}"
    return _OfflineOnly(Rule(cel="", holds=holds, message=message))


# What the API server enforces through the list type `set`.
Unique = _OfflineOnly(
    Rule(
        cel="",
        holds=lambda entries: len(set(entries)) == len(entries),
        message="entries must differ",
    )
)


def _quantity_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# A Kubernetes quantity, kept as the user spelled it.
Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    StringConstraints(pattern=QUANTITY_PATTERN, max_length=32),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]

# Name of an object in the same namespace.
ObjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
ImageName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512, pattern=r"^[a-z0-9][A-Za-z0-9._/:@-]*$"),
]
Text = Annotated[str, StringConstraints(max_length=1024), AfterValidator(plain)]
# A number as text, since the API has no floats.
DecimalText = Annotated[
    str, StringConstraints(max_length=32, pattern=r"^-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$")
]
CamelCaseText = Annotated[
    str, StringConstraints(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
]
# RFC 3339, in UTC and whole seconds.
Timestamp = Annotated[
    str, StringConstraints(max_length=64), WithJsonSchema({"type": "string", "format": "date-time"})
]
Generation = Annotated[int, Field(ge=0)]
Percent = Annotated[int, Field(ge=0, le=100)]
Seconds = Annotated[int, Field(ge=0, le=31_536_000)]
Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
Count = Annotated[int, Field(ge=0)]
SafeKey = Annotated[str, StringConstraints(max_length=317)]


def matches(pattern: str, text: str) -> bool:
    """Match as CEL's `matches` does: anywhere unless the pattern is anchored.

    Python's `$` would let a newline follow; CEL's is the very end.
    """
    if pattern.endswith("$"):
        pattern = rf"{pattern[:-1]}\Z"
    return re.search(pattern, text) is not None
