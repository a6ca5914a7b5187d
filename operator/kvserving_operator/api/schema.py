"""From a model to a structural schema, the subset of OpenAPI that custom resources accept.

References are put in place, `null` alternatives go (unset means absent), titles go, integers get
a format, and keys come in a fixed order so that the generated files only change with the models.
"""

from collections.abc import Mapping
from typing import Any

from kvserving_operator.api.metadata import ResourceModel

_INT32_MAX = 2**31 - 1
_KEY_ORDER = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "items",
    "properties",
    "required",
    "additionalProperties",
    "anyOf",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
)
_NO_DEFAULTS: tuple[Any, ...] = (None, [], "")


def structural_schema(model: type[ResourceModel]) -> dict[str, Any]:
    """Give the `openAPIV3Schema` of a resource."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    schema = _convert(raw, raw.get("$defs", {}))
    properties = schema["properties"]
    # The API server owns the schema of metadata and fills in version and kind.
    properties["metadata"] = {"type": "object"}
    for field in ("apiVersion", "kind", "status"):
        properties[field].pop("default", None)
    schema["properties"] = {
        name: properties[name] for name in ("apiVersion", "kind", "metadata", "spec", "status")
    }
    schema["required"] = ["spec"]
    return schema


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    schema = _resolve(_without_null(_resolve(node, definitions)), definitions)
    schema.pop("title", None)
    schema.pop("$defs", None)
    # Structural schemas know no rule for the names of a map; the server limits the whole request.
    schema.pop("propertyNames", None)
    if schema.get("default", ()) in _NO_DEFAULTS:
        schema.pop("default", None)
    elif "default" in schema:
        schema["default"] = _without_nulls(schema["default"])
    if schema.get("additionalProperties") in (True, False):
        schema.pop("additionalProperties")
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if "enum" in schema and "type" not in schema:
        schema["type"] = "integer" if isinstance(schema["enum"][0], int) else "string"
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if schema.get("type") == "integer":
        schema["format"] = (
            "int32" if schema.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
        )
    if "properties" in schema:
        schema["properties"] = {
            name: _convert(child, definitions) for name, child in schema["properties"].items()
        }
        if schema.get("default") == {}:
            schema["default"] = _filled(schema["properties"])
    for key in ("items", "additionalProperties"):
        if key in schema:
            schema[key] = _convert(schema[key], definitions)
    unknown = set(schema) - set(_KEY_ORDER)
    if unknown:
        raise TypeError(f"expected keys of a structural schema, got {sorted(unknown)} in {schema}")
    return {key: schema[key] for key in _KEY_ORDER if key in schema}


def _filled(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Give the default of a section: rules are evaluated on it before nested defaults apply."""
    return {name: child["default"] for name, child in properties.items() if "default" in child}


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Put a reference's target in place; what stands beside the reference wins."""
    schema = dict(node)
    while "$ref" in schema:
        target = definitions[schema.pop("$ref").rpartition("/")[2]]
        schema = {**target, **schema}
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop the `null` alternative of an optional field and lift what remains."""
    alternatives = schema.get("anyOf", [])
    kept = [alternative for alternative in alternatives if alternative.get("type") != "null"]
    if len(kept) == len(alternatives):
        return schema
    if len(kept) != 1:
        raise TypeError(f"expected one alternative beside null, got {kept}")
    outer = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**kept[0], **outer}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
