"""The whole loop on model engines in virtual time: storms end, calm is used, nothing oscillates."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_tuner.decision import Action, DiagnosisKind, Reason
from kvserving_tuner.observation import ProblemReason
from kvserving_tuner.scrape import Sample
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.sources.base import Attempt
from tunerkit.engine import EngineModel, Request, closed, poisson
from tunerkit.world import START, World

AUTO = TuningSettings(mode=Mode.AUTO)
SLOW = 0.15
"""Seconds per engine step that keep the model cheap to run; also a fair CPU."""


def heavy(clients: int = 40, seed: int = 1) -> EngineModel:
    """An engine whose clients ask for three times what its cache holds."""
    arrivals = closed(seed, lambda now: clients, (100, 300), (100, 300))
    return EngineModel(4000, 64, arrivals, step_seconds=SLOW, started=START)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("seconds_per_step", [0.05, 0.15, 0.5])
def test_a_storm_is_ended_within_30_seconds(seed: int, seconds_per_step: float) -> None:
    def engine() -> EngineModel:
        model = heavy(seed=seed)
        model._step_seconds = seconds_per_step
        return model

    # By the engine's own books and without a tuner: three preemptions within 15 s.
    alone, counts = engine(), [0, 0, 0]
    while len(counts) < 200 and counts[-1] - counts[-4 if len(counts) > 3 else 0] < 3:
        alone.advance(START + 5 * (len(counts) - 2))
        counts.append(alone.true_preemptions)
    storm_after = 5 * (len(counts) - 3)
    assert storm_after < 900
    world = World({"a": engine()}, AUTO).run(storm_after + 30)
    assert [d for d in world.changes() if d.reason is Reason.PREEMPTION_STORM]
    assert world.engines["a"].cap < 20


def test_after_the_storm_preemptions_stay_rare_and_throughput_does_not_suffer() -> None:
    """On an engine that pays for recomputing: a CPU, which no batch makes faster."""
    found = {}
    for mode in (Mode.AUTO, Mode.OFF):
        engine = heavy()
        engine._step_seconds, engine._seconds_per_token = 0.02, 0.004
        World({"a": engine}, TuningSettings(mode=mode)).run(900)
        found[mode] = engine
    tuned, left = found[Mode.AUTO], found[Mode.OFF]
    assert tuned.true_preemptions < left.true_preemptions / 5
    assert tuned.finished > 1.1 * left.finished


def test_the_cap_rises_again_when_the_load_gets_lighter() -> None:
    light = False
    source = random.Random(3)

    def arrive(now: float, outstanding: int) -> list[Request]:
        length = 40 if light else 200
        spread = (length // 2, length * 3 // 2)
        return [
            Request(source.randint(*spread), source.randint(*spread), now)
            for _ in range(40 - outstanding)
        ]

    engine = EngineModel(4000, 64, arrive, step_seconds=SLOW, started=START)
    world = World({"a": engine}, AUTO).run(600)
    low = engine.cap
    assert low <= 12
    light = True
    world.run(240)
    assert engine.cap > low
    world.run(900)
    assert engine.cap >= 2 * low


def test_a_cap_that_is_too_low_is_raised_to_where_the_cache_is_used() -> None:
    engine = heavy()
    engine.cap = 2
    World({"a": engine}, AUTO).run(1200)
    assert 7 <= engine.cap <= 12


def test_a_cap_above_what_runs_is_left_alone() -> None:
    arrivals = closed(1, lambda now: 4, (100, 300), (100, 300))
    engine = EngineModel(4000, 64, arrivals, step_seconds=SLOW, started=START)
    world = World({"a": engine}, AUTO).run(900)
    assert world.changes() == []
    assert world.decisions[-1].reason is Reason.HEALTHY


loads = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "clients": st.sampled_from([4, 12, 30, 60]),
        "rate": st.none() | st.sampled_from([0.2, 0.6, 2.0]),
        "prompt": st.sampled_from([20, 100, 300]),
        "answer": st.sampled_from([40, 150, 300]),
        "spread": st.sampled_from([1, 2, 3]),
        "cap": st.sampled_from([4, 16, 200]),
        "capacity": st.sampled_from([3000, 6000, 12000]),
    }
)


@settings(
    max_examples=8,
    derandomize=True,
)
@given(loads)
def test_at_most_two_changes_in_any_ten_quiet_minutes(load: dict[str, Any]) -> None:
    clients, rate = load["clients"], load["rate"]
    prompt = (load["prompt"], load["prompt"] * load["spread"])
    answer = (load["answer"], load["answer"] * load["spread"])
    arrivals = (
        closed(load["seed"], lambda now: clients, prompt, answer)
        if rate is None
        else poisson(load["seed"], lambda now: rate, prompt, answer)
    )
    engine = EngineModel(load["capacity"], load["cap"], arrivals, step_seconds=0.3, started=START)
    world = World({"a": engine}, AUTO).run(2000)
    changes = [
        (d.at, int(d.change.to_value) - int(d.change.from_value))
        for d in world.changes()
        if d.change
    ]
    turns = [
        at
        for (at, step), (_, before) in zip(changes[1:], changes, strict=False)
        if step * before < 0
    ]
    # Growing step by step from a low start is no oscillation; turning round is.
    assert all(sum(at <= t < at + 600 for t in turns) <= 2 for at in turns), changes
    assert world.most_changes(600, since=900) <= 2 or not turns, changes


def test_a_fleet_moves_together() -> None:
    engines = {
        "busy": heavy(seed=1),
        "quiet": EngineModel(
            4000, 64, poisson(2, lambda now: 0.05, (50, 100), (50, 100)), started=START
        ),
    }
    world = World(engines, AUTO).run(600)
    assert engines["busy"].cap == engines["quiet"].cap < 20
    assert world.changes()[0].diagnosis.target == "busy"


def test_a_pod_that_restarts_with_its_own_cap_gets_the_decided_one() -> None:
    engines = {"a": heavy(seed=1), "b": heavy(seed=2)}
    world = World(engines, AUTO).run(300)
    decided = engines["a"].cap
    engines["b"].cap = 64
    world.run(5)
    assert world.decisions[-1].reason is Reason.CAPS_DIFFER
    assert engines["b"].cap == engines["a"].cap == decided


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.OFF])
def test_only_mode_auto_changes_anything(mode: Mode) -> None:
    engine = heavy()
    world = World({"a": engine}, TuningSettings(mode=mode)).run(600)
    assert engine.cap == 64
    assert world.changes() == []
    recommended = [d for d in world.decisions if d.action is Action.RECOMMEND]
    if mode is Mode.OFF:
        assert recommended == []
        return
    assert world.state.recommendation is not None
    assert int(world.state.recommendation.to_value) < 20
    # What is recommended stands; it is not made anew at each turn.
    assert len(recommended) <= 10


def test_a_restarted_tuner_goes_on_where_it_was() -> None:
    engine = heavy()
    world = World({"a": engine}, AUTO).run(300)
    again = World({"a": engine}, AUTO, state=world.state, now=world.now)
    again.run(5)
    assert again.state.ceiling == world.state.ceiling
    assert again.decisions[0].action is Action.HOLD


def broken(name: str, to: float | str | None) -> World:
    """A storming engine of which one metric is never readable."""

    def distort(now: float, engine: str, samples: list[Sample]) -> list[Sample]:
        kept = [s for s in samples if not s.name.startswith(name)]
        if to is None:
            return kept
        if isinstance(to, str):
            renamed = [replace(s, name=to) for s in samples if s.name.startswith(name)]
            return kept + renamed
        return kept + [replace(s, value=to) for s in samples if s.name.startswith(name)]

    return World({"a": heavy()}, AUTO, distort=distort)


@pytest.mark.parametrize(
    ("name", "to", "reason"),
    [
        ("vllm:kv_cache_usage_perc", math.nan, Reason.METRICS_MISSING),
        ("vllm:kv_cache_usage_perc", math.inf, Reason.METRICS_MISSING),
        ("vllm:kv_cache_usage_perc", None, Reason.METRIC_NAME_UNKNOWN),
        ("vllm:kv_cache_usage_perc", "vllm:kv_occupancy", Reason.METRIC_NAME_UNKNOWN),
        ("vllm:num_preemptions_total", None, Reason.METRIC_NAME_UNKNOWN),
        ("vllm:num_requests_running", math.nan, Reason.METRICS_MISSING),
        ("vllm:num_requests_waiting", None, Reason.METRIC_NAME_UNKNOWN),
        ("vllm:generation_tokens_total", math.nan, Reason.METRICS_MISSING),
        ("vllm:", None, Reason.METRICS_MISSING),
    ],
)
def test_unreadable_metrics_hold_with_the_right_reason(
    name: str, to: float | str | None, reason: Reason
) -> None:
    world = broken(name, to).run(180)
    assert world.changes() == []
    assert {decision.reason for decision in world.decisions} == {reason}


def test_frozen_gauges_hold() -> None:
    engine = heavy()
    frozen: list[Sample] = []

    def freeze(now: float, name: str, samples: list[Sample]) -> list[Sample]:
        if not frozen and now - START > 60:
            frozen.extend(samples)
        return frozen or samples

    world = World({"a": engine}, TuningSettings(mode=Mode.OFF), distort=freeze).run(180)
    problems = {p.reason for p in world.observations[-1].problems}
    assert problems == {ProblemReason.METRICS_STALE}
    assert world.decisions[-1].diagnosis.kind is DiagnosisKind.UNKNOWN


def test_zero_traffic_is_idle_for_ever() -> None:
    engine = EngineModel(4000, 64, lambda now, outstanding: [], started=START)
    world = World({"a": engine}, AUTO).run(300)
    assert world.changes() == []
    assert world.decisions[-1].reason is Reason.IDLE
    assert [p.reason for p in world.observations[-1].problems] == [ProblemReason.NO_TRAFFIC]


faults = st.lists(
    st.tuples(
        st.sampled_from(
            ["nothing", "nan", "inf", "drop", "rename", "labels", "freeze", "down", "reset"]
        ),
        st.integers(1, 8),
    ),
    min_size=4,
    max_size=24,
)


@settings(
    max_examples=12,
    derandomize=True,
)
@given(faults, st.integers(0, 1000))
def test_faulty_data_never_leads_to_a_change(found: list[tuple[str, int]], seed: int) -> None:
    """Whatever is wrong with the newest sample of the only engine, nothing is changed on it."""
    script = [fault for fault, turns in found for _ in range(turns)]
    source, last = random.Random(seed), list[Sample]()
    blamed: set[float] = set()

    def distort(now: float, name: str, samples: list[Sample]) -> Attempt | list[Sample]:
        fault = script[int((now - START) / 5) - 1] if now - START <= 5 * len(script) else "nothing"
        victims = ("vllm:kv_cache", "vllm:num_preempt", "vllm:num_requests", "vllm:generation_t")
        victim = source.choice(victims)
        if fault in {"nan", "inf", "drop", "rename", "down"}:
            blamed.add(now)
        match fault:
            case "nan" | "inf":
                value = math.nan if fault == "nan" else math.inf
                return [
                    replace(s, value=value) if s.name.startswith(victim) else s for s in samples
                ]
            case "drop":
                return [s for s in samples if not s.name.startswith(victim)]
            case "rename":
                return [
                    replace(s, name="vllm:odd") if s.name.startswith(victim) else s for s in samples
                ]
            case "labels":
                return [replace(s, labels={**s.labels, "model_name": f"m{now}"}) for s in samples]
            case "freeze" if last:
                return list(last)
            case "down":
                return Attempt(failure="connection refused")
            case "reset":
                return [replace(s, value=0.0) if s.name.endswith("_total") else s for s in samples]
        last[:] = samples
        return samples

    world = World({"a": heavy(seed=seed)}, AUTO, distort=distort)
    world.run(5 * len(script))
    for decision in world.changes():
        assert decision.at not in blamed, decision
    for decision in world.decisions:
        if decision.at in blamed:
            assert decision.action is Action.HOLD
            assert decision.diagnosis.kind is DiagnosisKind.UNKNOWN
