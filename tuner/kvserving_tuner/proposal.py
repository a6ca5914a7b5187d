"""What should change, if anything: the rules of the active-sequence cap put in order.

Pure, and the same in every mode: whether a proposal is carried out, written down or dropped is
decided in `loop`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvserving_tuner import caps
from kvserving_tuner.decision import (
    Case,
    Change,
    Diagnosis,
    DiagnosisKind,
    Knob,
    PassedOver,
    Reason,
)
from kvserving_tuner.diagnosis import find_storms
from kvserving_tuner.fit import tokens_per_request
from kvserving_tuner.observation import EngineObservation, GaugeWindow, Observation, Window
from kvserving_tuner.readings import Known, Unknown
from kvserving_tuner.rules import Ability
from kvserving_tuner.runtime_client import KnobRange, RuntimeState
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.state import Ceiling, TunerState

Numbers = Mapping[str, float | str]
_FIELD = Knob.MAX_ACTIVE_SEQS.runtime_field


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change and why, or None and why not; `ceiling` is what a storm teaches about the cap.

    `ability` is what can be done about the change; `case` and `passed_over` are the ladder's.
    """

    change: Change | None
    reason: Reason
    message: str
    numbers: Numbers = field(default_factory=dict)
    ceiling: Ceiling | None = None
    ability: Ability = Ability.CHANGE
    case: Case | None = None
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(frozen=True, slots=True)
class Knobs:
    """The cap as it is on each engine, and where it may go on all of them."""

    in_effect: Mapping[str, int]
    minimum: int
    maximum: int

    @property
    def lowest(self) -> int:
        """The lowest cap in effect."""
        return min(self.in_effect.values())

    @property
    def highest(self) -> int:
        """The highest cap in effect."""
        return max(self.in_effect.values())

    @property
    def common(self) -> int | None:
        """The cap in effect on all engines, None where they differ."""
        return self.highest if self.lowest == self.highest else None

    def clamp(self, cap: int) -> int:
        """The nearest cap within bounds."""
        return max(self.minimum, min(cap, self.maximum))


def read_knobs(
    settings: TuningSettings, observation: Observation, runtime: Sequence[RuntimeState]
) -> Knobs | Proposal:
    """The live cap of all engines that have one, or why there is none to move."""
    if settings.max_active_seqs is None:
        return Proposal(None, Reason.KNOB_NOT_ALLOWED, "MaxActiveSeqs is not among allowed knobs")
    in_effect: dict[str, int] = {}
    ranges: list[KnobRange] = []
    for state in runtime:
        allowed, cap = state.range_of(_FIELD), state.effective.max_active_seqs
        if allowed is not None and cap is not None:
            in_effect[state.target] = cap
            ranges.append(allowed)
    if not ranges:
        # The plugin shows the cap among the metrics: it is there, and only too busy to answer.
        busy = [e.target for e in observation.engines if isinstance(e.max_active_seqs, Known)]
        if busy:
            message = f"settings of {', '.join(busy)} cannot be read back"
            return Proposal(None, Reason.RUNTIME_UNREADABLE, message)
        return Proposal(None, Reason.NO_RUNTIME_API, "no engine offers MaxActiveSeqs live")
    minimum = max(settings.max_active_seqs.minimum, *(each.minimum for each in ranges))
    maximum = min(each.maximum for each in ranges)
    if settings.max_active_seqs.maximum is not None:
        maximum = min(maximum, settings.max_active_seqs.maximum)
    if minimum > maximum:
        message = (
            f"no cap is both at least {minimum} and at most {maximum}: the bounds set and those "
            "of the engines do not overlap"
        )
        return Proposal(None, Reason.BOUNDS_CONFLICT, message)
    return Knobs(in_effect, minimum, maximum)


