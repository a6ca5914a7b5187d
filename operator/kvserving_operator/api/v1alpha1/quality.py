"""`spec.quality`: what output quality is measured with."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from kvserving_operator.api.base import ApiModel, ObjectName, map_by, unique_by
from kvserving_operator.api.rules import Rule
from kvserving_tuner.probes.names import Probe


class ProbeSetKind(StrEnum):
    """Kind of the object that holds a probe set."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105


class ProbeSetReference(ApiModel):
    """A probe set in an object of the same namespace."""

    kind: ProbeSetKind = ProbeSetKind.CONFIG_MAP
    """Kind of the object; a Secret where the prompts are confidential."""
    name: ObjectName
    """Name of the object."""
    key: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    ] = "prompts.jsonl"
    """Key in its data: a JSON object a line with either `prompt`, a text, or `messages`, a list of
    `role` and `content`, and perhaps `reference`, a good answer, with its `metric`, chrF or BLEU.
    Each prompt must be longer than two blocks of the KV cache and than what eviction keeps."""


class QualityFloor(ApiModel):
    """Least mean grade of a task probe, whatever 16 bits would give."""

    rules = (
        Rule(
            cel="self.probe != 'Likelihood'",
            holds=lambda floor: floor.probe is not Probe.LIKELIHOOD,
            message="has no grade between 0 and 100: expected a task probe",
            field="probe",
        ),
    )

    probe: Probe
    """Task probe."""
    minimum_percent: Annotated[int, Field(ge=1, le=99)]
    """Least mean grade, in percent. A change is promoted once it is shown to be above, and rolled
    back once it is shown to be below."""


class ServedQualitySpec(ApiModel):
    """How output quality is measured."""

    probe_set: ProbeSetReference | None = None
    """Prompts of your own; without it a built-in set of made-up conversations is used. A set that
    is missing or faulty holds trials, with the line and the field at fault."""
    floors: Annotated[
        tuple[QualityFloor, ...], Field(max_length=8), map_by("probe"), unique_by("probe")
    ] = ()
    """Absolute limits. A probe with a floor is asked whatever the policy's `quality.probes` say."""
