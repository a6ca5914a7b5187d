"""Blocks of time of a trial: where they begin, and that a restart does not mix them."""

from dataclasses import replace
from typing import Any

import pytest

from kvserving_operator.trials.asking import Answer, Ask
from kvserving_operator.trials.measuring import with_block
from kvserving_operator.trials.probe_set import ProbeSet
from kvserving_operator.trials.record import Record, Trials
from kvserving_operator.trials.seen import Seen
from kvserving_tuner.observation import Observation
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.readings import Known
from kvserving_tuner.trials.alternation import SETTLING_SECONDS, Alternation
from kvserving_tuner.trials.arm import Arm
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.plan import Guard, Plan
from kvserving_tuner.trials.schedule import Schedule, Stretch
from kvserving_tuner.trials.tasks import Cell
from operatorkit import trials
from tunerkit.build import NOW, engine, lengths, observation, window

SERVED = replace(window(finished=60, tpot=lengths(40)), ttft=lengths(200))


QUIET = Schedule(stretch=Stretch.QUIET)


def record(*candidates: str, plan: Plan | None = None, **progress: Any) -> Record:
    """A trial in which nobody is probed now, unless a test says so."""
    plan = plan or Plan(guards={Guard.TTFT: 10})
    return trials.record(*candidates, plan=plan, **{"schedule": QUIET, **progress})


