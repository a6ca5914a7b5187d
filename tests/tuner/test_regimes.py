"""Loads: told apart, remembered, looked up again, and not chased where they alternate."""

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from river.drift import PageHinkley

from kvserving_tuner.observation import EngineObservation
from kvserving_tuner.readings import Unknown
from kvserving_tuner.regimes import drift
from kvserving_tuner.regimes.fingerprint import average, distance, fingerprint
from kvserving_tuner.regimes.loads import (
    InForce,
    Shift,
    alternates,
    current,
    follow,
    robust_cap,
    settings_changed,
)
from kvserving_tuner.remembered import Drift, Fingerprint, Loads
from kvserving_tuner.rules import RegimeRules
from tunerkit.build import NOW, engine, lengths, window

RULES = RegimeRules()
CALM = InForce(cap=8, kv_cache_dtype="bfloat16", calm=True)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=200), st.sampled_from([0.0, 0.05, 0.5]))
def test_the_test_for_change_is_that_of_river(values: list[float], delta: float) -> None:
    rules = RegimeRules(drift_delta=delta, drift_threshold=2.0, minimum_windows=5)
    theirs = PageHinkley(min_instances=5, delta=delta, threshold=2.0, alpha=1.0)
    ours, found = Drift(), False
    for value in values:
        if found:
            ours = Drift()
        ours, found = drift.update(ours, value, rules)
        theirs.update(value)
        assert found == theirs.drift_detected


def load(
    rate: float = 0.5, prompt: float = 200, answer: float = 300, at: float = NOW
) -> EngineObservation:
    finished = 60 * rate
    full = window(
        running=8, finished=finished, end=at,
        prompts=lengths(prompt, finished), answers=lengths(answer, finished),
    )  # fmt: skip
    return engine(full)


def fed(
    loads: Loads, parts: Iterable[EngineObservation], in_force: InForce = CALM
) -> tuple[Loads, list[Shift]]:
    shifts = []
    for part in parts:
        at = part.at or 0.0
        loads, shift = follow(loads, [part], in_force, RULES, at)
        if shift is not None:
            shifts.append(shift)
    return loads, shifts


def stretch(
    count: int, start: float, noise: float = 0.0, seed: int = 1, **of: float
) -> list[EngineObservation]:
    source = random.Random(seed)
    found = []
    for number in range(count):
        scaled = {name: value * math.exp(source.gauss(0, noise)) for name, value in of.items()}
        found.append(load(**scaled, at=start + 60 * number))
    return found


def test_a_fingerprint_is_of_one_engine_on_average() -> None:
    one, two = fingerprint([load(0.5)]), fingerprint([load(0.5), load(0.5)])
    assert one is not None
    assert two is not None
    assert one.rate == pytest.approx(two.rate) == pytest.approx(0.5)
    assert one.prompt_tokens == pytest.approx(200)
    assert one.answer_tokens == pytest.approx(300)


def test_without_a_window_or_lengths_there_is_no_fingerprint() -> None:
    assert fingerprint([]) is None
    assert fingerprint([load(), engine(Unknown("2 of 3 samples"))]) is None
    assert fingerprint([load(rate=0.01)]) is None
    assert fingerprint([engine(window(finished=30))]) is None


def test_loads_are_as_far_apart_as_their_most_different_number() -> None:
    base = Fingerprint(rate=1, prompt_tokens=100, answer_tokens=100)
    assert distance(base, base) == 0
    other = Fingerprint(rate=2, prompt_tokens=100, answer_tokens=300)
    assert distance(base, other) == pytest.approx(math.log(3))
    mean = average(base, 1, other)
    assert (mean.rate, mean.answer_tokens) == (1.5, 200)


def test_a_load_is_known_after_a_few_windows() -> None:
    loads, shifts = fed(Loads(), stretch(2, NOW, rate=0.5))
    assert (loads.current, shifts) == ("", [])
    loads, shifts = fed(loads, stretch(1, NOW + 120, rate=0.5))
    assert (loads.current, shifts) == ("load-1", [])


