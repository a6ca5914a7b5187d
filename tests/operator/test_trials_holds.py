"""Where evidence stays away: what holds a trial, for how long, and who is told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvserving_operator.trials.background import Background
from operatorkit.engines import HISTOGRAMS
from operatorkit.trials import (
    GUARDED,
    POLICY,
    evidence,
    only_trial,
    put_policy,
    put_trial,
    reach,
    ready,
    serve,
    trials,
)
from operatorkit.world import World

FAILS = httpx.Response(503, json={"error": {"message": "no memory"}})


def policy(*, screening: str = "Disabled", guards: Any = None, **ab: Any) -> dict[str, Any]:
    """A policy with other clocks; it stalls after a minute."""
    return {
        "ab": {**POLICY["ab"], "stallTimeoutSeconds": 60, **ab},
        "quality": {**POLICY["quality"], "screening": screening},
        "guards": guards or {},
    }


def told(world: World) -> str:
    """What the KVServing says of the trial."""
    return str(world.condition("QualityGate")["message"])


@pytest.mark.parametrize("screening", ["Enabled", "Disabled"])
async def test_a_failed_probe_counts_until_one_is_answered(world: World, screening: str) -> None:
    await ready(world)
    put_trial(world, policy=policy(screening=screening, onStall="Rollback"))
    world.engines.probe_error = FAILS
    await reach(world, "Screening" if screening == "Enabled" else "Running")
    await serve(world, 1)
    for _ in range(20):
        # Of each few looks only one sees a probe fail: it takes its time, and users are served.
        await serve(world, 4, turns=0)
        await serve(world, 1)
        if only_trial(world)["state"] == "Finished":
            break
        assert "no memory" in only_trial(world)["message"]
        assert "holds: probe: " in told(world)
    status = only_trial(world)
    assert ("Inconclusive", "Stalled") == (status["verdict"], status["reason"])
    assert "no memory" in status["message"]


async def test_a_trial_goes_on_once_a_probe_is_answered(world: World) -> None:
    await ready(world)
    put_trial(world, policy=policy())
    world.engines.probe_error = FAILS
    await reach(world, "Running")
    await serve(world, 30)
    assert "no usable evidence" in only_trial(world)["message"]
    assert "verdict" not in only_trial(world)
    world.engines.probe_error = None
    await serve(world, 60)
    assert "Promoted" == only_trial(world).get("verdict"), only_trial(world)
    assert "holds" not in told(world)


async def test_no_failed_probe_holds_a_trial_that_asks_no_more(world: World) -> None:
    await ready(world)
    put_trial(world, policy=policy(minRequests=1000))
    await reach(world, "Running")
    await serve(world, 60)
    assert "Passed" == evidence(world)["ServedLikelihoodShort"]["outcome"]
    world.engines.probe_error = FAILS
    await serve(world, 20)
    assert "no memory" not in only_trial(world)["message"]
    assert "holds" not in told(world)


@pytest.mark.parametrize(
    ("metric", "guards"),
    [
        (HISTOGRAMS[0], {"ttftMaxIncreasePercent": 10}),
        (HISTOGRAMS[1], {"tpotMaxIncreasePercent": 10}),
        ("vllm:request_success_total", {}),
    ],
)
async def test_a_guard_without_its_metric_holds_the_trial(
    world: World, metric: str, guards: dict[str, int]
) -> None:
    await ready(world)
    put_trial(world, policy=policy(guards=guards))
    await reach(world, "Running")
    world.engines.hidden = {metric}
    await serve(world, 3)
    status = only_trial(world)
    assert "verdict" not in status
    assert metric.removesuffix("_total") in status["message"]
    assert metric.removesuffix("_total") in told(world)
    world.engines.hidden = set()
    await serve(world, 60)
    assert "Promoted" == only_trial(world).get("verdict"), only_trial(world)


@pytest.mark.parametrize(("metric", "guard"), [(HISTOGRAMS[0], "TTFT"), (HISTOGRAMS[1], "TPOT")])
async def test_a_guard_that_is_disabled_needs_no_metric(
    world: World, metric: str, guard: str
) -> None:
    await ready(world)
    put_trial(world, policy=policy(guards={"disabled": [guard]}))
    await reach(world, "Running")
    world.engines.hidden = {metric}
    await serve(world, 60)
    assert "Promoted" == only_trial(world).get("verdict"), only_trial(world)


async def test_nothing_is_promoted_on_what_other_weights_showed(world: World) -> None:
    old, new = ({f"10.0.0.{n}": name for n in (1, 2)} for name in ("old", "new"))
    world.engines.weights = old
    await ready(world)
    put_policy(world, **policy(minRequests=200))
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    await serve(world, 30)
    assert "Passed" == evidence(world)["ServedLikelihoodShort"]["outcome"]
    (before,) = trials(world)
    # Engines reload one after another: in between, there is nothing to compare.
    world.engines.weights = old | {"10.0.0.2": "new"}
    await serve(world, 30)
    assert "different weights" in only_trial(world)["message"]
    assert "different weights" in told(world)
    assert "verdict" not in only_trial(world)

    world.engines.weights = new
    # What is tried anew has to show everything anew, and of this format nothing good.
    world.engines.worse = {"int8": 0.4}
    await serve(world, 60)
    statuses = {name: trial["status"] for name, trial in trials(world).items()}
    first = statuses.pop(before)
    assert ("Void", "Superseded") == (first["verdict"], first["reason"])
    assert "other weights" in first["message"]
    (second,) = statuses.values()
    assert ("RolledBack", "QualityDrop") == (second["verdict"], second["reason"])


async def test_a_verdict_on_other_weights_is_none_on_these(world: World) -> None:
    old, new = ({f"10.0.0.{n}": name for n in (1, 2)} for name in ("old", "new"))
    world.engines.weights = old
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int2"})
    await serve(world, 40)
    assert "RolledBack" == only_trial(world)["verdict"]
    # An engine that does not tell is not known to be another.
    for weights in ({}, old | {"10.0.0.2": "new"}):
        world.engines.weights = weights
        await serve(world, 3)
        assert 1 == len(trials(world))
    world.engines.weights = new
    world.engines.worse = {}
    await serve(world, 120)
    assert ["RolledBack", "Promoted"] == [t["status"]["verdict"] for t in trials(world).values()]


async def test_engines_that_do_not_tell_their_weights_are_compared_all_the_same(
    world: World,
) -> None:
    world.engines.weights = {"10.0.0.1": "known"}
    await ready(world)
    put_trial(world, policy=policy())
    await serve(world, 60)
    assert "Promoted" == only_trial(world).get("verdict"), only_trial(world)


async def test_an_engine_that_is_asked_and_does_not_answer_is_told_of() -> None:
    now = 100.0
    answered = asyncio.Event()

    class One(Background[int]):
        async def results(self) -> AsyncIterator[int]:
            with self._asking():
                await answered.wait()
            yield 1

    work = One(lambda: now)
    assert work.unanswered_seconds == 0
    work.begin(work.results())
    await asyncio.sleep(0)
    now = 130.0
    assert work.unanswered_seconds == 30
    answered.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert work.unanswered_seconds == 0
    assert work.collect() == (1,)
    answered.clear()
    work.begin(work.results())
    await asyncio.sleep(0)
    now = 150.0
    work.stop()
    assert work.unanswered_seconds == 0
