"""One line of JSON for each step of a trial: what was seen, what followed, and on which numbers."""

import json
from datetime import UTC, datetime
from typing import Any

from kvserving_operator.trials.record import Record
from kvserving_operator.trials.report import evidence
from kvserving_operator.trials.turn import Outcome
from kvserving_tuner.audit import SCHEMA


def trial_line(outcome: Outcome, serving: str, now: float) -> str:
    """The trial's step as one line of JSON; empty where it has not moved on.

    `evidence_at` is when the newest number came in that the step rests on.
    """
    record, before = outcome.record, outcome.before
    if record is None or (before is not None and _place(before) == _place(record)):
        return ""
    progress, conclusion = record.progress, record.progress.conclusion
    line: dict[str, Any] = {
        "schema": SCHEMA,
        "time": _moment(now),
        "serving": serving,
        "trial": record.name,
        "change": record.change,
        "state": progress.state.value,
        "step": progress.step,
        "pods": list(progress.candidates),
        "evidence_at": _moment(record.evidence_at),
        "quiet_blocks": progress.schedule.quiet,
        "probed_blocks": progress.schedule.probed,
        "evidence": [
            evidence(record.plan, comparison).to_api() for comparison in progress.evidence.values()
        ],
    }
    if conclusion is not None:
        line |= {
            "verdict": conclusion.verdict.value,
            "reason": conclusion.reason.value,
            "message": conclusion.message,
            "remains": str(record.remains),
        }
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False)


def _place(record: Record) -> tuple[object, ...]:
    progress = record.progress
    return progress.state, progress.step, progress.candidates, progress.conclusion


def _moment(epoch_seconds: float | None) -> str | None:
    if not epoch_seconds:
        return None
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat(timespec="milliseconds")