def test_windows_that_overlap_count_once() -> None:
    loads = Loads()
    for second in range(0, 120, 5):
        loads, _ = follow(loads, [load(at=NOW + second)], CALM, RULES, NOW + second)
    assert loads.gathered_windows == 2


def test_a_doubled_rate_is_another_load_and_the_way_back_is_known() -> None:
    loads, _ = fed(Loads(), stretch(20, NOW, noise=0.1, rate=0.5))
    loads, shifts = fed(loads, stretch(12, NOW + 1200, noise=0.1, seed=2, rate=1.0))
    assert shifts == [Shift("load-1", "load-2", known=False)]
    loads, shifts = fed(loads, stretch(12, NOW + 1920, noise=0.1, seed=3, rate=0.5))
    assert shifts == [Shift("load-2", "load-1", known=True)]
    assert [each.name for each in loads.regimes] == ["load-1", "load-2"]


@pytest.mark.parametrize("changed", [{"prompt": 800.0}, {"answer": 60.0}, {"rate": 0.2}])
def test_any_of_its_numbers_makes_another_load(changed: dict[str, float]) -> None:
    base = {"rate": 0.5, "prompt": 200.0, "answer": 300.0}
    loads, _ = fed(Loads(), [load(**base, at=NOW + 60 * n) for n in range(20)])
    _, shifts = fed(loads, [load(**{**base, **changed}, at=NOW + 1200 + 60 * n) for n in range(12)])
    assert len(shifts) == 1


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_change_of_load(seed: int) -> None:
    loads, _ = fed(Loads(), stretch(3, NOW, rate=0.5))
    loads, shifts = fed(loads, stretch(500, NOW + 200, noise=0.15, seed=seed, rate=0.5))
    assert shifts == []
    assert len(loads.regimes) == 1


def test_settings_that_served_calmly_are_remembered_with_the_load() -> None:
    loads, _ = fed(Loads(), stretch(6, NOW, rate=0.5))
    stormy = InForce(cap=2, kv_cache_dtype="int2", calm=False)
    loads, _ = fed(loads, stretch(3, NOW + 400, rate=0.5), stormy)
    here = current(loads)
    assert here is not None
    assert (here.cap, here.kv_cache_dtype) == (8, "bfloat16")


def test_a_change_of_settings_does_not_look_like_one_of_load() -> None:
    loads, _ = fed(Loads(), stretch(20, NOW, rate=0.5))
    loads = settings_changed(loads)
    assert loads.drifts == (Drift(),) * 3
    assert loads.current == "load-1"


def test_loads_that_alternate_get_the_cap_that_suits_all() -> None:
    loads, _ = fed(Loads(), stretch(6, NOW, rate=0.5), InForce(12, None, calm=True))
    loads, _ = fed(loads, stretch(12, NOW + 360, rate=1.5), InForce(6, None, calm=True))
    at = NOW + 360 + 12 * 60
    assert not alternates(loads, RULES, at)
    loads, shifts = fed(loads, stretch(12, at, rate=0.5), InForce(12, None, calm=True))
    at += 12 * 60
    assert shifts[0].known
    assert alternates(loads, RULES, at)
    assert robust_cap(loads, at) == 6
    assert not alternates(loads, RULES, at + 3600)


def test_only_so_many_loads_are_kept_and_the_latest_among_them() -> None:
    rules = RegimeRules(remembered=3)
    loads, at, rate = Loads(), NOW, 0.5
    for _ in range(6):
        for part in stretch(14, at, rate=rate):
            loads, _ = follow(loads, [part], CALM, rules, part.at or 0.0)
        at, rate = at + 14 * 60, rate * 2
    assert len(loads.regimes) == 3
    assert current(loads) is not None


rates = st.floats(0.05, 20)


@given(st.lists(st.tuples(rates, st.integers(1, 12)), max_size=8))
def test_memory_of_loads_survives_storage_and_stays_bounded(parts: list[tuple[float, int]]) -> None:
    loads, at = Loads(), NOW
    for rate, count in parts:
        loads, _ = fed(loads, stretch(count, at, rate=rate))
        at += count * 60
        loads = Loads.model_validate_json(loads.model_dump_json())
    assert len(loads.regimes) <= RULES.remembered
    assert len(loads.changed_at) <= 60
