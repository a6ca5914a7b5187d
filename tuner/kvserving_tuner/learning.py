"""What one look teaches: a window for comparisons, the cost of trying, and which load it is."""

from collections.abc import Sequence

from kvserving_tuner.decision import Diagnosis, DiagnosisKind
from kvserving_tuner.observation import Observation
from kvserving_tuner.regimes.loads import InForce, follow, settings_changed
from kvserving_tuner.remembered import Watch
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.samples import MOST_SAMPLES, charged, sample
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.state import TunerState

_NOT_CALM = frozenset({DiagnosisKind.PREEMPTION_STORM, DiagnosisKind.UNKNOWN})


def learn(
    settings: TuningSettings,
    observation: Observation,
    runtime: Sequence[RuntimeState],
    diagnosis: Diagnosis,
    state: TunerState,
    now: float,
) -> TunerState:
    """The memory after a look.

    Data that is missing, stale or contradicts itself teaches nothing.
    """
    if diagnosis.kind is DiagnosisKind.UNKNOWN or observation.blocking():
        return state
    state = _with_sample(settings, observation, state, now)
    calm = diagnosis.kind not in _NOT_CALM and state.watch is None
    in_force = InForce(state.cap, _dtype(runtime), calm)
    loads, shift = follow(state.loads, observation.engines, in_force, settings.regimes, now)
    update: dict[str, object] = {"loads": loads}
    if shift is not None:
        # Windows of another load are nothing to compare with.
        update |= {"samples": (), "due": None, "restoring": shift.known, "storms": 0}
    return state.model_copy(update=update)


def forget_windows(state: TunerState) -> TunerState:
    """The memory after a change of settings under which windows are another matter."""
    return state.model_copy(update={"samples": (), "loads": settings_changed(state.loads)})


def _with_sample(
    settings: TuningSettings, observation: Observation, state: TunerState, now: float
) -> TunerState:
    last = state.samples[-1].at if state.samples else None
    watch = state.watch
    if watch is not None:
        settled = watch.at + settings.guardrails.settle_seconds
        last = settled if last is None else max(last, settled)
    new = sample(observation.engines, settings.slo, last)
    if new is None:
        return state
    update: dict[str, object] = {
        "samples": (*state.samples, new)[-MOST_SAMPLES:],
        "account": charged(state.account, new, watch, now),
    }
    if watch is not None:
        update["watch"] = _watched(watch, (*watch.after, new), settings)
    return state.model_copy(update=update)


def _watched(watch: Watch, after: tuple[object, ...], settings: TuningSettings) -> Watch:
    kept = after[-settings.guardrails.watch_windows :]
    return watch.model_copy(update={"after": kept})


def _dtype(runtime: Sequence[RuntimeState]) -> str | None:
    found = {each.effective.kv_cache_dtype for each in runtime}
    return found.pop() if len(found) == 1 else None
