"""From what the Kubernetes API delivers to typed resources, with faults that a user can act on."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvserving_operator.api.base import StatusModel
from kvserving_operator.api.errors import FieldError, SpecError
from kvserving_operator.api.metadata import ResourceModel
from kvserving_operator.api.partial import merged
from kvserving_operator.api.v1alpha1.policy import (
    KVRollbackPolicy,
    KVRollbackPolicySpec,
    PolicyOverrides,
)
from kvserving_operator.api.v1alpha1.serving import KVServing
from kvserving_operator.api.v1alpha1.trial import KVTrial

ResourceT = TypeVar("ResourceT", bound=ResourceModel)

_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
}


def parse_serving(body: Mapping[str, Any]) -> KVServing:
    """Give a KVServing, or raise SpecError with every fault of its spec."""
    return _parse(KVServing, body)


def parse_policy(body: Mapping[str, Any]) -> KVRollbackPolicy:
    """Give a KVRollbackPolicy, or raise SpecError with every fault of its spec."""
    return _parse(KVRollbackPolicy, body)


def parse_trial(body: Mapping[str, Any]) -> KVTrial:
    """Give a KVTrial, or raise SpecError with every fault of its spec."""
    return _parse(KVTrial, body)


def overridden(
    policy: KVRollbackPolicySpec, overrides: PolicyOverrides | None
) -> KVRollbackPolicySpec:
    """Give a policy with what one KVServing wants otherwise.

    Raises SpecError where the two do not go together.
    """
    if overrides is None:
        return policy
    together = merged(policy.to_api(), overrides.to_api())
    try:
        return KVRollbackPolicySpec.model_validate_json(json.dumps(together), strict=True)
    except ValidationError as error:
        raise SpecError(_faults(error)) from error


PARSERS: dict[str, Callable[[Mapping[str, Any]], ResourceModel]] = {
    "KVServing": parse_serving,
    "KVRollbackPolicy": parse_policy,
    "KVTrial": parse_trial,
}
"""Parser of each kind."""


def _parse(model: type[ResourceT], body: Mapping[str, Any]) -> ResourceT:
    wanted = _without_nulls(body)
    status = wanted.pop("status", None)
    try:
        # JSON mode: strict about types, as the API server is, yet lists become tuples.
        resource = model.model_validate_json(json.dumps(wanted), strict=True)
    except ValidationError as error:
        raise SpecError(_faults(error)) from error
    return resource.model_copy(update={"status": _parse_status(model, status)})


def _parse_status(model: type[ResourceModel], status: Any) -> StatusModel:
    """Give the status; one that no longer parses counts as lost, which only returns to spec."""
    status_model: type[StatusModel] = model.model_fields["status"].annotation  # type: ignore[assignment]
    try:
        return status_model.model_validate_json(json.dumps(status or {}), strict=True)
    except ValidationError:
        return status_model()


def _without_nulls(value: Any) -> Any:
    """Give plain JSON data without null fields, which the API server drops as well."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(item) for item in value]
    return value


def _faults(error: ValidationError) -> list[FieldError]:
    found = error.errors(include_url=False)
    paths = [_path(details["loc"]) for details in found]
    faults: list[FieldError] = []
    for path, details in zip(paths, found, strict=True):
        # A list whose entries are all faulty is not too short as well.
        if details["type"] == "too_short" and any(p.startswith(f"{path}[") for p in paths):
            continue
        if details["type"] == "rule":
            nested: tuple[FieldError, ...] = details["ctx"]["faults"]
            faults += [FieldError(_join(path, fault.path), fault.message) for fault in nested]
        else:
            faults.append(FieldError(path, _message(details)))
    return faults


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path = f"{path}[{part}]" if isinstance(part, int) else _join(path, part)
    return path


def _join(path: str, rest: str) -> str:
    return f"{path}.{rest}" if path and rest else path or rest


def _message(details: ErrorDetails) -> str:
    kind = details["type"]
    value = details["input"]
    context = details.get("ctx", {})
    if kind in ("enum", "literal_error"):
        wanted = str(context["expected"]).replace(" or ", ", ").replace("'", "")
        return f"expected one of {wanted}, got {_shown(value)}{_hint(value, wanted)}"
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "no such field"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(value)}"
    if kind == "string_pattern_mismatch":
        return f"expected text that matches {context['pattern']}, got {_shown(value)}"
    if kind in ("too_short", "too_long"):
        bound = context.get("min_length", context.get("max_length"))
        word = "at least" if kind == "too_short" else "at most"
        return f"expected {word} {bound} entries, got {context['actual_length']}"
    text = details["msg"].removeprefix("Input ").removeprefix("String ")
    return f"{text}, got {_shown(value)}"


def _hint(value: Any, wanted: str) -> str:
    """Explain the YAML trap that turns a bare Off into false."""
    if value is False and "Off" in wanted:
        return ' (YAML reads a bare Off as false: write "Off")'
    return ""


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 128 else f"{text[:127]}…"
