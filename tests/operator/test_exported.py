"""Metrics of a KVServing: what its spec asks for, how it stands, and what became of its trials."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvserving_operator.metrics import Present
from operatorkit.specs import NAME, NAMESPACE, engine_spec
from operatorkit.trials import (
    GUARDED,
    only_trial,
    put_policy,
    put_trial,
    reach,
    ready,
    serve,
)
from operatorkit.world import World, set_condition

SERVING = {"namespace": NAMESPACE, "name": NAME}


def shown(world: World, metric: str) -> dict[tuple[str, ...], float]:
    """Samples of the KVServing, by the values of their further labels."""
    return {
        tuple(value for label, value in sample.labels.items() if label not in SERVING):
        sample.value
        for family in world.metrics.registry.collect()
        for sample in family.samples
        if sample.name == metric and sample.labels.items() >= SERVING.items()
    }  # fmt: skip


def number(world: World, metric: str, **labels: str) -> float | None:
    """One sample of the KVServing; None where there is none."""
    return world.metrics.registry.get_sample_value(metric, {**SERVING, **labels})


async def test_targets_are_those_of_the_spec_and_go_with_them(world: World) -> None:
    world.put(slo={"ttftMilliseconds": 350, "tpotMilliseconds": 40, "percentile": 90})
    await world.tick()
    assert number(world, "kvserving_slo_ttft_seconds") == 0.35
    assert number(world, "kvserving_slo_tpot_seconds") == 0.04
    assert number(world, "kvserving_slo_percentile") == 90
    world.put(slo={"ttftMilliseconds": 500})
    await world.tick()
    assert number(world, "kvserving_slo_ttft_seconds") == 0.5
    assert number(world, "kvserving_slo_tpot_seconds") is None
    assert number(world, "kvserving_slo_percentile") == 95


async def test_each_condition_has_the_one_series_of_its_present_reason(world: World) -> None:
    world.put()
    await world.settle()
    await world.tick()
    found = shown(world, "kvserving_condition")
    assert set(found) == {(c["type"], c["status"], c["reason"]) for c in world.status["conditions"]}
    assert set(found.values()) == {1}
    world.put(replicas=0)
    await world.settle()
    assert ("Ready", "False", "ScaledToZero") in shown(world, "kvserving_condition")
    types = [key[0] for key in shown(world, "kvserving_condition")]
    assert len(types) == len(set(types))


async def test_engines_that_are_wanted_and_those_that_answer(world: World) -> None:
    world.put(replicas=2)
    await world.settle()
    set_condition(next(iter(world.engine_pods().values())), "Ready", "False")
    await world.tick()
    assert number(world, "kvserving_operator_wanted_engines") == 2
    assert number(world, "kvserving_operator_ready_engines") == 1


async def test_the_format_is_the_one_that_engines_report(world: World) -> None:
    world.put(kvCache={"dtype": "int8"})
    await world.tick()
    assert set(shown(world, "kvserving_info")) == {("tiny", "Auto", "", "")}
    await world.settle()
    assert set(shown(world, "kvserving_info")) == {("tiny", "Auto", "int8", "None")}


async def test_a_tuner_that_misses_data_says_which_and_its_last_look_ages(world: World) -> None:
    world.put()
    await world.settle()
    await world.tick()
    seen_at = number(world, "kvserving_operator_last_observation_timestamp_seconds")
    assert seen_at == world.clock()
    world.engines.down = set(world.engines.caps)
    await world.tick()
    await world.tick()
    assert number(world, "kvserving_operator_last_observation_timestamp_seconds") == seen_at
    assert number(world, "kvserving_operator_last_tick_timestamp_seconds") == world.clock()
    condition = {"type": "MetricsAvailable", "status": "False", "reason": "MetricsMissing"}
    assert number(world, "kvserving_condition", **condition) == 1


async def test_the_decision_is_the_latest_and_none_while_pods_are_replaced(world: World) -> None:
    world.put()
    await world.settle()
    await world.tick()
    assert len(shown(world, "kvserving_decision")) == 1
    ((action, reason, diagnosis),) = shown(world, "kvserving_decision")
    assert (action, reason) == ("Hold", world.status["lastDecision"]["reason"])
    assert diagnosis == world.status["lastDecision"]["diagnosis"]
    world.put(engine=engine_spec(maxNumSeqs=8))
    await world.tick()
    world.finish_check(code=0)
    await world.tick()
    world.clock.advance(60)
    await world.tick()
    assert shown(world, "kvserving_decision") == {}


async def test_a_spec_that_cannot_be_read_is_no_deaf_operator(world: World) -> None:
    world.put()
    await world.settle()
    world.put(engine=engine_spec(maxNumSeqs=0))
    await world.tick(100)
    assert number(world, "kvserving_operator_last_tick_timestamp_seconds") == world.clock()
    assert number(world, "kvserving_operator_degraded") == 1
    condition = {"type": "Degraded", "status": "True", "reason": "InvalidSpec"}
    assert number(world, "kvserving_condition", **condition) == 1


async def test_counters_of_trials_are_there_before_the_first_one(world: World) -> None:
    world.put()
    await world.tick()
    assert shown(world, "kvserving_rollbacks_total") == {("Trial",): 0, ("Promoted",): 0}
    assert set(shown(world, "kvserving_trials_total").values()) == {0}
    verdicts = {"Promoted", "RolledBack", "Inconclusive", "Void", "Failed"}
    assert {key[0] for key in shown(world, "kvserving_trials_total")} == verdicts


async def test_a_rollback_counts_once_and_its_evidence_is_shown_before(world: World) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    (trial,) = shown(world, "kvserving_trial")
    assert trial[1:] == ("Running", "0")
    world.engines.worse["int8"] = 0.4
    worst: dict[tuple[str, ...], float] = {}
    for _ in range(40):
        worst = shown(world, "kvserving_quality_drop_ratio") or worst
        await serve(world, 1)
    assert only_trial(world)["verdict"] == "RolledBack"
    # exp(0.4) - 1, some of it from prompts that were scored before.
    assert worst[("ServedLikelihoodShort", "Trial")] > 0.1
    assert shown(world, "kvserving_rollbacks_total") == {("Trial",): 1, ("Promoted",): 0}
    assert number(world, "kvserving_trials_total", verdict="RolledBack") == 1
    for gone in ("trial", "quality_drop_ratio", "quality_max_drop_ratio", "quality_samples"):
        assert shown(world, f"kvserving_{gone}") == {}


async def test_what_a_person_takes_back_is_a_verdict_and_no_finding(world: World) -> None:
    await ready(world)
    put_trial(world)
    await reach(world, "Running")
    put_trial(world, control="RollBack")
    await serve(world, 10)
    assert only_trial(world)["reason"] == "AskedFor"
    assert number(world, "kvserving_trials_total", verdict="RolledBack") == 1
    assert number(world, "kvserving_rollbacks_total", stage="Trial") == 0


async def test_a_fall_after_the_promotion_is_shown_against_its_bound_and_counted(
    world: World,
) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 120)
    assert only_trial(world)["verdict"] == "Promoted"
    assert number(world, "kvserving_trials_total", verdict="Promoted") == 1
    world.engines.worse["int8"] = 0.4
    key = ("WatchedLikelihoodShort", "Promoted")
    series: list[tuple[float, float, float]] = []
    for _ in range(400):
        drop = shown(world, "kvserving_quality_drop_ratio").get(key)
        if drop is not None:
            bound = shown(world, "kvserving_quality_max_drop_ratio")[key]
            series.append((drop, bound, shown(world, "kvserving_quality_samples")[key]))
        await serve(world, 1)
        if world.said("QualityRegressed"):
            break
    assert {round(bound, 6) for _, bound, _ in series} == {0.02}
    assert any(drop > bound for drop, bound, _ in series)
    assert series[-1][2] > series[0][2] >= 1
    assert shown(world, "kvserving_rollbacks_total") == {("Trial",): 0, ("Promoted",): 1}
    assert number(world, "kvserving_trials_total", verdict="RolledBack") == 0
    await world.tick()
    assert shown(world, "kvserving_quality_drop_ratio") == {}


async def test_guards_are_shown_apart_from_quality(world: World) -> None:
    await ready(world)
    put_policy(
        world,
        ab={"steps": [50], "minRequests": 4, "minDurationSeconds": 900},
        guards={"errorRateMaxIncreaseBasisPoints": 10},
    )
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    rises: dict[tuple[str, ...], float] = {}
    bounds: dict[tuple[str, ...], float] = {}
    for _ in range(40):
        await serve(world, 1, finishes=10)
        rises = shown(world, "kvserving_guard_rise_ratio") or rises
        bounds = shown(world, "kvserving_guard_max_rise_ratio") or bounds
    assert rises.keys() == bounds.keys()
    assert rises[("Errors",)] == 0
    assert bounds[("Errors",)] == pytest.approx(0.001)
    criteria = {key[0] for key in shown(world, "kvserving_quality_drop_ratio")}
    assert criteria
    assert not criteria & {guard for (guard,) in rises}


async def test_nothing_is_left_of_a_serving_that_is_gone(world: World) -> None:
    slo: dict[str, Any] = {"slo": {"ttftMilliseconds": 100}}
    await ready(world, **slo)
    world.put(replicas=2, **GUARDED, **slo, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    await serve(world, 3)
    assert shown(world, "kvserving_quality_drop_ratio")
    world.controller.forget(NAMESPACE, NAME)
    left = {
        sample.name
        for family in world.metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("name") == NAME
    }
    assert left == set()


def test_a_series_that_stays_is_never_taken_away_in_between() -> None:
    registry = CollectorRegistry()
    present = Present("a", "A.", ("kind",), registry)
    present.show("team", "chat", {("old",): 1, ("both",): 1})
    child = present._gauge.labels("team", "chat", "both")
    present.show("team", "chat", {("both",): 2, ("new",): 3})
    assert present._gauge.labels("team", "chat", "both") is child
    found = {s.labels["kind"]: s.value for f in registry.collect() for s in f.samples}
    assert found == {"both": 2, "new": 3}
    present.show("team", "other", {("old",): 4})
    present.show("team", "chat", {})
    (left,) = [s for f in registry.collect() for s in f.samples]
    assert (left.labels["name"], left.value) == ("other", 4)
