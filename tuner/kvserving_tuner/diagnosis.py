"""What limits an engine, from its windows alone.

The order of the questions matters: a storm is looked for first and in a window of its own, because
it is the one state in which waiting for better data costs throughput.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvserving_tuner.assembly import idle
from kvserving_tuner.decision import Diagnosis, DiagnosisKind, Reason
from kvserving_tuner.observation import EngineObservation, EpochReason, GaugeWindow, Window
from kvserving_tuner.readings import Known, Unknown, known
from kvserving_tuner.settings import Thresholds

Evidence = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Usual:
    """What an engine's steps may hold, and what its load usually finds in the prefix cache."""

    step_tokens: int | None = None
    hit_ratio: float | None = None


def diagnose_engine(
    engine: EngineObservation,
    cap: int | None,
    limits: Thresholds,
    lowered_at: float | None = None,
    usual: Usual | None = None,
) -> Diagnosis:
    """Diagnose one engine whose ranks may each run `cap` sequences (None: not known).

    `lowered_at` is when the cap was last lowered to end a storm, in epoch seconds.
    """
    storms = find_storms(engine, limits, lowered_at)
    if storms:
        return storms[0][1]
    full = engine.full
    if isinstance(full, Unknown):
        reason = Reason.WARMING_UP if engine.answered else Reason.METRICS_MISSING
        return _unknown(engine, full.reason, reason)
    gauges = _gauges(full)
    if isinstance(gauges, Unknown):
        return _unknown(engine, gauges.reason, Reason.METRICS_MISSING)
    running, waiting, usage = gauges
    contradiction = find_contradiction(running, waiting, usage)
    if contradiction is not None:
        return _unknown(engine, contradiction, Reason.CONTRADICTION)
    evidence = summary(full)
    if idle(full, limits):
        return Diagnosis(DiagnosisKind.IDLE, engine.target, "no requests", evidence, Reason.IDLE)
    queued = waiting.mean > 0 and waiting.last > 0
    if queued and usage.p95 >= limits.pressure_kv_usage:
        return Diagnosis(
            DiagnosisKind.KV_PRESSURE,
            engine.target,
            f"{waiting.mean:.1f} requests wait at {usage.p95:.0%} KV use without preemptions",
            evidence,
            Reason.KV_PRESSURE,
        )
    at_cap = cap is not None and cap_reached(running, cap * engine.ranks, limits)
    if queued and at_cap and usage.p95 < limits.cap_free_kv_usage:
        return Diagnosis(
            DiagnosisKind.SEQUENCE_CAP,
            engine.target,
            f"{waiting.mean:.1f} requests wait while {running.mean:.1f} run under a cap of "
            f"{cap} at {usage.p95:.0%} KV use",
            evidence,
        )
    usual = usual or Usual()
    thrash = _thrash(full, usual.hit_ratio, usage, limits)
    if thrash is not None:
        return Diagnosis(DiagnosisKind.PREFIX_THRASH, engine.target, thrash, evidence)
    tokens = _step_tokens(full)
    if usual.step_tokens and tokens is not None:
        most = usual.step_tokens * limits.budget_reached_share
        if tokens >= most:
            message = f"steps have {tokens:.0f} tokens on average, of {usual.step_tokens} allowed"
            return Diagnosis(DiagnosisKind.TOKEN_BUDGET, engine.target, message, evidence)
    if queued and cap is not None and not at_cap and usage.p95 < limits.compute_kv_usage:
        return Diagnosis(
            DiagnosisKind.COMPUTE_BOUND,
            engine.target,
            f"{waiting.mean:.1f} requests wait while {running.mean:.1f} run at {usage.p95:.0%} KV "
            "use: neither the cap nor the cache is full",
            evidence,
        )
    message = f"{running.mean:.1f} requests run, {waiting.mean:.1f} wait, KV use is {usage.p95:.0%}"
    return Diagnosis(DiagnosisKind.HEALTHY, engine.target, message, evidence, Reason.HEALTHY)