def on_storm(
    settings: TuningSettings,
    engine: EngineObservation,
    storm: Diagnosis,
    knobs: Knobs,
    state: TunerState,
) -> Proposal:
    """Lower the cap at once, as far as the storm asks for."""
    part = storm_window(settings, engine, state)
    if part is None:
        return Proposal(
            None, Reason.WARMING_UP, f"{engine.target}: too few samples since the last change"
        )
    cap = knobs.in_effect.get(engine.target)
    if cap is None:
        return Proposal(
            None, Reason.RUNTIME_UNREADABLE, f"{engine.target}: its settings cannot be read back"
        )
    target = caps.lowered(engine, part, settings.cap, knobs.minimum)
    numbers: dict[str, float | str] = {
        "running_per_rank": round(target.running, 2),
        "sequences_that_fit": "unknown" if target.fit is None else target.fit,
    }
    recent = state.last_change_at is not None and part.start - state.last_change_at < (
        settings.cooldowns.live_seconds
    )
    # A window in which more ran than the cap allows says nothing about the cap.
    running = max(_last_running(part) / engine.ranks, target.running)
    if recent and running > cap:
        message = f"{running:.0f} sequences still ran under a cap of {cap}"
        return Proposal(None, Reason.DRAINING, message, numbers)
    to = min(target.cap, knobs.lowest, cap - 1)
    if to < knobs.minimum:
        message = f"{storm.message}; the cap is at its minimum, {knobs.minimum}"
        return Proposal(None, Reason.AT_MINIMUM, message, numbers)
    moved = _told(settings, "cap lowered", "would lower the cap")
    fit = "" if target.fit is None else f", {target.fit} sequences fit"
    message = f"{storm.message}: {moved} from {knobs.highest} to {to}{fit}"
    ceiling = Ceiling(
        sequences=min(cap, target.running),
        tokens_per_request=tokens_per_request(engine, settings.cap),
        until=0.0,
    )
    return Proposal(
        Change(Knob.MAX_ACTIVE_SEQS, knobs.highest, to),
        Reason.PREEMPTION_STORM,
        message,
        numbers,
        ceiling,
    )


def storm_window(
    settings: TuningSettings, engine: EngineObservation, state: TunerState
) -> Window | None:
    """The window that shows a storm under the settings in effect now, None if there is none."""
    for part, _ in find_storms(engine, settings.thresholds, state.last_storm_at):
        if state.last_change_at is None or part.start >= state.last_change_at:
            return part
    return None


def _told(settings: TuningSettings, done: str, advised: str) -> str:
    """Words for a change: a recommendation must not read as if something had been changed."""
    return advised if settings.mode is Mode.RECOMMEND else done


def _last_running(part: Window) -> float:
    return part.running.last if isinstance(part.running, GaugeWindow) else 0.0


def on_calm(
    settings: TuningSettings,
    observation: Observation,
    fleet: Diagnosis,
    knobs: Knobs,
    state: TunerState,
    now: float,
) -> Proposal:
    """Bring caps together and into bounds, raise them where that is safe, else say why not."""
    unread = [e.target for e in observation.engines if e.target not in knobs.in_effect]
    if unread:
        message = f"settings of {', '.join(unread)} cannot be read back"
        return Proposal(None, Reason.RUNTIME_UNREADABLE, message)
    cap = knobs.common
    if cap is None:
        return _together(settings, knobs, state)
    if cap != knobs.clamp(cap):
        to = knobs.clamp(cap)
        moved = _told(settings, "moved", "would move it")
        message = f"cap {cap} lies outside {knobs.minimum} to {knobs.maximum}: {moved} to {to}"
        return Proposal(Change(Knob.MAX_ACTIVE_SEQS, cap, to), Reason.OUTSIDE_BOUNDS, message)
    if fleet.kind is not DiagnosisKind.SEQUENCE_CAP:
        return Proposal(None, fleet.reason or Reason.HEALTHY, fleet.message)
    return _raise(settings, observation, fleet, cap, knobs, state, now)


def _together(settings: TuningSettings, knobs: Knobs, state: TunerState) -> Proposal:
    decided = state.cap if state.cap in knobs.in_effect.values() else None
    to = knobs.clamp(knobs.lowest if decided is None else decided)
    moved = _told(settings, "all set", "would set all")
    message = f"caps differ ({knobs.lowest} to {knobs.highest}): {moved} to {to}"
    return Proposal(Change(Knob.MAX_ACTIVE_SEQS, knobs.highest, to), Reason.CAPS_DIFFER, message)


