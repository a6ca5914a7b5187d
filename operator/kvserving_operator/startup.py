"""Start-up settings that decide about what engines answer; pure.

Under a rollback policy an edit of one of them is tried before every pod has it. All others, such as
resources or the room of the scheduler, roll out once their check pod has passed
(docs/decisions/0037).
"""

from collections.abc import Mapping

from kvserving_operator.api.v1alpha1 import KVServingSpec
from kvserving_operator.hashing import content_hash

NAME = "model.name"
BLOCK_SIZE = "engine.blockSize"
ENVIRONMENT = "podTemplate.env"
SHOWN_CHARACTERS = 120
"""Most of one value that is shown: a list of flags may be long."""


def contents(spec: KVServingSpec, image: str) -> dict[str, str]:
    """Settings of a spec by field; `image` is the one that its engines have."""
    engine = spec.engine
    values = {
        NAME: spec.model.name,
        "model.uri": spec.model.uri,
        "model.revision": spec.model.revision,
        "engine.image": image,
        "engine.version": engine.version,
        "engine.accelerator": engine.accelerator.value,
        "engine.weightQuantization": engine.weight_quantization,
        "engine.extraArgs": " ".join(engine.extra_args),
        BLOCK_SIZE: engine.block_size,
        # Values may be secrets, and what is kept here is shown.
        ENVIRONMENT: _hash(spec),
    }
    return {field: str(value) for field, value in values.items() if value}


def differing(
    before: Mapping[str, str], after: Mapping[str, str], *, plain: bool
) -> tuple[str, ...]:
    """Fields in which two templates differ.

    None for clients who have to ask for another name: both cannot serve them side by side. With
    `plain` engines keep every token in 16 bits, where the size of a block changes nothing.
    """
    if before.get(NAME) != after.get(NAME):
        return ()
    fields = (*before, *(field for field in after if field not in before))
    return tuple(
        field
        for field in fields
        if before.get(field) != after.get(field) and not (plain and field == BLOCK_SIZE)
    )


def described(before: Mapping[str, str], after: Mapping[str, str], fields: tuple[str, ...]) -> str:
    """The change in words."""
    return "; ".join(_described(field, before, after) for field in fields)


def key(found: Mapping[str, str]) -> str:
    """Names these settings."""
    return content_hash(dict(found))


def _described(field: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if field == ENVIRONMENT:
        return f"{field} other variables"
    return f"{field} {_shown(before.get(field))} -> {_shown(after.get(field))}"


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    return value if len(value) <= SHOWN_CHARACTERS else f"...{value[-SHOWN_CHARACTERS:]}"


def _hash(spec: KVServingSpec) -> str:
    entries = [each.model_dump(mode="json", exclude_none=True) for each in spec.pod_template.env]
    return content_hash({"env": entries}) if entries else ""
