"""How busy engines are, the share that a step gets, and the share that was measured."""

from dataclasses import replace
from typing import Any

import pytest

from kvserving_operator.traffic.load import demand, share
from kvserving_operator.traffic.state import TrafficState
from kvserving_operator.trials.record import Record
from kvserving_tuner.observation import (
    EngineObservation,
    FleetObservation,
    GaugeWindow,
    Observation,
    Window,
)
from kvserving_tuner.readings import Known, Reading, Unknown
from kvserving_tuner.trials.plan import Guard, Plan
from operatorkit import trials

UNKNOWN = Unknown("not measured")
OFFERS = ("auto", "bfloat16", "int8", "int4")
CAP = Known(16, 0)


def record(*candidates: str, **more: Any) -> Record:
    return trials.record(*candidates, plan=Plan(steps=(5, 25, 50)), **more)


@pytest.mark.parametrize(
    ("asked", "candidates", "others", "load", "percent", "raised"),
    [
        pytest.param(5, 1, 3, 1.0, 5, False, id="three of four idle pods carry 95 %"),
        pytest.param(5, 1, 3, 2.8, 5, False, id="just so"),
        pytest.param(5, 1, 3, 2.9, 25, True, id="no more"),
        pytest.param(5, 1, 1, 0.9, 5, False, id="one of two carries nearly all"),
        pytest.param(5, 1, 1, 1.0, 50, True, id="but not more"),
        pytest.param(75, 1, 1, 1.5, 50, True, id="the candidate cannot carry it either"),
        pytest.param(50, 1, 1, 9.0, 50, False, id="nothing to raise"),
        pytest.param(5, 1, 3, None, 5, False, id="no reason without numbers"),
        pytest.param(100, 2, 1, 0.1, 99, False, id="each arm gets something"),
        pytest.param(1, 1, 400, 0.1, 1, False, id="nor less than a percent"),
    ],
)
def test_a_step_that_pods_cannot_carry_is_raised(
    asked: int,
    candidates: int,
    others: int,
    load: float | None,
    percent: int,
    raised: bool,
) -> None:
    found = share(asked, candidates, others, load)
    assert (percent, raised) == (found.percent, found.raised)


def test_once_raised_it_stays_for_its_step() -> None:
    assert share(5, 1, 3, 0.1, raised=True).raised
    assert share(5, 1, 3, None, raised=True).percent == 25


