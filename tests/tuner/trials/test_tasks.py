"""Which tasks are asked in a trial, and what their grades say."""

from itertools import islice
from typing import Any

import pytest

from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import Progress
from kvserving_tuner.trials.tasks import (
    ANSWER_ROOM,
    FIT,
    LEVEL_TASKS,
    Cell,
    cells_of,
    criteria,
    expecting,
    is_shown,
    lengths,
    paired,
    recorded,
    task_of,
    to_pair,
    to_record,
)

PLAN = Plan(
    tasks=(Probe.NEEDLE, Probe.STRUCTURED_OUTPUT),
    max_drop_percent=10,
    min_samples=10,
    likelihood=False,
    screened=False,
)
CELLS = cells_of(PLAN, (512, 2048), (), paired=True)
NAMES = ["ServedNeedleShort", "ServedNeedleMedium", "ServedStructuredOutputShort"]


def leveled(grade: float = 1.0, plan: Plan = PLAN, **grades: float) -> Progress:
    """A trial whose level is known: `grade` for every task, but for cells named."""
    progress = expecting(plan, Progress(), CELLS)
    for number in to_record(plan, progress, CELLS, alone=False):
        cell, _ = task_of(CELLS, number)
        progress = recorded(plan, progress, CELLS, number, grades.get(cell.name, grade))
    return progress


def test_cells_are_of_a_probe_and_a_length() -> None:
    assert [cell.name for cell in CELLS] == NAMES
    # What stands in the last message is asked for at one length.
    assert [cell.tokens for cell in CELLS] == [512, 2048, 512]


def test_references_are_grouped_by_the_length_of_their_prompts() -> None:
    plan = Plan(tasks=(Probe.REFERENCES,))
    prompts = (
        Prompt("a", text="word " * 400, reference="yes"),
        Prompt("b", text="word " * 2000, reference="yes"),
        Prompt("c", text="word " * 300, reference="no"),
        Prompt("d", text="word " * 300),
    )
    short, medium = cells_of(plan, (), prompts, paired=True)
    assert [prompt.name for prompt in short.prompts] == ["a", "c"]
    assert (medium.name, medium.count, medium.levels) == ("ServedReferencesMedium", 1, 0)


def test_a_model_is_asked_a_few_of_each_in_16_bits_first() -> None:
    numbers = list(to_record(PLAN, Progress(), CELLS, alone=False))
    assert len(numbers) == LEVEL_TASKS * len(CELLS)
    progress = recorded(PLAN, Progress(), CELLS, numbers[0], 1.0)
    assert list(to_record(PLAN, progress, CELLS, alone=False)) == numbers[1:]


def test_a_task_that_is_too_hard_in_16_bits_is_left_out_with_a_reason() -> None:
    progress = leveled(ServedNeedleMedium=0.0)
    assert list(progress.left_out) == ["ServedNeedleMedium"]
    entry = progress.left_out["ServedNeedleMedium"]
    assert (entry.reason, entry.value, entry.samples) == ("BaselineTooWeak", 0.0, LEVEL_TASKS)
    assert "gets 0 % of 8 tasks right in 16 bits" in entry.message
    assert list(criteria(PLAN, progress, CELLS)) == [NAMES[0], NAMES[2]]
    asked = {task_of(CELLS, n)[0].name for n in to_pair(PLAN, progress, CELLS, live=True)}
    assert asked == {NAMES[0], NAMES[2]}
    # It stays so, and is not expected again.
    assert criteria(PLAN, expecting(PLAN, progress, CELLS), CELLS) == criteria(
        PLAN, progress, CELLS
    )


def test_a_quarter_of_the_level_is_enough() -> None:
    assert not leveled(0.25).left_out
    assert len(leveled(0.24).left_out) == 3


def test_tasks_of_the_level_are_no_pairs() -> None:
    numbers = list(islice(to_pair(PLAN, leveled(), CELLS, live=True), 6))
    assert numbers == list(range(LEVEL_TASKS * 3, LEVEL_TASKS * 3 + 6))


def test_an_engine_that_is_alone_answers_in_16_bits_before_it_is_switched() -> None:
    progress = leveled()
    assert not list(to_pair(PLAN, progress, CELLS, live=False))
    numbers = list(to_record(PLAN, progress, CELLS, alone=True))
    assert len(numbers) == pytest.approx(1.5 * PLAN.least_pairs * 3, abs=3)
    for number in numbers:
        progress = recorded(PLAN, progress, CELLS, number, 1.0)
    assert list(to_pair(PLAN, progress, CELLS, live=False)) == numbers
    for number in numbers:
        progress = paired(PLAN, progress, CELLS, number, 1.0, progress.recorded[number])
    assert is_shown(PLAN, progress, NAMES)


