"""The chart's values as a page of its README: from the schema and values.yaml, which Helm reads."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "kvserving"
README = CHART / "README.md"
FREE = ("settings",)
"""Objects whose entries have no default in values.yaml: the operator's own defaults hold."""

HEAD = """\
# Values of the chart

Written by `make generate` from `values.schema.json` and `values.yaml`. Helm refuses other names.
How to install, upgrade and uninstall stands in [docs/operations.md](../../docs/operations.md), and
what the operator may do in the cluster in [SECURITY.md](../../SECURITY.md).

| value | default | meaning |
|---|---|---|
"""


def rows(
    properties: Mapping[str, Any], values: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of every value, depth first, in the schema's order."""
    for name, child in properties.items():
        if path == "" and name == "global":
            continue
        full = f"{path}{name}"
        if "properties" in child and name not in FREE:
            yield from rows(child["properties"], values[name], f"{full}.")
        elif name in FREE:
            for each, setting in child["properties"].items():
                meaning, _, default = setting["description"].rpartition(" Default: ")
                yield f"{full}.{each}", default.removesuffix("."), meaning
        else:
            yield full, json.dumps(values[name]), child["description"]


def page() -> str:
    """The README."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = (
        f"| `{name}` | `{default}` | {meaning} |\n"
        for name, default, meaning in rows(schema["properties"], values)
    )
    return HEAD + "".join(lines)