@pytest.mark.parametrize("pods", [(0, 3), (3, 0)])
def test_an_empty_arm_has_no_share(pods: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected pods in both arms"):
        share(5, *pods, load=None)


def gauge(value: float) -> GaugeWindow:
    return GaugeWindow(value, value, value, value, value, value)


def engine(
    name: str,
    running: float = 4,
    waiting: float = 0,
    usage: float = 0.25,
    cap: Reading = CAP,
    finished: Reading = UNKNOWN,
    **window: Any,
) -> EngineObservation:
    full = Window(
        start=0, end=10, scrapes=2,
        running=gauge(running), waiting=gauge(waiting), kv_usage=gauge(usage),
        **dict.fromkeys(
            (
                "preemptions", "generation_tokens", "prompt_tokens", "finished", "prefix_queries",
                "prefix_hits", "ttft", "tpot", "prompt_lengths", "answer_lengths",
                "unexplained_departures", "generation_slowdown", "ended", "failed", "iterations",
                "arrived", "arrival_dispersion",
            ),
            UNKNOWN,
        ),
    )  # fmt: skip
    full = replace(full, **window)
    return EngineObservation(
        target=name, at=10, answered=True, ranks=1, epoch_start=0, epoch_reason=None,
        running=UNKNOWN, waiting=UNKNOWN, kv_usage_max=UNKNOWN, kv_usage_mean=UNKNOWN,
        capacity_tokens=UNKNOWN, block_size=UNKNOWN, max_active_seqs=cap, short=UNKNOWN, full=full,
        prompt_lengths=UNKNOWN, answer_lengths=UNKNOWN, totals={"finished": finished},
    )  # fmt: skip


def observation(*engines: EngineObservation) -> Observation:
    fleet = FleetObservation(
        engines=len(engines), answered=len(engines), running=UNKNOWN, waiting=UNKNOWN,
        kv_usage_max=UNKNOWN, kv_usage_mean=UNKNOWN, generation_tokens_per_second=UNKNOWN,
        prompt_tokens_per_second=UNKNOWN, finished_per_second=UNKNOWN,
        preemptions_per_second=UNKNOWN, prefix_hit_ratio=UNKNOWN, ttft=UNKNOWN, tpot=UNKNOWN,
    )  # fmt: skip
    return Observation(at=10, engines=engines, fleet=fleet)


def test_the_scarcer_of_sequences_and_cache_counts() -> None:
    seen = observation(engine("a", running=8, usage=0.1), engine("b", running=1, usage=0.75))
    assert demand(seen) == pytest.approx(0.5 + 0.75)


def test_those_that_wait_count() -> None:
    assert demand(observation(engine("a", running=16, waiting=8))) == pytest.approx(1.5)


@pytest.mark.parametrize("missing", [{"cap": UNKNOWN}, {"cap": Known(0, 0)}, {"kv_usage": UNKNOWN}])
def test_one_engine_that_is_not_known_makes_all_unknown(missing: dict[str, Any]) -> None:
    assert demand(observation(engine("a"), engine("b", **missing))) is None


def test_nothing_is_known_of_nothing() -> None:
    assert demand(None) is None
    assert demand(observation()) is None


def test_requests_count_in_the_arm_of_the_engine_that_ended_them() -> None:
    state = TrafficState().under(25)
    for a, b in ((100, 500), (105, 520), (130, 595)):
        seen = observation(engine("a", finished=Known(a, 0)), engine("b", finished=Known(b, 0)))
        state = state.counted(seen, {"a"})
    assert (30, 95) == (state.candidate, state.stable)
    assert state.shown_percent == pytest.approx(24.0)


def test_a_counter_of_a_new_process_begins_anew() -> None:
    state = TrafficState(weight=5, totals={"a": 100})
    assert 0 == state.counted(observation(engine("a", finished=Known(3, 0))), {"a"}).candidate


def test_what_is_not_known_is_not_counted() -> None:
    state = TrafficState(weight=5, totals={"a": 100})
    assert 0 == state.counted(observation(engine("a")), {"a"}).candidate
    assert state == state.counted(None, {"a"})


def test_another_weight_is_another_count() -> None:
    state = TrafficState(weight=5, totals={"a": 1}, candidate=3, stable=4, shown_percent=1.0)
    assert TrafficState(weight=25) == state.under(25)
    assert state == state.under(5)


def test_without_a_share_nothing_is_counted() -> None:
    state = TrafficState(totals={"a": 100})
    assert state == state.counted(observation(engine("a", finished=Known(200, 0))), {"a"})


def test_a_share_is_shown_again_when_a_quarter_more_is_behind_it() -> None:
    state = TrafficState(weight=5, totals={"a": 0, "b": 0})
    shown = []
    for a in range(10, 110, 10):
        seen = observation(engine("a", finished=Known(a, 0)), engine("b", finished=Known(a, 0)))
        state = state.counted(seen, {"a"})
        shown.append(state.shown_requests)
    assert [20, 40, 60, 80, 100, 100, 140, 140, 180, 180] == shown


def test_a_raise_is_for_one_step() -> None:
    state = TrafficState().of(record("a")).model_copy(update={"raised": True})
    assert state.of(record("a")).raised
    assert not state.of(record("a", step=1)).raised
    assert not state.of(None).raised


def test_each_share_is_a_step_of_its_own() -> None:
    plan = Plan(steps=(5, 25, 50))
    assert plan.next_step(0, 2) is None
    weighted = plan.with_weights()
    assert [1, 2, None] == [weighted.next_step(step, 2) for step in range(3)]


def test_but_not_for_one_pod() -> None:
    assert Plan(steps=(5, 25, 50)).with_weights().next_step(0, 1) is None


def test_a_route_decides_how_many_requests_a_candidate_serves() -> None:
    plan = Plan(guards={Guard.TTFT: 10, Guard.THROUGHPUT: 1})
    assert {Guard.TTFT: 10} == plan.with_weights().guards