def _thrash(
    part: Window, usual: float | None, usage: GaugeWindow, limits: Thresholds
) -> str | None:
    """What shows that shared prefixes are evicted too early, None if nothing does."""
    asked, hits = known(part.prefix_queries), known(part.prefix_hits)
    if not usual or not asked or hits is None or usage.p95 < limits.compute_kv_usage:
        return None
    ratio = hits / asked
    if ratio > usual * limits.thrash_hit_share:
        return None
    return f"{ratio:.0%} of the prompt tokens are found in the prefix cache instead of {usual:.0%}"


def _step_tokens(part: Window) -> float | None:
    """Mean tokens of a step; what the prefix cache had was not computed."""
    steps, generated = known(part.iterations), known(part.generation_tokens)
    prompts, hits = known(part.prompt_tokens), known(part.prefix_hits)
    if not steps or generated is None or prompts is None:
        return None
    return (generated + max(0.0, prompts - (hits or 0.0))) / steps


def find_storms(
    engine: EngineObservation, limits: Thresholds, lowered_at: float | None = None
) -> list[tuple[Window, Diagnosis]]:
    """The windows that show a preemption storm: the short one first."""
    lowered_at = _last_wave(engine, lowered_at)
    found: list[tuple[Window, Diagnosis]] = []
    for part, minimum in (
        (engine.short, limits.storm_minimum_preemptions),
        (engine.full, limits.storm_minimum_sustained),
    ):
        if isinstance(part, Window):
            storm = find_storm(engine.target, part, minimum, limits, lowered_at)
            if storm is not None:
                found.append((part, storm))
    return found


def _last_wave(engine: EngineObservation, lowered_at: float | None) -> float | None:
    """When sequences were last put back on purpose: a change of the cache puts back all of them."""
    if engine.epoch_reason is not EpochReason.SETTINGS_CHANGED or engine.epoch_start is None:
        return lowered_at
    return max(engine.epoch_start, lowered_at or engine.epoch_start)


def preemptions_in(part: Window, limits: Thresholds, lowered_at: float | None) -> float | None:
    """Preemptions that happened within a window, as well as they can be told.

    The engine counts a preemption only once its victim runs again. While a storm builds up, the
    counter therefore lacks some, and the queue's balance may stand in for it: if the cache stayed
    full, which it does not when clients hang up, or if output collapsed. After a storm, and after a
    change of the cache, the counter goes on rising for a while, and only the balance tells whether
    anything is preempted still.
    """
    counted, unexplained = known(part.preemptions), known(part.unexplained_departures)
    if counted is None or unexplained is None or isinstance(part.kv_usage, Unknown):
        return counted
    if lowered_at is not None and part.start - lowered_at < limits.storm_echo_seconds:
        return min(counted, unexplained)
    slowdown = known(part.generation_slowdown)
    collapsed = slowdown is not None and slowdown <= limits.storm_slowdown
    if collapsed or part.kv_usage.last >= limits.storm_kv_usage:
        return max(counted, unexplained)
    return counted


