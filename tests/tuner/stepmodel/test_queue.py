"""Arithmetic of steady loads, against the simulator of the same steps."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.outcome import simulate
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.workload import Request, Workload
from kvserving_tuner.stepmodel.queue import Engine, Load, largest_rate, steady

TIMES = StepTimes(0.007, 2e-5, 2e-5, 3.2e-13, 4e-9)
SIZE = 131_072
ENGINE = Engine(TIMES, SIZE, 440_000, 256, 2048)
CHAT, PROMPTS = Load(1000, 200), Load(4000, 50)


def arrivals(load: Load, rate: float, seconds: float) -> Workload:
    chance, at, found = random.Random(7), 0.0, []
    while (at := at + chance.expovariate(rate)) < seconds:
        found.append(Request(at, int(load.prompt), int(load.answer)))
    return Workload.of("steady", found)


def simulated(engine: Engine, load: Load, rate: float, seconds: float) -> tuple[float, float]:
    """Mean time per output token and mean sequences at once, after a while."""
    settings = EngineSettings(
        cache_bytes=engine.cache_tokens * SIZE,
        bytes_per_token={"bfloat16": SIZE},
        dtype="bfloat16",
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        prefix_caching=False,
    )
    outcome = simulate(arrivals(load, rate, seconds), settings, engine.times)
    settled = outcome.arrival > seconds / 5
    running = outcome.timeline.running[len(outcome.timeline.running) // 5 : -1]
    return float(np.nanmean(outcome.tpot[settled])), float(running.mean())


@pytest.mark.parametrize(("load", "below"), [(CHAT, 0.15), (PROMPTS, 0.35)])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_steady_load_is_as_simulated(load: Load, below: float, share: float) -> None:
    rate = share / ENGINE.seconds_per_request(load)
    found = steady(ENGINE, load, rate)
    assert found is not None
    assert found.load == pytest.approx(share)
    tpot, running = simulated(ENGINE, load, rate, 300)
    assert (1 - below) * tpot <= found.step_seconds <= 1.15 * tpot
    assert (1 - below - 0.05) * running <= found.running <= 1.2 * running


def test_more_than_an_engine_can_do_never_comes_to_rest() -> None:
    rate = 1 / ENGINE.seconds_per_request(CHAT)
    assert steady(ENGINE, CHAT, rate) is None
    assert steady(ENGINE, CHAT, 0.5 * rate) is not None
    # A step has to have room for the prompts that come while it lasts.
    assert steady(replace(ENGINE, max_num_batched_tokens=64), CHAT, 0.5 * rate) is None


def test_targets_cap_and_cache_each_bound_the_rate() -> None:
    free = largest_rate(ENGINE, CHAT)
    assert 0 < free < 1 / ENGINE.seconds_per_request(CHAT)
    small = replace(ENGINE, cache_tokens=22_000)
    for bound in (
        largest_rate(ENGINE, CHAT, tpot_seconds=0.012),
        largest_rate(ENGINE, CHAT, ttft_seconds=0.05),
        largest_rate(replace(ENGINE, max_num_seqs=16), CHAT),
        largest_rate(small, CHAT),
    ):
        assert 0 < bound < 0.9 * free
    # Where the cache binds, twice the tokens hold more; where it does not, they change nothing.
    assert largest_rate(replace(small, cache_tokens=44_000), CHAT) > 1.5 * largest_rate(small, CHAT)
    assert largest_rate(replace(ENGINE, cache_tokens=9e9), CHAT) == pytest.approx(free, rel=0.25)


def test_what_no_rate_keeps_is_no_rate() -> None:
    assert largest_rate(ENGINE, CHAT, tpot_seconds=0.006) == 0
    assert largest_rate(replace(ENGINE, cache_tokens=900), CHAT) == 0


def test_cached_tokens_are_held_and_not_computed() -> None:
    cached = Load(100, 200, held=1000)
    assert cached.context == CHAT.context
    assert largest_rate(ENGINE, cached) > largest_rate(ENGINE, CHAT)


@given(
    st.floats(1, 1e5), st.floats(1, 1e4), st.floats(1e3, 1e7), st.integers(1, 1024),
    st.one_of(st.none(), st.floats(1e-3, 10)), st.one_of(st.none(), st.floats(1e-3, 1)),
)  # fmt: skip
def test_the_largest_rate_keeps_what_it_says(
    prompt: float, answer: float, cache: float, seqs: int, ttft: float | None, tpot: float | None
) -> None:
    engine = replace(ENGINE, cache_tokens=cache, max_num_seqs=seqs)
    load = Load(prompt, answer)
    rate = largest_rate(engine, load, ttft, tpot)
    assert rate >= 0
    if rate > 0:
        found = steady(engine, load, rate)
        assert found is not None
        assert ttft is None or found.ttft_seconds <= ttft
        assert tpot is None or found.step_seconds <= tpot
        assert found.running <= max(1, min(seqs, cache / load.context))


@pytest.mark.parametrize(("prompt", "answer"), [(0, 1), (1, 0), (math.inf, 1), (math.nan, 1)])
def test_requests_have_tokens(prompt: float, answer: float) -> None:
    with pytest.raises(SimulationError, match="at least 1 token"):
        Load(prompt, answer)
