"""What guards and the gain say of engines that are slower while they are probed."""

from typing import Any

import pytest

from kvserving_tuner.trials import machine
from kvserving_tuner.trials.plan import Gain, Guard, Plan
from kvserving_tuner.trials.progress import Progress
from kvserving_tuner.trials.schedule import Schedule
from operatorkit.busy import BusyTrial
from operatorkit.trials import GUARDED, only_trial, put_policy, reach, ready
from operatorkit.world import World

GUARDS = {Guard.TTFT: 10.0, Guard.TPOT: 10.0, Guard.THROUGHPUT: 5.0}
PLAN = Plan(steps=(50,), min_requests=20, min_seconds=300, min_samples=30, guards=GUARDS)
# So many pairs that quality stays open.
OPEN = PLAN.model_copy(update={"min_samples": 390})
GAINING = PLAN.model_copy(update={"gain": Gain.FASTER})
HOUR = 3600
# Clients that ask again and again, more than an engine runs at once; and strangers.
FULL: dict[str, Any] = {"clients": 24}
CALM: dict[str, Any] = {"rate": 0.7}


def ended(progress: Progress) -> tuple[str, str]:
    """Verdict and reason; empty while there is none."""
    found = progress.conclusion
    return ("", "") if found is None else (found.verdict.value, found.reason.value)


@pytest.fixture
def always_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe without a break, and compare all the same."""
    monkeypatch.setattr(machine, "paced", lambda plan, progress, facts, passed: progress)
    monkeypatch.setattr(Schedule, "is_quiet", True)


@pytest.mark.parametrize("scrape_seconds", [5, 15])
@pytest.mark.parametrize("load", [FULL, CALM])
@pytest.mark.parametrize("pods", [1, 2])
def test_no_probe_is_in_a_block_that_counts(
    pods: int, load: dict[str, Any], scrape_seconds: int
) -> None:
    trial = BusyTrial(OPEN, 1, 0.2, pods=pods, scrape_seconds=scrape_seconds, **load)
    for number in range(6):
        progress = trial.run(HOUR // 6)
        if number % 2:
            trial.restart()
    assert trial.probed_blocks == []
    assert min(progress.schedule.quiet, progress.schedule.probed) >= 10
    assert progress.served >= 50
    assert ended(progress) == ("", "")


@pytest.mark.parametrize("pods", [1, 2])
@pytest.mark.parametrize("slowed", [0.2, 0.5])
def test_equal_engines_are_told_apart_by_no_guard(pods: int, slowed: float) -> None:
    for seed in range(2):
        trial = BusyTrial(OPEN, seed, slowed, pods=pods, **FULL)
        progress = trial.run(2 * HOUR)
        assert ended(progress) == ("", "")
        for guard in GUARDS:
            assert abs(progress.evidence[guard].mean) < 0.04, (guard, seed)


@pytest.mark.usefixtures("always_probed")
@pytest.mark.parametrize("pods", [1, 2])
def test_without_quiet_stretches_they_would_be(pods: int) -> None:
    progress = BusyTrial(OPEN, 0, 0.5, pods=pods).run(2 * HOUR)
    assert ended(progress) == ("RolledBack", "GuardViolated")


@pytest.mark.parametrize("pods", [1, 2])
def test_a_gain_shows_though_probes_cost_more_than_it_brings(pods: int) -> None:
    trial = BusyTrial(GAINING, 0, 0.5, speed=1.3, pods=pods)
    assert ended(trial.run(6 * HOUR)) == ("Promoted", "WithinBounds")


def test_equal_engines_gain_nothing() -> None:
    plan = GAINING.model_copy(update={"gain_seconds": HOUR})
    for seed in range(3):
        progress = BusyTrial(plan, seed, 0.5).run(4 * HOUR)
        assert ended(progress) == ("Inconclusive", "NoGain")


def rolled_back_after(**trial: Any) -> float:
    """Seconds until quality rolls back."""
    run = BusyTrial(PLAN, 3, 0.2, **trial)
    began = run.now
    assert ended(run.run(2 * HOUR)) == ("RolledBack", "QualityDrop")
    return run.now - began


@pytest.mark.parametrize("pods", [1, 2])
@pytest.mark.parametrize("rise", [0.4, 0.06])
def test_a_bad_format_is_found_as_early_as_if_nothing_else_was_measured(
    pods: int, rise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = rolled_back_after(rise=rise, pods=pods)
    monkeypatch.setattr(machine, "paced", lambda plan, progress, facts, passed: progress)
    assert took <= rolled_back_after(rise=rise, pods=pods)


@pytest.mark.parametrize(("pods", "load"), [(1, FULL), (2, FULL), (2, CALM)])
def test_a_slow_change_is_found_while_quality_is_open(pods: int, load: dict[str, Any]) -> None:
    trial = BusyTrial(OPEN, 0, 0.2, speed=0.6, pods=pods, **load)
    assert ended(trial.run(2 * HOUR)) == ("RolledBack", "GuardViolated")
    assert trial.progress.served < 390


@pytest.mark.parametrize("plan", [PLAN, GAINING])
def test_a_trial_that_nothing_speaks_against_ends_with_a_verdict(plan: Plan) -> None:
    progress = BusyTrial(plan, 0, 0.2, speed=1.3).run(6 * HOUR)
    assert ended(progress) == ("Promoted", "WithinBounds")
    assert progress.schedule.quiet > 0


async def test_the_operator_asks_nothing_in_quiet_stretches_and_goes_on_afterwards(
    world: World,
) -> None:
    await ready(world)
    put_policy(
        world,
        ab={"steps": [50], "minRequests": 4, "minDurationSeconds": 900},
        guards={},
        quality={"minSamples": 390, "screening": "Disabled", "probes": ["Likelihood"]},
    )
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    asked, quiet = [], []
    for _ in range(120):
        world.engines.finished += 4
        await world.tick(15)
        asked.append(len(world.engines.prompts))
        quiet.append(only_trial(world).get("quietBlocks", 0))
    first = quiet.index(1)
    # A block of 42 s and more lies between probes.
    assert asked[first] == asked[first - 2]
    assert asked[first] > asked[0]
    assert asked[-1] > asked[first]
    assert only_trial(world)["probedBlocks"] >= 2
