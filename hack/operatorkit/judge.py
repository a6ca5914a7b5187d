"""A tuner that decides what a test tells it to; holds otherwise."""

from collections.abc import Sequence

from kvserving_tuner.decision import (
    Action,
    Change,
    Decision,
    Diagnosis,
    DiagnosisKind,
    Knob,
    Reason,
)
from kvserving_tuner.observation import Observation
from kvserving_tuner.remembered import Judged, Tried
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.state import Recommendation, TunerState


class ScriptedJudge:
    """Stands in for `decide`."""

    def __init__(self) -> None:
        self.next_cap: int | None = None
        self.next_dtype: str | None = None
        self.hold_reason = Reason.HEALTHY
        self.diagnosis = DiagnosisKind.HEALTHY
        self.calls: list[tuple[TuningSettings, Sequence[RuntimeState], TunerState]] = []

    def __call__(
        self,
        settings: TuningSettings,
        observation: Observation,
        runtime: Sequence[RuntimeState],
        state: TunerState,
        now: float,
    ) -> tuple[Decision, TunerState]:
        """Change to the next cap once, or hold; in mode Recommend only recommend."""
        self.calls.append((settings, runtime, state))
        identity = f"d-{now:.0f}"
        if self.next_dtype is not None:
            return self._trial(identity, state, now)
        if self.next_cap is None:
            return self._decision(identity, now, Action.HOLD, None, self.hold_reason), state
        cap, self.next_cap = self.next_cap, None
        change = Change(Knob.MAX_ACTIVE_SEQS, from_value=16, to_value=cap)
        self.diagnosis = DiagnosisKind.PREEMPTION_STORM
        reason = Reason.PREEMPTION_STORM
        if settings.mode.value == "Recommend":
            decision = self._decision(identity, now, Action.RECOMMEND, change, reason)
            standing = Recommendation(
                id=identity,
                at=now,
                knob=change.knob.value,
                from_value=16,
                to_value=cap,
                reason=reason.value,
                message=decision.message,
            )
            return decision, state.model_copy(update={"recommendation": standing})
        decision = self._decision(identity, now, Action.CHANGE, change, reason)
        return decision, state.model_copy(update={"cap": cap, "last_change_at": now})

    def _trial(self, identity: str, state: TunerState, now: float) -> tuple[Decision, TunerState]:
        """Ask for a trial of the next format once."""
        dtype, self.next_dtype = self.next_dtype or "", None
        change = Change(Knob.KV_CACHE_DTYPE, "bfloat16", dtype)
        decision = self._decision(identity, now, Action.TRIAL, change, Reason.KV_BINDS)
        asked = Tried(
            knob=change.knob, value=dtype, regime="load-1", judged=Judged.FAILED, at=now,
            until=now + 86_400,
        )  # fmt: skip
        return decision, state.model_copy(update={"asked": asked})

    def _decision(
        self, identity: str, now: float, action: Action, change: Change | None, reason: Reason
    ) -> Decision:
        evidence: dict[str, float | str] = {"preemptions": 7.0, "kv_usage_p95": 0.987654321}
        diagnosis = Diagnosis(self.diagnosis, None, "as the test says", evidence)
        message = f"{self.diagnosis.value}: 7 preemptions in 20 s"
        return Decision(identity, now, diagnosis, action, change, reason, message, evidence)
