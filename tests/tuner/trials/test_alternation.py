"""One engine against itself: turns with a change and without it."""

from dataclasses import replace

import pytest

from kvserving_tuner.readings import Unknown
from kvserving_tuner.trials.alternation import Alternation, arm_of
from kvserving_tuner.trials.arm import Arm
from kvserving_tuner.trials.plan import Guard
from tunerkit.build import NOW, engine, lengths, observation, window


def arm(load: float = 1.0, ttft: float = 0.2, tpot: float = 0.04) -> Arm:
    return Arm(load=load, ttft=ttft, tpot=tpot, preemptions=0.0)


def blocks(loads: list[float], penalty: float = 1.0) -> list[dict[str, float]]:
    """What pairs say of blocks with these loads, where the change multiplies TTFT."""
    turns, found = Alternation(), []
    for load in loads:
        ttft = 0.2 * (penalty if turns.with_change else 1.0)
        turns, numbers = turns.measured(arm(load, ttft))
        if numbers:
            found.append(numbers)
    return found


def test_every_other_pair_is_the_other_way_round() -> None:
    turns, order = Alternation(), ""
    for _ in range(8):
        order += "C" if turns.with_change else "S"
        turns, _ = turns.measured(arm())
    assert order == "CSSCCSSC"
    assert turns.pair == 4


def test_a_load_that_grows_steadily_favors_neither_arm() -> None:
    found = blocks([1.0 + 0.01 * number for number in range(40)])
    assert len(found) == 20
    throughput = [numbers[Guard.THROUGHPUT] for numbers in found]
    assert abs(sum(throughput)) < 0.1 * max(map(abs, throughput)) * len(throughput)
    assert {numbers[Guard.TTFT] for numbers in found} == {0.0}


def test_a_change_that_costs_is_seen_in_every_pair() -> None:
    found = blocks([1.0] * 8, penalty=1.5)
    assert [numbers[Guard.TTFT] for numbers in found] == pytest.approx([0.2] * 4)


def test_an_engine_that_fails_everything_is_not_idle() -> None:
    failing = Arm(load=0.0, ended=40, failed=40)
    turns, _ = Alternation().measured(failing)
    _, numbers = turns.measured(Arm(load=1.0, ended=60, failed=0), most_failed=0.08)
    assert numbers[Guard.ERRORS] == 0.08
    turns, _ = Alternation().measured(Arm(load=0.0, ended=0, failed=0))
    _, numbers = turns.measured(Arm(load=1.0, ended=60, failed=0))
    assert numbers == {}


@pytest.mark.parametrize("empty", [0, 1])
def test_a_pair_with_an_empty_block_says_nothing(empty: int) -> None:
    loads = [1.0, 1.0]
    loads[empty] = 0.0
    assert blocks(loads) == []


def test_latencies_of_unlike_loads_are_not_compared() -> None:
    (numbers,) = blocks([1.0, 2.0])
    assert set(numbers) == {Guard.THROUGHPUT}


def test_an_arm_is_what_the_only_engine_did_in_a_whole_block() -> None:
    served = replace(window(finished=60, tpot=lengths(40)), ttft=lengths(200))
    found = arm_of(observation(engine(served)), NOW - 60)
    expected = Arm(
        load=1.0,
        ttft=200.0,
        tpot=40.0,
        preemptions=0.0,
        ended=60,
        failed=0,
        work=(1.0, 5000 / 60),
        backlog=5.0,
        in_flight=13.0,
    )
    assert found == (expected, NOW)
    assert arm_of(observation(engine(served)), NOW - 59) is None
    assert arm_of(observation(engine(Unknown("young"))), 0) is None
    assert arm_of(observation(engine(served), engine(served, name="b")), 0) is None
    assert arm_of(observation(), 0) is None


def test_turns_survive_being_stored() -> None:
    turns, _ = Alternation().measured(arm())
    assert Alternation.model_validate_json(turns.model_dump_json()) == turns