def test_pairs_are_asked_once_and_no_more_than_it_takes() -> None:
    progress, asked = leveled(), 0
    while (number := next(to_pair(PLAN, progress, CELLS, live=True), None)) is not None:
        progress = paired(PLAN, progress, CELLS, number, 1.0, 1.0)
        asked += 1
    assert is_shown(PLAN, progress, criteria(PLAN, progress, CELLS))
    assert asked == 3 * PLAN.least_pairs


class Counting(tuple[Cell, ...]):
    """Cells that count how often one is looked up by a number."""

    looked_up = 0

    def __getitem__(self, index: Any) -> Any:
        self.looked_up += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("done", [24, 600, 1499])
def test_a_walk_begins_where_the_last_one_ended(done: int) -> None:
    plan = PLAN.model_copy(update={"max_drop_percent": 0.1})
    progress = leveled(plan=plan).model_copy(update={"tasks": done})
    cells = Counting(CELLS)
    assert next(to_pair(plan, progress, cells, live=True)) == done
    assert cells.looked_up == 1


def test_where_everything_is_told_nothing_is_walked() -> None:
    progress = leveled(0.0)
    cells = Counting(CELLS)
    assert not list(to_pair(PLAN, progress, cells, live=True))
    assert not cells.looked_up


def test_a_fall_counts_in_its_own_cell() -> None:
    progress = leveled()
    for number in islice(to_pair(PLAN, progress, CELLS, live=True), 120):
        cell, _ = task_of(CELLS, number)
        grade = 0.0 if cell.name == "ServedNeedleMedium" else 1.0
        progress = paired(PLAN, progress, CELLS, number, grade, 1.0)
    harmful = [n for n, found in progress.evidence.items() if found.is_harmful(0.001)]
    assert harmful == ["ServedNeedleMedium"]
    assert not is_shown(PLAN, progress, ["ServedNeedleMedium"])
    assert "100.00 % worse" in str(progress.evidence["ServedNeedleMedium"].finding())


def test_where_likelihoods_tell_the_fall_of_a_task_need_not_be_ruled_out() -> None:
    plan = PLAN.model_copy(update={"likelihood": True, "floors": {Probe.NEEDLE: 60.0}})
    progress = leveled(plan=plan)
    assert criteria(plan, progress, CELLS) == ("ServedNeedleFloor",)
    # They are asked all the same, and can roll back.
    assert {task_of(CELLS, n)[0].name for n in to_pair(plan, progress, CELLS, live=True)} == {
        *NAMES
    }


def test_a_floor_holds_whatever_16_bits_give() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 60.0}})
    progress = leveled(0.0, plan)
    # A probe with a floor stays, though the model is weak.
    assert list(progress.left_out) == ["ServedStructuredOutputShort"]
    assert "ServedNeedleFloor" in criteria(PLAN, progress, CELLS)
    for number in islice(to_pair(plan, progress, CELLS, live=True), 60):
        progress = paired(plan, progress, CELLS, number, 0.0, 0.0)
    floor = progress.evidence["ServedNeedleFloor"]
    assert floor.is_harmful(0.001)
    assert "100.00 % missed" in str(floor.finding())
    assert "at most 40.00 % accepted" in str(floor.finding())


def test_a_floor_needs_no_engine_in_16_bits() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 60.0}})
    cells = cells_of(plan, (512,), (), paired=False)
    assert [cell.probe for cell in cells] == [Probe.NEEDLE]
    progress = expecting(plan, Progress(), cells)
    assert list(progress.evidence) == ["ServedNeedleFloor"]
    assert not list(to_record(plan, progress, cells, alone=True))
    for number in islice(to_pair(plan, progress, cells, live=False), 40):
        progress = paired(plan, progress, cells, number, 1.0, None)
    assert is_shown(plan, progress, ["ServedNeedleFloor"])


@pytest.mark.parametrize("block_size", [16, 64, 128])
@pytest.mark.parametrize("context", [1024, 2048, 32_768])
@pytest.mark.parametrize("kept", [0, 300, 700])
def test_lengths_are_beyond_what_eviction_keeps_and_fit_the_context(
    block_size: int, context: int, kept: int
) -> None:
    found = lengths(block_size, context, kept)
    assert found
    assert min(found) * (2 - FIT) > max(kept, 2 * block_size)
    assert max(found) * FIT + ANSWER_ROOM <= context + 1


def test_there_is_no_length_where_the_context_is_no_longer_than_what_is_kept() -> None:
    assert lengths(16, 1024, 900) == ()
    assert lengths(512, 1024, 0) == ()


def test_what_the_least_pairs_show_is_no_guess() -> None:
    progress = leveled()
    cell = Cell(Probe.NEEDLE, 512)
    same = [0.0] * PLAN.least_pairs
    assert progress.compared(PLAN.task(cell.name), same).evidence[cell.name].is_safe(0.05)
    assert not progress.compared(PLAN.task(cell.name), same[1:]).evidence[cell.name].is_safe(0.05)
    assert 200 < Plan(max_drop_percent=2).least_pairs < 280
