"""The numbers behind a lower and a higher cap."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner import caps
from kvserving_tuner.caps import Predicted
from kvserving_tuner.fit import Residence, engine_fit, fitting_sequences, residence
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.readings import Unknown
from kvserving_tuner.settings import CapRules, Slo, Thresholds, TuningSettings
from kvserving_tuner.state import Ceiling
from tunerkit.build import engine, lengths, window

RULES, LIMITS = CapRules(), Thresholds()


def test_tokens_held_by_a_sequence_of_fixed_lengths() -> None:
    found = residence(lengths(200), lengths(500), 128)
    assert isinstance(found, Residence)
    # The prompt, half the answer on average, and half a block of rounding.
    assert found.mean == pytest.approx(200 + 250 + 64)
    assert found.deviation == pytest.approx(500 / math.sqrt(12))


def test_varying_answers_hold_more_because_long_ones_stay_longer() -> None:
    mixed = Histogram((50.0, 100.0, 200.0, 500.0, 1000.0, math.inf), (50, 0, 0, 0, 50, 0), 38750)
    fixed, varying = residence(lengths(100), lengths(387.5), 0), residence(lengths(100), mixed, 0)
    assert isinstance(fixed, Residence)
    assert isinstance(varying, Residence)
    assert varying.mean > 1.3 * fixed.mean
    assert varying.deviation > fixed.deviation


@given(st.floats(100, 1e6), st.floats(1, 5000), st.floats(0, 5000), st.floats(0.001, 0.4))
def test_sequences_that_fit_solve_the_inequality(
    capacity: float, mean: float, deviation: float, risk: float
) -> None:
    from statistics import NormalDist

    rules = CapRules(fit_risk=risk)
    n = fitting_sequences(capacity, Residence(mean, deviation), rules)
    z = NormalDist().inv_cdf(1 - risk)

    def demand(count: int) -> float:
        return count * mean + z * deviation * math.sqrt(count)

    room = 0.95 * capacity
    assert n == 1 or demand(n) <= room * (1 + 1e-9)
    assert demand(n + 1) > room * (1 - 1e-9)


def test_the_fit_needs_capacity_and_enough_finished_requests() -> None:
    some = {"prompts": lengths(200, 9), "answers": lengths(500, 9)}
    enough = {"prompts": lengths(200), "answers": lengths(500)}
    assert isinstance(engine_fit(engine(window(), **some), RULES), Unknown)  # type: ignore[arg-type]
    assert isinstance(engine_fit(engine(window(), capacity=None, **enough), RULES), Unknown)  # type: ignore[arg-type]
    assert engine_fit(engine(window(), **enough), RULES) == 6  # type: ignore[arg-type]


def test_recent_lengths_count_before_those_of_the_whole_life() -> None:
    recent = window(prompts=lengths(100), answers=lengths(50))
    ever = engine(recent, prompts=lengths(900), answers=lengths(900))
    alone = engine(recent)
    assert engine_fit(ever, RULES) == engine_fit(alone, RULES)


@pytest.mark.parametrize(
    ("running", "fitting", "minimum", "expected"),
    [(16, False, 1, 12), (16, True, 1, 6), (3, True, 1, 2), (16, True, 8, 8), (0.5, False, 1, 1)],
)
def test_the_lowered_cap_is_the_smaller_of_what_fits_and_80_percent_of_what_ran(
    running: float, fitting: bool, minimum: int, expected: int
) -> None:
    of = {"prompts": lengths(200), "answers": lengths(500)} if fitting else {}
    one = engine(window(running=running), **of)  # type: ignore[arg-type]
    found = caps.lowered(one, window(15, running=running), RULES, minimum)
    assert found.cap == expected
    assert found.fit == (6 if fitting else None)


def test_the_lowered_cap_counts_per_rank() -> None:
    one = engine(window(running=32), ranks=2)
    assert caps.lowered(one, window(15, running=32), RULES, 1).cap == 12


def test_use_after_a_raise_is_predicted_from_use_before() -> None:
    full = window(running=8, usage=0.5, usage_max=0.6, finished=30)
    found = caps.predict_usage(engine(full), full, 8, 10, RULES, LIMITS)
    assert found == Predicted(0.75, "measured")
    not_at_cap = caps.predict_usage(engine(full), full, 16, 20, RULES, LIMITS)
    assert not_at_cap == Predicted(0.6, "not at its cap")


def test_young_sequences_are_not_taken_for_small_ones() -> None:
    # Nothing finished in the window: all of them have still to grow.
    full = window(running=4, usage=0.2, finished=0)
    assert isinstance(caps.predict_usage(engine(full), full, 4, 5, RULES, LIMITS), Unknown)
    known = engine(full, prompts=lengths(200), answers=lengths(500))
    fits = caps.predict_usage(known, full, 4, 5, RULES, LIMITS)
    assert isinstance(fits, Predicted)
    assert fits.usage == pytest.approx(0.25)
    too_many = caps.predict_usage(known, full, 4, 7, RULES, LIMITS)
    assert isinstance(too_many, Predicted)
    assert too_many.usage > 1


def test_the_largest_cap_that_keeps_every_engine_below_90_percent() -> None:
    settings = TuningSettings()
    light = engine(window(running=8, usage=0.3, finished=30), name="light")
    heavy = engine(window(running=8, usage=0.75, finished=30), name="heavy")
    assert caps.largest_that_fits([light], 8, 10, settings)[0] == 10
    to, worst = caps.largest_that_fits([light, heavy], 8, 10, settings)
    assert to == 9
    assert isinstance(worst, Predicted)
    assert worst.usage == pytest.approx(0.75 * 9 / 8)
    full = engine(window(running=8, usage=0.84, finished=30), name="full")
    to, worst = caps.largest_that_fits([light, full], 8, 10, settings)
    assert to == 8
    assert isinstance(worst, Predicted)
    assert worst.usage > 0.9
    assert caps.largest_that_fits([engine(Unknown("young"))], 8, 10, settings)[0] == 8


@pytest.mark.parametrize(
    ("cap", "maximum", "expected"),
    [(1, 64, 2), (3, 64, 4), (8, 64, 10), (64, 64, 64), (60, 64, 64)],
)
def test_a_step_up(cap: int, maximum: int, expected: int) -> None:
    assert caps.step_up(cap, maximum, RULES) == expected


@pytest.mark.parametrize(
    ("sequences", "tokens", "expected"),
    [
        (10, None, 9),
        (10, 700, 9),
        (10, 500, 9),
        # Requests half as long: twice as many may run.
        (10, 350, 18),
        (2, None, 1),
        (1.5, None, 1),
        (50, None, 45),
    ],
)
def test_distance_from_a_remembered_storm(
    sequences: float, tokens: float | None, expected: int
) -> None:
    ceiling = Ceiling(sequences=sequences, tokens_per_request=700, until=0)
    assert caps.below_ceiling(ceiling, tokens, RULES) == expected


def latencies(*counts: float) -> Histogram:
    return Histogram((0.025, 0.0425, 0.05, 0.1, math.inf), counts, 1.0)


@pytest.mark.parametrize(
    ("found", "enough"),
    [
        (latencies(50, 50, 0, 0, 0), True),
        (latencies(50, 46, 4, 0, 0), True),
        (latencies(50, 40, 10, 0, 0), False),
        (latencies(0, 0, 0, 0, 100), False),
        (latencies(0, 0, 0, 0, 0), True),
        # Old engines lack the edge: the percentile may be on either side of it.
        (Histogram((0.025, 0.05, math.inf), (50, 50, 0), 1.0), None),
        (Histogram((0.025, 0.05, math.inf), (99, 1, 0), 1.0), True),
        (Histogram((0.025, 0.05, math.inf), (50, 0, 50), 1.0), False),
        (Unknown("absent"), None),
    ],
)
def test_room_under_the_target_for_time_per_output_token(
    found: Histogram | Unknown, enough: bool | None
) -> None:
    settings = TuningSettings(slo=Slo(tpot_ms=50))
    assert settings.tpot_edges_ms() == (42.5, 50)
    assert caps.tpot_slack([engine(window(tpot=found))], settings).enough is enough
    assert caps.tpot_slack([engine(window(tpot=found))], TuningSettings()).enough is True
