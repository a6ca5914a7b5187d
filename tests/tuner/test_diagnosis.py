"""What limits an engine, case by case."""

from dataclasses import replace

import pytest

from kvserving_tuner.decision import DiagnosisKind, Reason
from kvserving_tuner.diagnosis import Usual, cap_reached, diagnose_engine
from kvserving_tuner.observation import EpochReason, GaugeWindow, Window
from kvserving_tuner.readings import Unknown
from kvserving_tuner.settings import Thresholds
from tunerkit.build import engine, gauge, window

LIMITS = Thresholds()
IDLE, HEALTHY, CAP = DiagnosisKind.IDLE, DiagnosisKind.HEALTHY, DiagnosisKind.SEQUENCE_CAP
PRESSURE, STORM = DiagnosisKind.KV_PRESSURE, DiagnosisKind.PREEMPTION_STORM
UNKNOWN = DiagnosisKind.UNKNOWN


@pytest.mark.parametrize(
    ("full", "cap", "kind"),
    [
        (window(running=0, waiting=0, usage=0, tokens=0, finished=0), 8, IDLE),
        # A readiness probe's token every ten seconds is no traffic.
        (window(running=0, waiting=0, usage=0, tokens=6, finished=6), 8, IDLE),
        (window(running=0, waiting=0, usage=0, tokens=600, finished=6), 8, HEALTHY),
        (window(running=4, waiting=0, usage=0.3), 8, HEALTHY),
        (window(running=8, waiting=0, usage=0.99), 8, HEALTHY),
        (window(running=8, waiting=5, usage=0.5), 8, CAP),
        (window(running=8, waiting=5, usage=0.87), 8, HEALTHY),
        # Neither the cap nor the cache is full: those that wait do so for the device.
        (window(running=4, waiting=5, usage=0.5), 8, DiagnosisKind.COMPUTE_BOUND),
        (window(running=8, waiting=5, usage=0.5), None, HEALTHY),
        (window(running=8, waiting=5, usage=0.93), 8, PRESSURE),
        (window(running=8, waiting=5, usage=0.8, usage_max=0.95), 8, PRESSURE),
        (window(running=6, waiting=5, usage=0.93), 8, PRESSURE),
    ],
)
def test_calm_windows(full: Window, cap: int | None, kind: DiagnosisKind) -> None:
    found = diagnose_engine(engine(full), cap, LIMITS)
    assert found.kind is kind
    assert found.evidence["scrapes"] == 13


def freed(part: Window) -> Window:
    """The same window, but at its end much of the cache is free."""
    return replace(part, kv_usage=gauge(0.95, 0.99, last=0.4))


@pytest.mark.parametrize(
    ("short", "storm"),
    [
        # Sixteen run on a slow CPU; nothing finishes within the window.
        (window(15, running=16, usage=0.99, preemptions=30, finished=0), True),
        (window(15, running=16, usage=0.99, preemptions=30, finished=None), True),
        # A fast engine: 6 % of the finished were preempted.
        (window(20, running=64, usage=0.97, preemptions=60, finished=1000), True),
        (window(20, running=256, usage=0.97, preemptions=50, finished=900), True),
        (window(20, running=64, usage=0.97, preemptions=10, finished=1000), False),
        # One or two preemptions are no storm, nor are three among many running.
        (window(20, running=2, usage=0.99, preemptions=1, finished=0), False),
        (window(20, running=64, usage=0.99, preemptions=3, finished=10), False),
        (window(20, running=6, usage=0.99, preemptions=2, finished=1), False),
        (window(20, running=6, usage=0.99, preemptions=3, finished=1), True),
        # Without a full cache, preemptions have another cause.
        (window(20, running=8, usage=0.4, preemptions=20, finished=0), False),
        # The counter is late: the running went back to the queue although the cache is full.
        (window(15, running=12, usage=0.99, departures=6, finished=2), True),
        (freed(window(15, running=12, usage=0.99, departures=6, finished=2)), False),
        (freed(window(15, running=12, usage=0.99, departures=6, slowdown=0.4)), True),
        (window(15, running=12, usage=0.4, departures=6, slowdown=0.4, finished=2), False),
    ],
)
def test_storms_in_the_short_window(short: Window, storm: bool) -> None:
    found = diagnose_engine(engine(window(usage=0.89), short), 64, LIMITS)
    assert (found.kind is STORM) is storm, found


def test_the_echo_of_an_ended_storm_is_no_storm() -> None:
    # Victims that run again are counted now, but nobody leaves the running set any more.
    for departures, storm in ((0, False), (6, True)):
        short = window(15, running=12, usage=0.97, preemptions=9, departures=departures)
        found = diagnose_engine(engine(window(usage=0.89), short), 12, LIMITS, short.start - 5)
        assert (found.kind is STORM) is storm
        later = diagnose_engine(engine(window(usage=0.89), short), 12, LIMITS, short.start - 61)
        assert later.kind is STORM


