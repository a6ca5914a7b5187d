"""A CRD's CEL rules, evaluated as the API server does: by the C++ library of CEL's own project.

Of what Kubernetes adds to CEL, the functions that the rules use are here; a rule that needs another
fails to compile, and a test compiles all of them.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from kvserving_kubectl.validation.documents import Place
from kvserving_operator.api.quantity import quantity_value
from kvserving_operator.api.rules import RULES_KEY

OLD = "oldSelf"
"""Rules over a change need the former object, which only the server knows."""


def broken(value: Any, schema: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Rules of a schema that a value with its defaults breaks: the place, and the rule's words."""
    for rule in schema.get(RULES_KEY) or ():
        if OLD in rule["rule"] or _evaluated(rule["rule"], value) is True:
            continue
        field = tuple(part for part in rule.get("fieldPath", "").split(".") if part)
        yield (*place, *field), _message(rule, value)
    if isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        for name, item in value.items():
            child = properties.get(name, others if isinstance(others, Mapping) else None)
            if child is not None:
                yield from broken(item, child, (*place, name))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from broken(item, schema["items"], (*place, index))


def compiled(rule: str) -> Any:
    """A rule or a message as a program; RuntimeError where it is no CEL that is known here."""
    return _compiled(rule)


@cache
def _compiled(rule: str) -> Any:
    return _environment().compile(rule)


def _evaluated(rule: str, value: Any) -> Any:
    """What a rule gives; one that ends in an error is not kept, as on the server."""
    return _compiled(rule).eval(data={"self": value}).plain_value()


def _message(rule: Mapping[str, Any], value: Any) -> str:
    expression = rule.get("messageExpression")
    if expression:
        said = _evaluated(expression, value)
        if isinstance(said, str) and said and "\n" not in said:
            return said
    return str(rule["message"])


@cache
def _environment() -> Any:
    kinds = cel.Type
    functions = [
        cel.FunctionDecl(
            "isSorted",
            [cel.Overload("list_is_sorted", kinds.BOOL, [kinds.DYN], True, _is_sorted)],
        ),
        cel.FunctionDecl(
            "isQuantity",
            [cel.Overload("is_quantity", kinds.BOOL, [kinds.STRING], False, _is_quantity)],
        ),
        cel.FunctionDecl(
            "quantity",
            [cel.Overload("string_to_quantity", kinds.STRING, [kinds.STRING], False, _quantity)],
        ),
        cel.FunctionDecl(
            "compareTo",
            [
                cel.Overload(
                    "quantity_compare", kinds.INT, [kinds.STRING, kinds.STRING], True, _compared
                )
            ],
        ),
    ]
    return cel.NewEnv(
        variables={"self": kinds.DYN},
        extensions=[cel.CelExtension("kubernetes", functions), ext_strings.ExtStrings()],
    )


def _is_sorted(values: Any) -> bool:
    plain = [each.plain_value() if hasattr(each, "plain_value") else each for each in values]
    return plain == sorted(plain)


def _is_quantity(text: str) -> bool:
    try:
        quantity_value(text)
    except ValueError:
        return False
    return True


def _quantity(text: str) -> str:
    """A quantity stays a text; what is none is an error, as it is on the server."""
    quantity_value(text)
    return text


def _compared(one: str, other: str) -> int:
    left, right = quantity_value(one), quantity_value(other)
    return (left > right) - (left < right)
