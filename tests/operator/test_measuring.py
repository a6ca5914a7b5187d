"""Blocks of time of a trial: where they begin, and that a restart does not mix them."""

from dataclasses import replace
from typing import Any

import pytest

from kvserving_operator.trials.measuring import with_block
from kvserving_operator.trials.probe_set import ProbeSet
from kvserving_operator.trials.record import Record, Trials
from kvserving_operator.trials.seen import Seen
from kvserving_tuner.observation import Observation
from kvserving_tuner.trials.alternation import SETTLING_SECONDS, Alternation
from kvserving_tuner.trials.machine import Facts, Wish
from kvserving_tuner.trials.plan import Guard, Plan
from operatorkit import trials
from tunerkit.build import NOW, engine, lengths, observation, window

SERVED = replace(window(finished=60, tpot=lengths(40)), ttft=lengths(200))


def record(*candidates: str, **progress: Any) -> Record:
    return trials.record(*candidates, plan=Plan(guards={Guard.TTFT: 10}), **progress)


def seen(found: Observation | None, now: float = NOW) -> Seen:
    return Seen(
        pods=(), runtime={}, targets={}, refusals=(), observation=found, pairs=(), answers=(),
        steady=True, probe_set=ProbeSet(), model="m", max_tokens=2048, now=now,
    )  # fmt: skip


def facts(**more: Any) -> Facts:
    known = {"ready": ("a",), "changed": frozenset({"a"}), "settled": True, **more}
    return Facts(NOW, **known)


ONE = observation(engine(SERVED))


def test_a_turn_begins_once_the_engine_has_settled() -> None:
    turns = record("a", alternation=Alternation())
    waiting = with_block(turns, facts(settled=False), seen(ONE))
    assert waiting.block_from == NOW + SETTLING_SECONDS
    assert waiting.progress == turns.progress
    assert with_block(waiting, facts(), seen(ONE)) == waiting


def test_two_turns_give_a_number_for_each_guard_of_the_plan() -> None:
    turns = record("a", alternation=Alternation())
    once = with_block(turns, facts(), seen(ONE))
    assert once.progress.alternation is not None
    assert not once.progress.alternation.with_change
    assert once.progress.evidence == {}
    assert once.block_from == NOW
    # The same window again is no second block.
    assert with_block(once, facts(), seen(ONE)) == once
    later = observation(engine(replace(SERVED, start=NOW, end=NOW + 60)))
    twice = with_block(once, facts(), seen(later, NOW + 60))
    assert {name: each.count for name, each in twice.progress.evidence.items()} == {"TTFT": 1}


@pytest.mark.parametrize("held", [{"blocked": "stale"}, {"wish": Wish.PAUSE}])
def test_what_holds_a_trial_holds_its_turns(held: dict[str, Any]) -> None:
    turns = record("a", alternation=Alternation())
    assert with_block(turns, facts(**held), seen(ONE)) == turns
    assert with_block(turns, facts(), seen(None)) == turns


def test_a_turn_with_the_change_waits_for_requests() -> None:
    turns = record("a", alternation=Alternation())
    idle = observation(engine(window(finished=0)))
    waited = with_block(turns, facts(), seen(idle))
    assert waited.progress.alternation == Alternation()
    assert waited.block_from == NOW


def test_where_a_turn_began_is_worth_a_write() -> None:
    turns = record("a", alternation=Alternation())
    moved = turns.model_copy(update={"block_from": NOW})
    assert Trials(running=turns).lasting() != Trials(running=moved).lasting()
    beside = record("a")
    moved = beside.model_copy(update={"block_from": NOW})
    assert Trials(running=beside).lasting() == Trials(running=moved).lasting()
