"""What the operator has to remember of a KVServing across its own restarts, in one ConfigMap.

Losing it is harmless: pods stay as they are, promoted values end, the tuner starts with no
cooldowns.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvserving_operator.kinds import Kind, Object
from kvserving_operator.live import Refusal
from kvserving_operator.render.names import (
    BASE_ANNOTATION,
    CONTENTS_ANNOTATION,
    IMAGE_ANNOTATION,
    INPUTS_ANNOTATION,
    REVISION_LABEL,
    ServingRef,
)
from kvserving_operator.revisions import Candidates, Revision, RevisionState
from kvserving_operator.traffic.state import TrafficState
from kvserving_operator.trials.record import Trials
from kvserving_tuner.state import TunerState

REVISIONS_KEY = "revisions.json"
TUNING_KEY = "tuning.json"

PASSING_FIELDS: Any = {
    **dict.fromkeys(
        ("agreeing", "agreeing_count", "agreeing_at", "due", "samples", "account"), True
    ),
    "loads": {
        **dict.fromkeys(("drifts", "gathered", "gathered_windows", "fed_at"), True),
        "regimes": {"__all__": {"load", "windows", "seen_at"}},
    },
}
"""Parts of the tuner's state that every observation or window moves, and that are rebuilt in
minutes: not worth a write."""


class Memory(BaseModel):
    """Templates, the tuner's state, and which values of the spec the promoted ones stand in for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    revisions: RevisionState = RevisionState()
    tuner: TunerState = TunerState()
    basis: Mapping[str, str] = Field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    """Engines that could not take the settings asked for, so that they are not asked again and
    again: an attempt has their requests computed anew."""
    trials: Trials = Trials()
    traffic: TrafficState = TrafficState()

    def worth_storing(self, stored: Self) -> bool:
        """Whether it differs from what is stored in more than passing fields."""

        def lasting(memory: Memory) -> Any:
            tuner = memory.tuner.model_dump(exclude=PASSING_FIELDS)
            refusals, trials = memory.refusals, memory.trials.lasting()
            traffic = memory.traffic.lasting()
            return memory.revisions, tuner, dict(memory.basis), refusals, trials, traffic

        return bool(lasting(self) != lasting(stored))

    def manifest(self, ref: ServingRef) -> dict[str, Any]:
        """ConfigMap that holds it."""
        tuning = self.model_dump_json(exclude={"revisions"})
        return {
            "apiVersion": Kind.ConfigMap.api_version,
            "kind": Kind.ConfigMap.name,
            "metadata": ref.metadata(ref.state_configmap),
            "data": {REVISIONS_KEY: self.revisions.model_dump_json(), TUNING_KEY: tuning},
        }


def recall(
    configmap: Object | None, deployment: Object | None, candidates: Object | None = None
) -> Memory:
    """Read the memory; where the templates are lost, what the Deployment runs is taken as given.

    `candidates` is the Deployment of a trial's own pods: they leave once others serve.
    """
    data = (configmap or {}).get("data") or {}
    try:
        memory = Memory.model_validate_json(data.get(TUNING_KEY) or "{}")
    except ValidationError:
        memory = Memory()
    try:
        revisions = RevisionState.model_validate_json(data.get(REVISIONS_KEY) or "{}")
    except ValidationError:
        # Written by hand or by an operator with another layout: the Deployment still tells.
        revisions = RevisionState()
    if revisions.current is None and deployment is not None:
        revisions = _adopt(deployment)
    if revisions.candidates is None and candidates is not None:
        found = _adopt(candidates).current
        if found is not None:
            apart = Candidates(revision=found, pods=int(candidates["spec"].get("replicas", 1)))
            revisions = revisions.model_copy(update={"candidates": apart})
    return memory.model_copy(update={"revisions": revisions})


def _adopt(deployment: Object) -> RevisionState:
    annotations = deployment["metadata"].get("annotations") or {}
    template = deployment["spec"]["template"]
    metadata = template.get("metadata") or {}
    labels = metadata.get("labels") or {}
    if INPUTS_ANNOTATION not in annotations or REVISION_LABEL not in labels:
        return RevisionState()
    containers = template["spec"]["containers"]
    limits = [((c.get("resources") or {}).get("limits") or {}) for c in containers]
    revision = Revision(
        inputs_hash=annotations[INPUTS_ANNOTATION],
        base_hash=annotations.get(BASE_ANNOTATION, ""),
        accelerator="NVIDIA" if any("nvidia.com/gpu" in limit for limit in limits) else "CPU",
        image=annotations.get(IMAGE_ANNOTATION, containers[0]["image"]),
        template={
            "metadata": {k: metadata[k] for k in ("labels", "annotations") if metadata.get(k)},
            "spec": template["spec"],
        },
        since=0.0,
        contents=_contents(annotations.get(CONTENTS_ANNOTATION)),
    )
    return RevisionState(current=revision, good=revision)


def _contents(text: str | None) -> dict[str, str] | None:
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {str(field): str(value) for field, value in found.items()}
