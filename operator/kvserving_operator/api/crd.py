"""Writes the CustomResourceDefinitions, in `crds/` and in the chart, from the models.

python -m kvserving_operator.api.crd --write    # after a change of the models
python -m kvserving_operator.api.crd --check    # fails when a file differs from the models
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvserving_operator.api.generated import run
from kvserving_operator.api.metadata import ResourceModel
from kvserving_operator.api.schema import structural_schema
from kvserving_operator.api.v1alpha1 import (
    GROUP,
    VERSION,
    KVRollbackPolicy,
    KVServing,
    KVTrial,
)

_HEADER = "# Generated from the models by `python -m kvserving_operator.api.crd --write`.\n"
_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; `priority` 1 shows it only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def as_schema(self) -> dict[str, Any]:
        """Give the entry of `additionalPrinterColumns`."""
        entry: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.priority:
            entry["priority"] = self.priority
        return entry


def _condition(type: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{type}")].{part}'


_AGE = Column("AGE", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class Definition:
    """One custom resource: its model and how `kubectl` names and shows it."""

    model: type[ResourceModel]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scales: bool = False

    @property
    def kind(self) -> str:
        """Name of the kind, which is the model's."""
        return self.model.__name__

    @property
    def name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"

    def manifest(self) -> dict[str, Any]:
        """Give the CustomResourceDefinition."""
        subresources: dict[str, Any] = {"status": {}}
        if self.scales:
            subresources["scale"] = _SCALE
        version = {
            "name": VERSION,
            "served": True,
            "storage": True,
            "additionalPrinterColumns": [column.as_schema() for column in self.columns],
            "schema": {"openAPIV3Schema": structural_schema(self.model)},
            "subresources": subresources,
        }
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name},
            "spec": {
                "group": GROUP,
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short_name],
                    # Not `kvserving`: kubectl would take `get kvserving NAME` for the category.
                    "categories": ["kvserving-all"],
                },
                "scope": "Namespaced",
                "versions": [version],
            },
        }


DEFINITIONS = (
    Definition(
        model=KVServing,
        plural="kvservings",
        short_name="kvs",
        scales=True,
        columns=(
            Column("READY", _condition("Ready", "status")),
            Column("KV", ".status.effective.kvCacheDtype"),
            Column("SEQS", ".status.effective.maxActiveSeqs"),
            Column("MODE", ".spec.tuning.mode"),
            Column("GATE", _condition("QualityGate", "reason")),
            Column("REASON", ".status.reason"),
            Column("REPLICAS", ".status.readyReplicas", "integer", priority=1),
            Column("PROGRESS", _condition("Progressing", "reason"), priority=1),
            Column("METRICS", _condition("MetricsAvailable", "reason"), priority=1),
            Column("DECISION", ".status.lastDecision.reason", priority=1),
            Column("MODEL", ".spec.model.uri", priority=1),
            _AGE,
        ),
    ),
    Definition(
        model=KVRollbackPolicy,
        plural="kvrollbackpolicies",
        short_name="kvrp",
        columns=(
            Column("MAXDROP%", ".spec.quality.maxDropPercent", "integer"),
            Column("STEPS%", ".spec.ab.steps"),
            Column("APPROVAL", ".spec.ab.approval"),
            Column("ONSTALL", ".spec.ab.onStall"),
            Column("FALLBACK", ".spec.fallback.kvCacheDtype", priority=1),
            _AGE,
        ),
    ),
    Definition(
        model=KVTrial,
        plural="kvtrials",
        short_name="kvt",
        columns=(
            Column("SERVING", ".spec.servingRef.name"),
            Column("CHANGE", ".status.summary"),
            Column("STATE", ".status.state"),
            Column("STEP%", ".status.stepPercent", "integer"),
            Column("VERDICT", ".status.verdict"),
            Column("REASON", ".status.reason"),
            Column("BY", ".spec.requestedBy", priority=1),
            _AGE,
        ),
    ),
)


class _Dumper(yaml.SafeDumper):
    """Writes every value where it stands: anchors would hide the schema from a reader."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never use an anchor."""
        return True


def to_yaml(manifest: dict[str, Any]) -> str:
    """Give a manifest as YAML in the order it was built."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=100)


def _chart_template(text: str) -> str:
    """Give the chart's copy: behind a switch, and kept when the release goes."""
    keep = (
        "metadata:\n"
        "  {{- if .Values.crds.keep }}\n"
        "  annotations:\n"
        "    helm.sh/resource-policy: keep\n"
        "  {{- end }}\n"
    )
    body = text.replace("metadata:\n", keep, 1)
    return f"{{{{- if .Values.crds.install }}}}\n{body}{{{{- end }}}}\n"


def generated_files() -> dict[Path, str]:
    """Give path and content of every file that the models determine."""
    files: dict[Path, str] = {}
    for definition in DEFINITIONS:
        text = to_yaml(definition.manifest())
        files[Path("crds") / f"{GROUP}_{definition.plural}.yaml"] = _HEADER + text
        chart = Path("charts/kvserving/templates/crds")
        files[chart / f"{definition.plural}.yaml"] = _HEADER + _chart_template(text)
    return files


if __name__ == "__main__":
    sys.exit(run("CustomResourceDefinitions", generated_files))