def seen(found: Observation | None, now: float = NOW, *answers: Answer) -> Seen:
    return Seen(
        pods=(), runtime={}, targets={}, refusals=(), observation=found, pairs=(), answers=answers,
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


ERRORS = Plan(guards={Guard.ERRORS: 0.1})
ASK = Ask(trial="trial", number=0, cell=Cell(Probe.NEEDLE, 512), place=0, model="m", least_tokens=0)


def two(failed: float | None, end: float = NOW) -> Observation:
    """Engine `a`, on trial, fails so many of 60 requests, and `b` none."""
    failing = window(finished=60, failed=failed, end=end)
    return observation(engine(failing), engine(replace(SERVED, start=end - 60, end=end), name="b"))


def test_failed_requests_are_compared_block_by_block() -> None:
    begun = trials.record("a", plan=ERRORS)
    once = with_block(begun, facts(), seen(two(3)))
    (found,) = once.progress.evidence.values()
    assert (found.criterion.name, found.count) == ("Errors", 1)
    assert found.mean == pytest.approx(0.05)
    assert once.progress.left_out == {}


def test_engines_that_do_not_tell_of_failures_have_no_guard_and_the_trial_says_so() -> None:
    begun = trials.record("a", plan=ERRORS)
    silent = with_block(begun, facts(), seen(two(None)))
    assert silent.progress.evidence == {}
    assert silent.progress.left_out["Errors"].reason == "NotCounted"
    # A policy without the guard has nothing to say about it.
    other = with_block(record("a"), facts(), seen(two(None)))
    assert other.progress.left_out == {}
    # They tell from their first request on; a gap afterwards undoes nothing.
    told = with_block(silent, facts(), seen(two(0, NOW + 60), NOW + 60))
    assert told.progress.left_out == {}
    gap = with_block(told, facts(), seen(two(None, NOW + 120), NOW + 120))
    assert gap.progress.left_out == {}
    assert gap.progress.evidence == told.progress.evidence
    only = observation(engine(window(finished=60, failed=None)))
    turns = record("a", plan=ERRORS, alternation=Alternation())
    assert with_block(turns, facts(), seen(only)).progress.left_out.keys() == {"Errors"}


def test_tasks_that_an_engine_fails_are_no_users_requests() -> None:
    begun = trials.record("a", plan=ERRORS)
    failed = Answer(ASK, error="HTTP 503", failed=("a",))
    waiting = with_block(begun, facts(blocked="probe: HTTP 503"), seen(None, NOW, failed, failed))
    assert waiting.own_failures == {"a": 2}
    more = with_block(waiting, facts(), seen(two(3), NOW, failed))
    assert more.progress.evidence["Errors"].mean == 0
    assert more.own_failures == {}
    # The next block begins without them, and so does one after a switch.
    later = with_block(more, facts(), seen(two(3, NOW + 60), NOW + 60))
    assert later.progress.evidence["Errors"].total == pytest.approx(0.05)
    assert with_block(waiting, facts(changed=frozenset()), seen(None)).own_failures == {}


def test_a_turn_in_which_everything_fails_is_a_turn() -> None:
    turns = record("a", plan=ERRORS, alternation=Alternation())
    broken = replace(window(finished=0, failed=0), ended=Known(40, NOW), failed=Known(40, NOW))
    moved = with_block(turns, facts(), seen(observation(engine(broken))))
    assert moved.progress.alternation is not None
    assert not moved.progress.alternation.with_change


def test_what_candidates_carry_over_is_kept_from_block_to_block_and_not_over_a_switch() -> None:
    begun = record("a")
    calm = window(finished=30, tokens=2500, waiting=0)
    found = observation(engine(calm), engine(SERVED, name="b"))
    once = with_block(begun, facts(), seen(found))
    assert (begun.progress.rested, once.progress.rested) == (False, True)
    later = {"start": NOW, "end": NOW + 60}
    busy = observation(
        engine(replace(calm, waiting=SERVED.waiting, **later)),  # type: ignore[arg-type]
        engine(replace(SERVED, **later), name="b"),  # type: ignore[arg-type]
    )
    assert with_block(once, facts(), seen(busy, NOW + 60)).progress.rested
    switched = with_block(once, facts(changed=frozenset()), seen(busy, NOW + 60))
    assert not switched.progress.rested


PROBED = [Stretch.PROBING, Stretch.SETTLING]
BOTH = Plan(guards={Guard.TTFT: 10, Guard.THROUGHPUT: 5, Guard.ERRORS: 0.1})


@pytest.mark.parametrize("stretch", PROBED)
def test_where_candidates_are_probed_nothing_but_failures_is_compared(stretch: Stretch) -> None:
    begun = record("a", plan=BOTH, schedule=Schedule(stretch=stretch), rested=True)
    once = with_block(begun, facts(), seen(two(3)))
    assert set(once.progress.evidence) == {"Errors"}
    assert (once.progress.schedule.probed, once.progress.schedule.quiet) == (1, 0)
    assert once.block_from == NOW
    # A queue that probes leave is none that the change has to answer for.
    assert not once.progress.rested


def test_a_quiet_block_begins_when_the_last_probe_is_answered() -> None:
    since = NOW - 30
    begun = record("a", plan=BOTH, schedule=Schedule(stretch=Stretch.QUIET, since=since))
    early = with_block(begun, facts(), seen(two(3)))
    # It began before; what failed in it counts all the same.
    assert {name: each.count for name, each in early.progress.evidence.items()} == {"Errors": 1}
    assert early.progress.schedule == begun.progress.schedule
    end = since + 60
    late = with_block(early, facts(), seen(two(0, end), end))
    counts = {name: each.count for name, each in late.progress.evidence.items()}
    assert counts == {"Errors": 1, "Throughput": 1}
    assert (late.progress.schedule.quiet, late.progress.schedule.since) == (1, end)
    # The same window again is no second block.
    again = with_block(late, facts(), seen(two(0, end), end))
    assert again.progress.schedule == late.progress.schedule


@pytest.mark.parametrize("stretch", PROBED)
def test_a_turn_is_compared_by_its_quiet_block_and_by_all_its_failures(stretch: Stretch) -> None:
    turns = record("a", plan=BOTH, alternation=Alternation(), schedule=Schedule(stretch=stretch))
    failing = observation(engine(replace(window(finished=60, failed=30), ttft=lengths(900))))
    probed = with_block(turns, facts(), seen(failing))
    assert probed.progress.alternation is not None
    assert probed.progress.alternation.with_change
    assert probed.progress.evidence == {}
    assert probed.block_from == NOW
    now_quiet = probed.progress.schedule.becomes(Stretch.QUIET)
    progress = probed.progress.model_copy(update={"schedule": now_quiet})
    quiet = probed.model_copy(update={"progress": progress})
    for end in (NOW + 60, NOW + 120):
        later = replace(SERVED, start=end - 60, end=end)
        quiet = with_block(quiet, facts(), seen(observation(engine(later)), end))
    found = quiet.progress.evidence
    assert found["TTFT"].mean == 0
    # 30 of 120 failed, and a share counts as 5 % at most.
    assert found["Errors"].mean == pytest.approx(0.05)
    assert (quiet.progress.schedule.quiet, quiet.progress.schedule.probed) == (2, 1)


def test_a_turn_without_the_change_is_measured_whatever_the_stretch() -> None:
    # As an operator finds it that was replaced by one which knows of stretches.
    served = Alternation(first=Arm(load=1.0, ttft=200.0, ended=60, failed=0))
    turns = record("a", alternation=served, schedule=Schedule())
    after = with_block(turns, facts(), seen(ONE))
    assert after.progress.alternation == Alternation(pair=1)


def test_which_stretch_it_is_survives_and_its_clock_is_not_worth_a_write() -> None:
    def lasting(**schedule: Any) -> Any:
        return Trials(running=record("a", schedule=Schedule(**schedule))).lasting()

    begun = lasting()
    assert lasting(seconds=5, waited=5, in_flight=3, shortest=2) == begun
    for moved in ({"stretch": Stretch.SETTLING}, {"since": NOW}, {"quiet": 1}, {"blocks": 1}):
        assert lasting(**moved) != begun
    stored = Trials(running=record("a", schedule=Schedule(stretch=Stretch.QUIET, since=NOW)))
    assert Trials.model_validate_json(stored.model_dump_json()) == stored
