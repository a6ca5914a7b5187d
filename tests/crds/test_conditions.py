"""Conditions are merged as the API conventions want it, and every reason is explained."""

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.api.conditions import (
    MESSAGE_LIMIT,
    Condition,
    ConditionStatus,
    find_condition,
    is_true,
    set_condition,
    timestamp,
)
from kvserving_operator.api.docs import sentences
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_operator.checks import SKIPPED
from kvserving_tuner import decision

NOON = datetime(2026, 1, 2, 12, 0, 0, 999_000, tzinfo=UTC)
STATUSES = st.sampled_from([*ConditionStatus, True, False, None])


def _ready(status: bool | None, now: datetime, message: str = "m") -> tuple[Condition, ...]:
    return set_condition((), ConditionType.READY, status, Reason.SERVING, message, 1, now)


def test_a_new_condition_is_appended() -> None:
    conditions = _ready(True, NOON)
    conditions = set_condition(
        conditions, ConditionType.DEGRADED, False, Reason.AS_EXPECTED, "", 1, NOON
    )
    assert [condition.type for condition in conditions] == ["Ready", "Degraded"]
    assert conditions[0].to_api() == {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "m",
        "lastTransitionTime": "2026-01-02T12:00:00Z",
        "observedGeneration": 1,
    }


def test_the_transition_time_moves_with_the_status_alone() -> None:
    later = NOON + timedelta(hours=1)
    conditions = set_condition(
        _ready(True, NOON), ConditionType.READY, True, Reason.PARTIALLY_READY, "n", 2, later
    )
    (ready,) = conditions
    assert (ready.reason, ready.message, ready.observed_generation) == ("PartiallyReady", "n", 2)
    assert ready.last_transition_time == timestamp(NOON)
    (ready,) = set_condition(conditions, ConditionType.READY, None, Reason.STARTING, "", 2, later)
    assert (ready.status, ready.last_transition_time) == ("Unknown", timestamp(later))


def test_a_long_message_is_cut() -> None:
    (ready,) = _ready(True, NOON, "x" * 5000)
    assert len(ready.message) == MESSAGE_LIMIT
    assert ready.message.endswith("…")


def test_times_are_written_in_utc() -> None:
    berlin = datetime(2026, 1, 2, 13, 0, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(berlin) == "2026-01-02T12:00:00Z"


@given(st.lists(st.tuples(st.sampled_from(ConditionType), STATUSES), max_size=20))
def test_types_stay_unique_and_the_last_word_counts(
    steps: list[tuple[ConditionType, ConditionStatus | bool | None]],
) -> None:
    conditions: tuple[Condition, ...] = ()
    for second, (type, status) in enumerate(steps):
        now = NOON + timedelta(seconds=second)
        conditions = set_condition(conditions, type, status, Reason.AS_EXPECTED, "", 1, now)
    types = [condition.type for condition in conditions]
    assert len(types) == len(set(types))
    for type, status in dict(steps).items():
        assert is_true(conditions, type) == (status in (True, ConditionStatus.TRUE))
        assert find_condition(conditions, type) is not None


def test_an_absent_condition_is_not_true() -> None:
    assert find_condition((), ConditionType.READY) is None
    assert not is_true((), ConditionType.READY)


@pytest.mark.parametrize("member", [*ConditionType, *Reason])
def test_every_reason_has_a_sentence_and_stands_in_the_reference(
    member: ConditionType | Reason,
) -> None:
    assert member.value[0].isupper()
    assert member.value.isalnum()
    assert member.sentence.endswith(".")
    reference = (Path(__file__).parents[2] / "docs/api.md").read_text()
    assert f"| `{member.value}` | {member.sentence} |" in reference


def test_the_event_about_a_skipped_check_stands_in_the_reference() -> None:
    assert Reason(SKIPPED) is Reason.PREFLIGHT_SKIPPED


@pytest.mark.parametrize("enum", [decision.DiagnosisKind, decision.Action, decision.Reason])
def test_all_that_a_decision_may_say_stands_in_the_reference(enum: type[StrEnum]) -> None:
    reference = (Path(__file__).parents[2] / "docs/api.md").read_text()
    found = sentences(enum)
    assert found.keys() == {member.value for member in enum}
    for value, sentence in found.items():
        assert sentence.endswith(".")
        assert f"| `{value}` | {sentence} |" in reference
