"""What holds a change back that the ladder has found due; pure."""

from dataclasses import dataclass

from kvserving_tuner.decision import CostClass, Knob, Reason, Risk
from kvserving_tuner.ladder.climb import Step
from kvserving_tuner.rules import DAY_SECONDS
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.state import TunerState


@dataclass(frozen=True, slots=True)
class Held:
    """Why a change that is due is not made now."""

    reason: Reason
    message: str


def held_back(settings: TuningSettings, state: TunerState, step: Step, now: float) -> Held | None:
    """The first guardrail that a step meets; None where it may be taken."""
    return (
        _cooldown(settings, state, step, now)
        or _samples(settings, state)
        or _windows(settings, step, now)
        or change_budget(settings, state, now)
        or _switches(settings, state, step, now)
        or _error_budget(settings, state)
    )


def cooldown_seconds(settings: TuningSettings, state: TunerState, step: Step) -> float:
    """Pause after the last step of the ladder: doubled for each rollback in a row."""
    base = settings.cooldowns.live_seconds
    if step.candidate.knob is Knob.KV_CACHE_DTYPE:
        base = settings.cooldowns.dtype_seconds
    if step.candidate.cost is CostClass.RESTART:
        base = settings.cooldowns.restart_seconds
    # A rollback doubles something even where no pause is set.
    doubled = max(base, 1.0) * 2.0 ** min(state.rollbacks, 32) if state.rollbacks else base
    return min(doubled, max(base, settings.guardrails.cooldown_maximum_seconds))


def change_budget(settings: TuningSettings, state: TunerState, now: float) -> Held | None:
    """The number of calm changes for a day, if it has been made."""
    allowed = settings.guardrails.changes_per_day
    made = sum(now - at < DAY_SECONDS for at in state.changed_at)
    if allowed is None or made < allowed:
        return None
    return Held(Reason.CHANGE_BUDGET_SPENT, f"{made} of {allowed} changes of a day are made")


def _cooldown(settings: TuningSettings, state: TunerState, step: Step, now: float) -> Held | None:
    for since, pause, what in (
        (state.last_change_at, settings.cooldowns.live_seconds, "the last change is too recent"),
        (
            state.last_step_at,
            cooldown_seconds(settings, state, step),
            f"the last step of the ladder is too recent, after {state.rollbacks} rollbacks in a row"
            if state.rollbacks
            else "the last step of the ladder is too recent",
        ),
    ):
        if since is not None and now - since < pause:
            left = pause - (now - since)
            return Held(Reason.COOLDOWN, f"{what}: {left:.0f} s left")
    return None


def _samples(settings: TuningSettings, state: TunerState) -> Held | None:
    """Without windows from before there is nothing to compare with afterwards."""
    wanted = settings.guardrails.watch_windows
    if len(state.samples) >= wanted:
        return None
    message = f"{len(state.samples)} of {wanted} windows to compare with"
    return Held(Reason.WARMING_UP, message)


def _windows(settings: TuningSettings, step: Step, now: float) -> Held | None:
    windows = settings.guardrails.windows
    intrusive = step.candidate.cost is CostClass.RESTART or step.rung.risk is Risk.QUALITY
    if not windows or not intrusive or any(window.is_open(now) for window in windows):
        return None
    return Held(Reason.OUTSIDE_WINDOW, "no maintenance window is open")


def _switches(settings: TuningSettings, state: TunerState, step: Step, now: float) -> Held | None:
    live = step.candidate.cost is CostClass.LIVE
    if live and step.candidate.knob is not Knob.KV_CACHE_DTYPE:
        return None
    return switch_budget(settings, state, now)


def switch_budget(settings: TuningSettings, state: TunerState, now: float) -> Held | None:
    """The number of changes for a day that empty the cache, if it has been made."""
    made = sum(now - at < DAY_SECONDS for at in state.switched_at)
    allowed = settings.guardrails.switches_per_day
    if made < allowed:
        return None
    message = f"{made} of {allowed} changes of a day that empty caches are made"
    return Held(Reason.CHANGE_BUDGET_SPENT, message)


def _error_budget(settings: TuningSettings, state: TunerState) -> Held | None:
    account = state.account
    allowed = settings.slo.missed_share * account.requests
    left = settings.guardrails.exploration_share * max(0.0, allowed - account.missed)
    if account.explored <= 0 or account.explored < left:
        return None
    message = (
        f"trying changes has made {account.explored:.0f} requests miss a target today, and "
        f"{left:.0f} may"
    )
    return Held(Reason.ERROR_BUDGET_SPENT, message)
