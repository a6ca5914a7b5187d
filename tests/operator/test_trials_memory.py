"""What is remembered of trials, for how long, and what each of their ends leaves behind."""

import pytest

from kvserving_operator.kinds import Kind
from kvserving_operator.trials.runner import HISTORY
from operatorkit.specs import NAMESPACE
from operatorkit.trials import (
    GUARDED,
    only_trial,
    put_policy,
    put_trial,
    reach,
    ready,
    serve,
    trials,
)
from operatorkit.world import World

HOUR = 3600


def edit(world: World, dtype: str = "auto") -> None:
    """Ask for a format under the policy."""
    world.put(replicas=2, **GUARDED, kvCache={"dtype": dtype})


async def reject_int2(world: World, seconds: int) -> None:
    """Have a format rejected by a policy that remembers it for so long, and take it back."""
    await ready(world)
    put_policy(world, memory={"rejectForSeconds": seconds})
    edit(world, "int2")
    await serve(world, 40)
    assert only_trial(world)["verdict"] == "RolledBack"
    edit(world)
    await serve(world, 3)


@pytest.mark.parametrize(
    ("remembered", "passed", "tried"),
    [(0, 0, 2), (HOUR, 0, 1), (HOUR, HOUR - 600, 1), (HOUR, HOUR + 600, 2)],
)
async def test_a_rejected_change_is_tried_again_when_its_time_is_over(
    world: World, remembered: int, passed: int, tried: int
) -> None:
    await reject_int2(world, remembered)
    world.clock.advance(passed)
    world.new_controller()
    edit(world, "int2")
    await serve(world, 5)
    assert len(trials(world)) == tried
    if tried == 1:
        assert world.condition("RolledBack")["status"] == "True"


async def test_a_trial_by_hand_of_what_was_rejected_says_by_which(world: World) -> None:
    await reject_int2(world, HOUR)
    (name,) = trials(world)
    put_trial(world, dtype="int2")
    await serve(world, 2)
    status = trials(world)["by-hand"]["status"]
    assert (status["verdict"], status["reason"]) == ("Failed", "NotSupported")
    assert f"rejected by trial {name}" in status["message"]
    # It stands in nobody's way.
    put_trial(world, "other", dtype="int8")
    await serve(world, 60)
    assert trials(world)["other"]["status"]["verdict"] == "Promoted"


async def test_ended_trials_are_kept_up_to_a_limit_and_a_persons_for_good(world: World) -> None:
    await ready(world)
    put_trial(world, dtype="int2")
    await serve(world, 40)
    assert only_trial(world)["verdict"] == "RolledBack"
    for number in range(HISTORY + 3):
        edit(world, ("int8", "int4")[number % 2])
        await serve(world, 4)
    await serve(world, 4)
    ended = [
        name
        for name, trial in trials(world).items()
        if trial["status"]["state"] == "Finished" and name != "by-hand"
    ]
    assert len(ended) == HISTORY
    assert "by-hand" in trials(world)


async def test_the_fallback_is_the_policys(world: World) -> None:
    # Which the model's own 16 bits are not.
    world.engines.model_dtype = "float16"
    await ready(world)
    put_policy(world, fallback={"kvCacheDtype": "bfloat16"})
    edit(world, "int8")
    await reach(world, "Running")
    world.engines.worse["int8"] = 0.4
    await serve(world, 40)
    assert only_trial(world)["reason"] == "QualityDrop"
    assert set(world.engines.dtypes.values()) == {"bfloat16"}


@pytest.mark.parametrize("screening", ["Enabled", "Disabled"])
async def test_likelihoods_that_are_no_numbers_end_a_trial_at_once(
    world: World, screening: str
) -> None:
    world.engines.no_numbers = {"int8"}
    await ready(world)
    put_policy(world, quality={"minSamples": 50, "screening": screening, "probes": ["Likelihood"]})
    edit(world, "int8")
    await serve(world, 6)
    status = only_trial(world)
    assert (status["verdict"], status["reason"]) == ("RolledBack", "HardStop")
    assert not any(each.startswith("int8") for each in world.engines.dtypes.values())


async def test_a_model_that_gives_no_numbers_in_16_bits_either_rejects_nothing(
    world: World,
) -> None:
    world.engines.no_numbers = {"int8", "auto", "bfloat16"}
    await ready(world)
    edit(world, "int8")
    await serve(world, 6)
    assert "verdict" not in only_trial(world)
    assert "no numbers without the change either" in only_trial(world)["message"]


@pytest.mark.parametrize("control", ["RollBack", "deleted"])
async def test_what_a_person_ends_is_not_held_against_the_change(
    world: World, control: str
) -> None:
    await ready(world)
    put_trial(world)
    await reach(world, "Running")
    if control == "deleted":
        del world.cluster.objects[(Kind.KVTrial, NAMESPACE, "by-hand")]
    else:
        put_trial(world, control=control)
    await serve(world, 3)
    put_trial(world, "again")
    await serve(world, 60)
    assert trials(world)["again"]["status"]["verdict"] == "Promoted"
