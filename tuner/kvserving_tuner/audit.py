"""One line of JSON per decision: the record that tells later what was done and on which numbers."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime

from kvserving_tuner.decision import Decision
from kvserving_tuner.observation import Observation

SCHEMA = "kvserving.dev/audit/v1"


def audit_line(
    decision: Decision,
    serving: str,
    observation: Observation | None = None,
    outcome: str | None = None,
) -> str:
    """The decision about `serving` (namespace/name, or an engine's URL) as one line of JSON.

    `outcome` is what became of a change once it was carried out.
    """
    record: dict[str, object] = {
        "schema": SCHEMA,
        "time": datetime.fromtimestamp(decision.at, UTC).isoformat(timespec="milliseconds"),
        "serving": serving,
        **decision.to_dict(),
    }
    if outcome is not None:
        record["outcome"] = outcome
    if observation is not None:
        record["problems"] = [
            {"reason": each.reason.value, "target": each.target, "message": each.message}
            for each in observation.problems
        ]
    return json.dumps(_finite(record), separators=(",", ":"), ensure_ascii=False)


def _finite(value: object) -> object:
    """NaN and infinity are no JSON; readers of the log must not stumble over them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
