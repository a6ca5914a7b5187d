"""`spec.model`: which weights are served, and under which name."""

from typing import Annotated

from pydantic import StringConstraints

from kvserving_operator.api.base import ApiModel, matches
from kvserving_operator.api.rules import Checked, Rule

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
URI_PATTERN = (
    rf"^(hf://{_SEGMENT}/{_SEGMENT}"
    rf"|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/{_SEGMENT})*"
    rf"|file://(/{_SEGMENT})+)$"
)

ModelUri = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512),
    Checked(
        Rule(
            cel=f"self.matches(r'{URI_PATTERN}')",
            holds=lambda uri: matches(URI_PATTERN, uri),
            message="expected hf://organization/name, pvc://claim/folder or file:///folder, "
            'got "{self}"',
        )
    ),
]


class ModelSpec(ApiModel):
    """The model that is served."""

    rules = (
        Rule(
            cel="!has(self.revision) || self.uri.startsWith('hf://')",
            holds=lambda model: model.revision is None or model.uri.startswith("hf://"),
            message="applies only to a model from hf://; {self.uri} has no revisions",
            field="revision",
        ),
    )

    name: (
        Annotated[
            str,
            StringConstraints(
                min_length=1,
                max_length=253,
                pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$",
            ),
        ]
        | None
    ) = None
    """Name that clients send as `model`; the default is the resource's own name."""
    uri: ModelUri
    """Where the weights come from: `hf://organization/name` is downloaded by the engine,
    `pvc://claim/folder` is mounted read-only, `file:///folder` lies in the engine image."""
    revision: (
        Annotated[
            str,
            StringConstraints(
                min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
            ),
        ]
        | None
    ) = None
    """Branch, tag or commit of an `hf://` model; the default is the repository's main branch."""
