"""Condition values and their merge, after the Kubernetes API conventions.

Pure: the caller gives the time. A transition time moves only when the status changes, and a
message is cut rather than refused.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from kvserving_operator.api.base import Generation, StatusModel, Timestamp
from kvserving_operator.api.plain import plain
from kvserving_operator.api.reasons import ConditionType, Reason

MESSAGE_LIMIT = 1024


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One aspect of the resource's state."""

    type: Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Aspect that the condition describes; unique in the list."""
    status: ConditionStatus
    """Whether the aspect holds."""
    reason: Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Machine-readable cause of the status."""
    message: Annotated[str, StringConstraints(max_length=MESSAGE_LIMIT), AfterValidator(plain)] = ""
    """One sentence for people, with the numbers behind the status."""
    last_transition_time: Timestamp
    """When the status last changed, RFC 3339."""
    observed_generation: Generation = 0
    """Generation of the spec that the condition was computed from."""


def timestamp(now: datetime) -> str:
    """Give a moment as the API writes it: UTC, whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: Sequence[Condition],
    type: ConditionType,
    status: ConditionStatus | bool | None,
    reason: Reason,
    message: str,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Give the conditions with one of them set, in unchanged order; `None` means unknown."""
    wanted = _status(status)
    old = find_condition(conditions, type)
    kept = old is not None and old.status == wanted
    new = Condition(
        type=type.value,
        status=wanted,
        reason=reason.value,
        message=_cut(message),
        last_transition_time=old.last_transition_time if old and kept else timestamp(now),
        observed_generation=generation,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if condition.type == type else condition for condition in conditions)


def find_condition(conditions: Sequence[Condition], type: ConditionType) -> Condition | None:
    """Give the condition of a type, if it was ever set."""
    return next((condition for condition in conditions if condition.type == type), None)


def is_true(conditions: Sequence[Condition], type: ConditionType) -> bool:
    """Whether a condition is present and true."""
    condition = find_condition(conditions, type)
    return condition is not None and condition.status is ConditionStatus.TRUE


def _status(status: ConditionStatus | bool | None) -> ConditionStatus:
    if isinstance(status, ConditionStatus):
        return status
    if status is None:
        return ConditionStatus.UNKNOWN
    return ConditionStatus.TRUE if status else ConditionStatus.FALSE


def _cut(message: str) -> str:
    if len(message) <= MESSAGE_LIMIT:
        return message
    return message[: MESSAGE_LIMIT - 1] + "…"
