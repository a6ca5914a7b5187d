"""Manifests that have to be accepted or refused, offline and by an API server alike."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).parents[2] / "tests/crds/cases"


@dataclass(frozen=True)
class Case:
    """A manifest and what is said about it."""

    name: str
    kind: str
    """Name of the file that it is in."""
    manifest: dict[str, Any]
    field: str = ""
    offline: tuple[str, ...] = ()
    server: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Name among all cases."""
        return f"{self.kind}: {self.name}"


def cases(verdict: str) -> list[Case]:
    """Every case with this verdict, `accept` or `reject`."""
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        table = yaml.safe_load(path.read_text())
        for entry in table[verdict]:
            says = tuple(entry.get("says", ()))
            case = Case(
                name=entry["name"],
                kind=path.stem,
                manifest=_changed(table["base"], entry.get("set", {})),
                field=entry.get("field", ""),
                offline=says + tuple(entry.get("offline", ())),
                server=says + tuple(entry.get("server", ())),
            )
            found.append(case)
    return found


def _changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    manifest = copy.deepcopy(dict(base))
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = manifest
        for part in parents:
            node = node.setdefault(part, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return manifest
