"""`spec.quality`: what output quality is measured with."""

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from kvserving_operator.api.base import ApiModel, ObjectName


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
    `role` and `content`. Each must be longer than two blocks of the KV cache."""


class ServedQualitySpec(ApiModel):
    """How output quality is measured."""

    probe_set: ProbeSetReference | None = None
    """Prompts of your own; without it a built-in set of made-up conversations is used. A set that
    is missing or faulty holds trials, with the line and the field at fault."""