@pytest.mark.parametrize(
    ("reason", "departures", "storm"),
    [
        (EpochReason.SETTINGS_CHANGED, 0, False),
        (EpochReason.SETTINGS_CHANGED, 6, True),
        (EpochReason.RESTART, 0, True),
    ],
)
def test_sequences_put_back_by_a_change_of_the_cache_are_no_storm(
    reason: EpochReason, departures: float, storm: bool
) -> None:
    # All of them are counted as preempted while they run again, and the cache fills anew.
    short = window(15, running=12, usage=0.97, preemptions=16, departures=departures)
    changed = replace(
        engine(Unknown("2 of 3 samples"), short), epoch_start=short.start, epoch_reason=reason
    )
    assert (diagnose_engine(changed, 16, LIMITS).kind is STORM) is storm


def test_a_storm_needs_no_full_window() -> None:
    short = window(10, running=16, usage=0.99, preemptions=9, finished=0)
    found = diagnose_engine(engine(Unknown("2 of 3 samples"), short), None, LIMITS)
    assert found.kind is STORM
    assert found.evidence["preemptions"] == 9


def test_a_slow_storm_shows_in_the_full_window_only() -> None:
    short = window(20, running=8, usage=0.97, preemptions=1, finished=0)
    for preemptions, storm in ((6, True), (3, False)):
        full = window(60, running=8, usage=0.97, preemptions=preemptions, finished=3)
        found = diagnose_engine(engine(full, short), 32, LIMITS)
        assert (found.kind is STORM) is storm


@pytest.mark.parametrize(
    ("full", "reason"),
    [
        (Unknown("2 of 3 samples in 60 s"), Reason.WARMING_UP),
        # Requests wait for capacity while none runs.
        (window(running=0, waiting=6, usage=0.0), Reason.CONTRADICTION),
        (window(usage=1.4), Reason.CONTRADICTION),
        (window(usage=-0.1), Reason.CONTRADICTION),
        (window(waiting=-1), Reason.CONTRADICTION),
        (replace(window(), running=Unknown("NaN")), Reason.METRICS_MISSING),
        (replace(window(), waiting=Unknown("NaN")), Reason.METRICS_MISSING),
        (replace(window(), kv_usage=Unknown("NaN")), Reason.METRICS_MISSING),
        (replace(window(), preemptions=Unknown("absent")), Reason.METRICS_MISSING),
        (replace(window(), generation_tokens=Unknown("absent")), Reason.METRICS_MISSING),
    ],
)
def test_what_cannot_be_known_is_unknown(full: Window | Unknown, reason: Reason) -> None:
    found = diagnose_engine(engine(full, Unknown("stale")), 8, LIMITS)
    assert (found.kind, found.reason) == (UNKNOWN, reason)
    assert found.message


@pytest.mark.parametrize(
    ("running", "cap", "reached"),
    [
        (gauge(8), 8, True),
        (gauge(7.2, 8), 8, True),
        (gauge(6.8, 8), 8, False),
        (gauge(1), 1, True),
        (gauge(1.1, 2), 2, True),
        (gauge(0.9, 2), 2, False),
        (gauge(63, 64), 64, True),
        (gauge(60, 64), 64, False),
        (gauge(190, 256), 256, False),
    ],
)
def test_whether_the_cap_is_reached(running: GaugeWindow, cap: int, reached: bool) -> None:
    assert cap_reached(running, cap, LIMITS) is reached


def test_the_cap_counts_per_rank() -> None:
    two_ranks = engine(window(running=16, waiting=5, usage=0.5), ranks=2)
    assert diagnose_engine(two_ranks, 8, LIMITS).kind is CAP
    assert diagnose_engine(two_ranks, 16, LIMITS).kind is DiagnosisKind.COMPUTE_BOUND


@pytest.mark.parametrize(
    ("iterations", "prompt_tokens", "hits", "kind"),
    [
        # 5,000 generated and 5,000 computed tokens, of 512 a step.
        (20, 5000, 0, DiagnosisKind.TOKEN_BUDGET),
        (30, 5000, 0, HEALTHY),
        # What the prefix cache had was not computed.
        (20, 5000, 4000, HEALTHY),
        (None, 5000, 0, HEALTHY),
    ],
)
def test_steps_that_are_full_are_bound_by_their_budget(
    iterations: float | None, prompt_tokens: float, hits: float, kind: DiagnosisKind
) -> None:
    full = window(
        running=8, waiting=0, usage=0.5, iterations=iterations, prompt_tokens=prompt_tokens,
        prefix=(prompt_tokens, hits),
    )  # fmt: skip
    assert diagnose_engine(engine(full), 64, LIMITS, usual=Usual(512)).kind is kind
    assert diagnose_engine(engine(full), 64, LIMITS).kind is HEALTHY


@pytest.mark.parametrize(
    ("hits", "usage", "usual", "kind"),
    [
        (300, 0.85, 0.5, DiagnosisKind.PREFIX_THRASH),
        (360, 0.85, 0.5, HEALTHY),
        # With room in the cache, something else is asked for.
        (300, 0.5, 0.5, HEALTHY),
        (300, 0.85, None, HEALTHY),
        (300, 0.85, 0.0, HEALTHY),
    ],
)
def test_hits_far_below_the_usual_in_a_full_cache_are_evicted_too_early(
    hits: float, usage: float, usual: float | None, kind: DiagnosisKind
) -> None:
    full = window(running=8, waiting=0, usage=usage, prefix=(1000, hits))
    found = diagnose_engine(engine(full), 64, LIMITS, usual=Usual(hit_ratio=usual))
    assert found.kind is kind
