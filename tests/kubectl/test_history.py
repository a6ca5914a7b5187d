"""History from the operator's own audit lines, as its writers make them."""

import json

import pytest

from kubectlkit.objects import serving
from kvserving_kubectl.history import audit_lines, timeline
from kvserving_operator.trials.audit import trial_line
from kvserving_operator.trials.record import Trials
from kvserving_operator.trials.turn import Outcome
from kvserving_tuner.audit import SCHEMA, audit_line
from kvserving_tuner.decision import Action, Change, Decision, Diagnosis, Knob
from kvserving_tuner.reasons import DiagnosisKind, Reason
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import Conclusion, State, Verdict
from kvserving_tuner.trials.progress import End as Why
from operatorkit.trials import record

AT = 1_800_000_000.0


def entries(*lines: str) -> list[dict[str, str]]:
    bare = serving()
    bare.pop("status")
    return [each.to_json() for each in timeline(bare, [], [], audit_lines("\n".join(lines)))]


def test_a_decision_of_the_audit_log() -> None:
    decision = Decision(
        id="d-1",
        at=AT,
        diagnosis=Diagnosis(DiagnosisKind.SEQUENCE_CAP, None, "requests wait", {}),
        action=Action.CHANGE,
        change=Change(Knob.MAX_ACTIVE_SEQS, 8, 16),
        reason=Reason.SEQUENCES_WAIT_KV_FREE,
        message="there is room",
        numbers={},
    )
    assert entries(audit_line(decision, "demo/chat", outcome="Applied")) == [
        {
            "at": "2027-01-15T08:00:00Z", "what": "DecisionChange", "about": "d-1",
            "message": "SequencesWaitKVFree: MaxActiveSeqs 8 -> 16: there is room [Applied]",
        }
    ]  # fmt: skip


def test_a_step_and_the_end_of_a_trial_in_the_audit_log() -> None:
    begun = record("chat-0", plan=Plan(steps=(50,)))
    assert entries(trial_line(Outcome(Trials(), record=begun), "demo/chat", AT)) == [
        {
            "at": "2027-01-15T08:00:00Z", "what": "TrialRunning", "about": "trial",
            "message": "auto -> int8: pods with the change: chat-0",
        }
    ]  # fmt: skip
    conclusion = Conclusion(verdict=Verdict.ROLLED_BACK, reason=Why.ASKED_FOR, message="a person")
    ended = record(plan=Plan(steps=(50,)), state=State.FINISHED, conclusion=conclusion)
    (entry,) = entries(trial_line(Outcome(Trials(), record=ended), "demo/chat", AT))
    assert ("TrialRolledBack", "auto -> int8: a person") == (entry["what"], entry["message"])


@pytest.mark.parametrize(
    "line",
    [
        {"time": "2027-01-15T08:00:00Z"},
        {"time": "2027-01-15T08:00:00Z", "trial": "t"},
        {"time": "2027-01-15T08:00:00Z", "change": "words", "action": "Change"},
        {"time": "2027-01-15T08:00:00Z", "change": None, "message": None},
        {"time": 5},
        {},
    ],
    ids=str,
)
def test_lines_of_another_version_break_nothing(line: dict[str, object]) -> None:
    assert isinstance(entries(json.dumps({"schema": SCHEMA, "serving": "demo/chat", **line})), list)
