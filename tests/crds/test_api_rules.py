"""Rules of the Kubernetes API conventions, held against every node of the generated schemas."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

CAMEL_CASE = re.compile(r"^[A-Z][A-Za-z0-9]*$")
CAMEL_FIELD = re.compile(r"^[a-z][A-Za-z0-9]*$")
# Enums whose values are names of another system, in that system's spelling.
FOREIGN_ENUMS = re.compile(r"(\.kvCacheDtype|\.kvCache\.dtype|\.allowedDtypes\[\])$")
# Kubernetes' own fields, kept as users know them from a pod.
PASSED_ON = re.compile(r"^spec\.podTemplate\.")
# A number says its unit in its name, unless it counts the things it is named after.
UNITS = ("Milliseconds", "Seconds", "Percent", "BasisPoints", "Bytes", "Tokens", "Len")
COUNTS = {
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "maxNumSeqs",
    "maxActiveSeqs",
    "blockSize",
    "blocks",
    "quietBlocks",
    "probedBlocks",
    "requests",
    "tensor",
    "pipeline",
    "percentile",
    "minimum",
    "maximum",
    "maxSurge",
    "maxUnavailable",
    "observedGeneration",
    "specGeneration",
    "servingGeneration",
    "restarts",
    "minRequests",
    "minSamples",
    "maxSamples",
    "samples",
    "step",
    "steps[]",
}


class Node(NamedTuple):
    """A field of a schema and where it stands."""

    kind: str
    path: str
    schema: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


def _walk(kind: str, path: str, schema: dict[str, Any]) -> Iterator[Node]:
    yield Node(kind, path, schema)
    for name, child in schema.get("properties", {}).items():
        yield from _walk(kind, f"{path}.{name}" if path else name, child)
    if "items" in schema:
        yield from _walk(kind, f"{path}[]", schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _walk(kind, f"{path}{{}}", schema["additionalProperties"])


def _version(crd: dict[str, Any]) -> dict[str, Any]:
    version: dict[str, Any] = crd["spec"]["versions"][0]
    return version


@pytest.fixture(scope="session")
def nodes(crds: dict[str, Any]) -> list[Node]:
    found = []
    for kind, crd in crds.items():
        root = _version(crd)["schema"]["openAPIV3Schema"]
        for part in ("spec", "status"):
            found += list(_walk(kind, part, root["properties"][part]))
    return found


def _offenders(nodes: list[Node], wrong: Any) -> list[str]:
    return [str(node) for node in nodes if wrong(node)]


def _is_string(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" and "enum" not in schema


def test_there_are_schemas_to_check(nodes: list[Node]) -> None:
    assert {node.kind for node in nodes} == {"KVServing", "KVRollbackPolicy", "KVTrial"}
    assert len(nodes) > 200


def test_every_field_is_described_in_a_sentence(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        text = node.schema.get("description", "")
        named = not node.path.endswith(("[]", "{}"))
        return named and not (text.endswith(".") and text[0].isupper() and len(text) <= 400)

    assert not _offenders(nodes, wrong)


def test_no_floats(nodes: list[Node]) -> None:
    assert not _offenders(nodes, lambda node: node.schema.get("type") == "number")


def test_no_bare_booleans(nodes: list[Node]) -> None:
    assert not _offenders(nodes, lambda node: node.schema.get("type") == "boolean")


def test_integers_have_a_width_and_a_lower_bound(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        schema = node.schema
        bounded = "minimum" in schema or "enum" in schema
        return schema.get("type") == "integer" and not (
            schema.get("format") in ("int32", "int64") and bounded
        )

    assert not _offenders(nodes, wrong)


def test_numbers_of_a_spec_have_an_upper_bound(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        schema = node.schema
        generation = node.path.endswith("Generation")
        in_spec = node.path.startswith("spec") and schema.get("type") == "integer"
        return in_spec and not generation and not {"maximum", "enum"} & schema.keys()

    assert not _offenders(nodes, wrong)


def test_numbers_name_their_unit(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        name = node.path.rpartition(".")[2]
        is_number = node.schema.get("type") == "integer"
        return is_number and name not in COUNTS and not name.endswith(UNITS)

    assert not _offenders(nodes, wrong)


def test_strings_are_bounded(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        text = _is_string(node.schema) or node.schema.get("x-kubernetes-int-or-string")
        date = node.schema.get("format") == "date-time"
        return bool(text) and not date and "maxLength" not in node.schema

    assert not _offenders(nodes, wrong)


def test_lists_are_bounded_and_typed(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        schema = node.schema
        if schema.get("type") != "array":
            return False
        list_type = schema.get("x-kubernetes-list-type")
        keys = schema.get("x-kubernetes-list-map-keys", [])
        has_keys = (list_type == "map") == bool(keys)
        known = all(key in schema["items"].get("properties", {}) for key in keys)
        typed = list_type in ("atomic", "set", "map")
        return not (typed and has_keys and known and "maxItems" in schema)

    assert not _offenders(nodes, wrong)


def test_lists_of_objects_in_a_status_are_maps(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        schema = node.schema
        objects = schema.get("type") == "array" and schema["items"].get("type") == "object"
        in_status = node.path.startswith("status")
        return objects and in_status and schema["x-kubernetes-list-type"] != "map"

    assert not _offenders(nodes, wrong)


def test_maps_are_bounded(nodes: list[Node]) -> None:
    assert not _offenders(
        nodes,
        lambda node: "additionalProperties" in node.schema and "maxProperties" not in node.schema,
    )


def test_enums_are_camel_case(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        values = node.schema.get("enum", [])
        if FOREIGN_ENUMS.search(node.path) or node.schema.get("type") == "integer":
            return False
        return not all(CAMEL_CASE.match(value) for value in values)

    assert not _offenders(nodes, wrong)


def test_fields_are_camel_case_without_phase_and_duration(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        name = node.path.rpartition(".")[2].rstrip("[]{}")
        banned = name == "phase" or name.lower().endswith(("duration", "timeout", "interval"))
        return not CAMEL_FIELD.match(name) or banned

    assert not _offenders(nodes, wrong)


def test_unknown_fields_are_kept_only_where_kubernetes_types_pass_through(
    nodes: list[Node],
) -> None:
    kept = [node for node in nodes if "x-kubernetes-preserve-unknown-fields" in node.schema]
    assert kept
    assert not _offenders(kept, lambda node: not PASSED_ON.match(node.path))


def test_nothing_is_required_in_a_status_but_in_its_entries(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        return node.path == "status" and bool(node.schema.get("required"))

    assert not _offenders(nodes, wrong)


def test_a_default_is_a_value_that_the_field_allows(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        schema = node.schema
        if "default" not in schema:
            return False
        value = schema["default"]
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        inside = not isinstance(value, int) or low <= value <= high
        return not inside or ("enum" in schema and value not in schema["enum"])

    assert not _offenders(nodes, wrong)


def test_rules_say_what_to_do(nodes: list[Node]) -> None:
    def wrong(node: Node) -> bool:
        rules = node.schema.get("x-kubernetes-validations", [])
        return any(not (rule.get("message") or rule.get("messageExpression")) for rule in rules)

    assert any("x-kubernetes-validations" in node.schema for node in nodes)
    assert not _offenders(nodes, wrong)


def test_conditions_come_first_and_follow_the_convention(crds: dict[str, Any]) -> None:
    for crd in crds.values():
        status = _version(crd)["schema"]["openAPIV3Schema"]["properties"]["status"]
        assert next(iter(status["properties"])) == "conditions"
        conditions = status["properties"]["conditions"]
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]
        entry = conditions["items"]
        assert set(entry["required"]) == {"type", "status", "reason", "lastTransitionTime"}
        assert entry["properties"]["status"]["enum"] == ["True", "False", "Unknown"]
        assert entry["properties"]["lastTransitionTime"]["format"] == "date-time"
        assert "observedGeneration" in entry["properties"]
        assert "observedGeneration" in status["properties"]


def test_names_category_and_subresources(crds: dict[str, Any]) -> None:
    short = {kind: crd["spec"]["names"]["shortNames"] for kind, crd in crds.items()}
    assert short == {"KVServing": ["kvs"], "KVRollbackPolicy": ["kvrp"], "KVTrial": ["kvt"]}
    for kind, crd in crds.items():
        assert crd["spec"]["names"]["categories"] == ["kvserving-all"]
        assert crd["spec"]["names"]["singular"] not in crd["spec"]["names"]["categories"]
        assert crd["spec"]["scope"] == "Namespaced"
        subresources = _version(crd)["subresources"]
        assert set(subresources) == ({"status", "scale"} if kind == "KVServing" else {"status"})


def test_scale_paths_exist(crds: dict[str, Any]) -> None:
    version = _version(crds["KVServing"])
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    for path in version["subresources"]["scale"].values():
        part, field = path.removeprefix(".").split(".")
        assert field in properties[part]["properties"]


def test_columns_of_a_serving(crds: dict[str, Any]) -> None:
    columns = _version(crds["KVServing"])["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["READY", "KV", "SEQS", "MODE", "GATE", "REASON", "AGE"]


def test_columns_point_at_fields(crds: dict[str, Any]) -> None:
    for crd in crds.values():
        version = _version(crd)
        for column in version["additionalPrinterColumns"]:
            path = re.sub(r"\[\?\(.*?\)\]", "", column["jsonPath"]).removeprefix(".")
            if path.startswith("metadata"):
                continue
            schema = version["schema"]["openAPIV3Schema"]
            for part in path.split("."):
                schema = schema.get("items", schema)["properties"][part]