def _raise(
    settings: TuningSettings,
    observation: Observation,
    fleet: Diagnosis,
    cap: int,
    knobs: Knobs,
    state: TunerState,
    now: float,
) -> Proposal:
    engines, rules = observation.engines, settings.cap
    if cap >= knobs.maximum:
        message = f"{fleet.message}; the cap is at its maximum, {knobs.maximum}"
        return Proposal(None, Reason.AT_MAXIMUM, message)
    tokens = caps.heaviest_request(engines, rules)
    waiting = _pause(settings, state, tokens, now)
    if waiting is not None:
        return waiting
    if any(
        isinstance(engine.full, Unknown)
        or (state.last_change_at is not None and engine.full.start < state.last_change_at)
        for engine in engines
    ):
        return Proposal(None, Reason.WARMING_UP, "no full window since the last change yet")
    if state.agreeing_count < rules.confirmations:
        message = f"{fleet.message} ({state.agreeing_count} of {rules.confirmations} times seen)"
        return Proposal(None, Reason.CONFIRMING, message)
    slack = caps.tpot_slack(engines, settings)
    if not slack.enough:
        reason = Reason.TPOT_UNKNOWN if slack.enough is None else Reason.NO_TPOT_SLACK
        return Proposal(None, reason, slack.message)
    wanted = caps.step_up(cap, knobs.maximum, rules)
    if state.ceiling is not None and now < state.ceiling.until:
        wanted = min(wanted, caps.below_ceiling(state.ceiling, tokens, rules))
        if wanted <= cap:
            message = (
                f"a storm with {state.ceiling.sequences:.0f} sequences is remembered for "
                f"{state.ceiling.until - now:.0f} s more"
            )
            return Proposal(None, Reason.CEILING_REMEMBERED, message)
    to, predicted = caps.largest_that_fits(engines, cap, wanted, settings)
    if isinstance(predicted, Unknown):
        return Proposal(None, Reason.WARMING_UP, f"KV use after a raise: {predicted.reason}")
    numbers: Numbers = {
        "predicted_kv_usage": round(predicted.usage, 4),
        "prediction": predicted.basis,
    }
    if to <= cap:
        message = (
            f"a cap of {cap + 1} would bring KV use to {predicted.usage:.0%} ({predicted.basis})"
        )
        return Proposal(None, Reason.KV_WOULD_FILL, message, numbers)
    moved = _told(settings, "cap raised", "would raise the cap")
    message = f"{fleet.message}: {moved} from {cap} to {to}, KV use predicted {predicted.usage:.0%}"
    change = Change(Knob.MAX_ACTIVE_SEQS, cap, to)
    return Proposal(change, Reason.SEQUENCES_WAIT_KV_FREE, message, numbers)


def _pause(
    settings: TuningSettings, state: TunerState, tokens: float | None, now: float
) -> Proposal | None:
    cooldown = settings.cooldowns.live_seconds
    if state.last_change_at is not None and now - state.last_change_at < cooldown:
        left = cooldown - (now - state.last_change_at)
        return Proposal(None, Reason.COOLDOWN, f"the last change is too recent: {left:.0f} s left")
    if state.ceiling is not None and caps.lighter(state.ceiling, tokens, settings.cap):
        return None
    paused = state.raises_paused_until
    if paused is not None and now < paused:
        message = f"a raise led to a storm: no raise for {paused - now:.0f} s"
        return Proposal(None, Reason.COOLDOWN, message)
    left = _spacing_left(settings, state, now)
    if left > 0:
        message = f"raises are spaced out after a storm: {left:.0f} s left"
        return Proposal(None, Reason.COOLDOWN, message)
    return None


def _spacing_left(settings: TuningSettings, state: TunerState, now: float) -> float:
    storm, raised = state.last_storm_at, state.last_raise_at
    if storm is None or raised is None or raised < storm:
        return 0.0
    if now - storm > settings.cap.recent_storm_seconds:
        return 0.0
    return settings.cap.raise_spacing_seconds - (now - raised)