def find_storm(
    target: str,
    part: Window,
    minimum: float,
    limits: Thresholds,
    lowered_at: float | None = None,
) -> Diagnosis | None:
    """A storm of at least `minimum` preemptions in this window, None if there is none."""
    running, usage = part.running, part.kv_usage
    if not isinstance(running, GaugeWindow) or not isinstance(usage, GaugeWindow):
        return None
    if usage.maximum < limits.storm_kv_usage or running.mean <= 0:
        return None
    preemptions, finished = preemptions_in(part, limits, lowered_at), known(part.finished)
    if preemptions is None:
        return None
    if preemptions < minimum:
        return None
    per_running = preemptions / running.mean / part.span_seconds
    share = preemptions / finished if finished else None
    enough_finished = finished is not None and finished >= limits.storm_minimum_finished
    by_share = enough_finished and share is not None and share >= limits.storm_preempted_share
    if not by_share and per_running < limits.storm_preemptions_per_running_second:
        return None
    evidence: dict[str, float | str] = {
        **summary(part),
        "preemptions_judged": preemptions,
        "preemptions_per_running_second": round(per_running, 4),
    }
    if share is not None:
        evidence["preemptions_per_finished"] = round(share, 4)
    done = "unknown" if finished is None else f"{finished:.0f}"
    return Diagnosis(
        DiagnosisKind.PREEMPTION_STORM,
        target,
        f"{preemptions:.0f} preemptions in {part.span_seconds:.0f} s with {running.mean:.1f} "
        f"running and {done} finished at {usage.maximum:.0%} KV use",
        evidence,
        Reason.PREEMPTION_STORM,
    )


def find_contradiction(
    running: GaugeWindow, waiting: GaugeWindow, usage: GaugeWindow
) -> str | None:
    """What in these gauges cannot be true, None if nothing."""
    if usage.minimum < 0 or usage.maximum > 1.001:
        return f"KV use between {usage.minimum:g} and {usage.maximum:g} is not a share"
    if min(running.minimum, waiting.minimum) < 0:
        return "a negative number of requests"
    # A scheduler that neither runs nor admits anything is stuck; no setting explains that.
    if waiting.minimum > 0 and running.maximum == 0:
        return f"{waiting.minimum:g} or more requests wait for capacity while none runs"
    return None


def cap_reached(running: GaugeWindow, cap: int, limits: Thresholds) -> bool:
    """Whether the cap is what keeps the number of running sequences down.

    Between two engine steps a finished sequence leaves a hole that a sample may catch, which
    weighs more under small caps: there the mean may lie up to one sequence below.
    """
    reached = cap * limits.cap_reached_share
    return running.maximum >= reached and running.mean >= min(reached, max(cap - 1, cap / 2))


def summary(part: Window) -> dict[str, float | str]:
    """The window's figures that a diagnosis may rest on."""
    figures: dict[str, float | str] = {
        "window_seconds": round(part.span_seconds, 1),
        "scrapes": part.scrapes,
    }
    for name, value in (
        ("running", part.running),
        ("waiting", part.waiting),
        ("kv_usage", part.kv_usage),
    ):
        if isinstance(value, GaugeWindow):
            figures[f"{name}_mean"] = round(value.mean, 4)
            figures[f"{name}_max"] = round(value.maximum, 4)
    for name, reading in (
        ("preemptions", part.preemptions),
        ("finished", part.finished),
        ("generation_tokens", part.generation_tokens),
        ("unexplained_departures", part.unexplained_departures),
        ("generation_slowdown", part.generation_slowdown),
    ):
        if isinstance(reading, Known):
            figures[name] = round(reading.value, 4)
    return figures


def _gauges(part: Window) -> tuple[GaugeWindow, GaugeWindow, GaugeWindow] | Unknown:
    """Running, waiting and KV use, if they and the counters that explain them are known."""
    if isinstance(part.running, Unknown):
        return Unknown(f"running: {part.running.reason}")
    if isinstance(part.waiting, Unknown):
        return Unknown(f"waiting: {part.waiting.reason}")
    if isinstance(part.kv_usage, Unknown):
        return Unknown(f"KV use: {part.kv_usage.reason}")
    if isinstance(part.preemptions, Unknown):
        return Unknown(f"preemptions: {part.preemptions.reason}")
    if isinstance(part.generation_tokens, Unknown):
        return Unknown(f"generation tokens: {part.generation_tokens.reason}")
    return part.running, part.waiting, part.kv_usage


def _unknown(engine: EngineObservation, why: str, reason: Reason) -> Diagnosis:
    return Diagnosis(DiagnosisKind.UNKNOWN, engine.target, why, {"why": why}, reason)
