"""What is measured after a promotion: against which baseline, and how sure a fall has to be."""

import random
from collections.abc import Callable
from itertools import islice

import pytest

from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import SERVED, Progress
from kvserving_tuner.trials.tasks import (
    CELL_TASKS,
    LEVEL_TASKS,
    MOST_KEPT,
    Cell,
    cells_of,
    expecting,
    paired,
    recorded,
    task_of,
    to_pair,
    to_record,
)
from kvserving_tuner.trials.watched import (
    Next,
    Watched,
    begin,
    fallen,
    graded,
    next_task,
    scored,
    shown_percent,
)

PLAN = Plan(
    tasks=(Probe.NEEDLE, Probe.STRUCTURED_OUTPUT),
    max_drop_percent=5,
    min_samples=10,
    likelihood=False,
    screened=False,
)
CELLS = cells_of(PLAN, (512, 2048), (), paired=True)
KEYS = ["Needle512", "Needle2048", "StructuredOutput512"]
ALL_RIGHT: Callable[[Cell], float] = lambda _: 1.0  # noqa: E731


def promoted(
    plan: Plan = PLAN,
    pairs: int = 40,
    plain: Callable[[Cell], float] = ALL_RIGHT,
    changed: Callable[[Cell], float] | None = None,
    cells: tuple[Cell, ...] = CELLS,
) -> Progress:
    """A trial that has asked so many pairs of each cell."""
    changed = changed or plain
    progress = expecting(plan, Progress(), cells)
    for number in to_record(plan, progress, cells, alone=False):
        progress = recorded(plan, progress, cells, number, 1.0)
    slow = plan.model_copy(update={"max_drop_percent": 0.1})
    for number in islice(to_pair(slow, progress, cells, live=True), pairs * len(cells)):
        cell, _ = task_of(cells, number)
        progress = paired(plan, progress, cells, number, changed(cell), plain(cell))
    return progress


def asked(plan: Plan, watched: Watched, cells: tuple[Cell, ...] = CELLS) -> Next:
    """The next task, which there is."""
    found = next_task(plan, watched, cells)
    assert found is not None
    return found


def watch(
    plan: Plan,
    watched: Watched,
    tasks: int,
    answer: Callable[[Next], float] = lambda _: 1.0,
    cells: tuple[Cell, ...] = CELLS,
) -> tuple[Watched, list[Next]]:
    """After so many tasks, or after those that showed a fall; with what was asked."""
    done: list[Next] = []
    while len(done) < tasks and not fallen(plan, watched):
        done.append(asked(plan, watched, cells))
        watched = graded(plan, watched, done[-1], answer(done[-1]))
    return watched, done


def test_grades_of_16_bits_are_kept_of_pairs_and_of_no_task_that_told_the_level() -> None:
    progress = promoted(pairs=3)
    assert list(progress.kept) == KEYS
    assert all(list(each) == [8, 9, 10] for each in progress.kept.values())
    assert LEVEL_TASKS == 8


def test_no_more_grades_are_kept_than_fit() -> None:
    progress = promoted(pairs=MOST_KEPT + 20)
    assert {len(each) for each in progress.kept.values()} == {MOST_KEPT}


def test_a_floor_alone_leaves_nothing_to_pair_with() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 60}})
    cells = cells_of(plan, (512, 2048), (), paired=False)
    progress = promoted(plan, cells=cells, pairs=5)
    progress = paired(plan, progress, cells, 30, 1.0, None)
    assert not begin(plan, Progress()).baselines
    assert begin(plan, progress).runs.keys() >= {"WatchedNeedleFloor"}


def test_each_grade_of_16_bits_is_paired_once_and_then_tasks_are_new_ones() -> None:
    watched, done = watch(PLAN, begin(PLAN, promoted()), 300)
    assert [each.number for each in done] == list(range(300))
    assert [each.cell.key for each in done[:6]] == KEYS + KEYS
    with_grade = [(each.cell.key, each.place) for each in done if each.grade is not None]
    assert sorted(with_grade) == sorted((key, 8 + n) for key in KEYS for n in range(40))
    new = [(each.cell.key, each.place) for each in done if each.grade is None]
    assert len(set(new)) == len(new)
    assert min(place for _, place in new) >= CELL_TASKS
    assert watched.runs["WatchedNeedle512"].count == 40
    assert watched.runs["WatchedNeedle512Level"].count == 100
    assert not any(each.unused for each in watched.baselines.values())


@pytest.mark.parametrize("broken", KEYS)
def test_a_fall_in_one_cell_shows_in_its_pairs_or_against_its_level(broken: str) -> None:
    _, done = watch(PLAN, begin(PLAN, promoted()), 120, lambda each: float(each.cell.key != broken))
    watched = begin(PLAN, promoted())
    for each in done:
        watched = graded(PLAN, watched, each, float(each.cell.key != broken))
    assert fallen(PLAN, watched).startswith(f"Watched{broken}")
    assert PLAN.min_samples * 3 - 2 <= len(done) < 30 * 3


def test_pairs_show_what_the_level_cannot() -> None:
    # 16 bits may do as badly as this for all that 80 grades show of them, but on these tasks they
    # did better.
    begun = begin(PLAN, promoted(pairs=80))
    watched, done = watch(PLAN, begun, 3 * 80, lambda each: float(each.place % 4 > 0))
    assert "Level" not in fallen(PLAN, watched)
    assert ": 26.09 % worse" in fallen(PLAN, watched)
    assert len(done) < 3 * 80


def test_a_fall_that_comes_after_all_pairs_shows_against_the_level() -> None:
    watched, _ = watch(PLAN, begin(PLAN, promoted()), 2000)
    assert not fallen(PLAN, watched)
    watched, done = watch(PLAN, watched, 600, lambda each: float("Needle" not in each.cell.key))
    assert fallen(PLAN, watched).startswith("WatchedNeedle")
    assert "Level" in fallen(PLAN, watched)
    assert len(done) < 150


def test_equal_grades_that_differ_by_chance_show_no_fall_however_long_one_watches() -> None:
    for seed in range(12):
        chance = random.Random(seed)
        progress = promoted(plain=lambda _: float(chance.random() < 0.9))  # noqa: B023
        watched, done = watch(
            PLAN, begin(PLAN, progress), 3 * 1500, lambda _: float(chance.random() < 0.9)  # noqa: B023
        )  # fmt: skip
        assert len(done) == 3 * 1500, fallen(PLAN, watched)


@pytest.mark.parametrize("mean", [0.3, 0.6, 0.9, 1.0])
def test_what_is_shown_of_16_bits_is_hardly_ever_above_the_truth(mean: float) -> None:
    alpha, above = 0.05, 0
    for seed in range(100):
        chance = random.Random(seed)
        shown = shown_percent([float(chance.random() < mean) for _ in range(120)], alpha)
        above += shown > 100 * mean
        assert shown > 100 * mean - 35
    # 5 are expected at most; 12 or more would come in one of 200 such tests.
    assert above <= 11


def test_nothing_is_shown_by_no_grades_and_more_by_more() -> None:
    assert shown_percent([], 0.01) == 0
    found = [shown_percent([1.0] * count, 0.001) for count in (5, 20, 80, 250)]
    assert found == sorted(found)
    assert found[0] == 0 < found[2] < found[3]
    assert found[-1] > 90


def test_where_too_little_is_shown_pairs_are_asked_and_no_more() -> None:
    plan = PLAN.model_copy(update={"max_drop_percent": 60})
    watched = begin(plan, promoted(pairs=6))
    assert not any(name.endswith("Level") for name in watched.runs)
    watched, done = watch(plan, watched, 18)
    assert all(each.grade is not None for each in done)
    assert next_task(plan, watched, CELLS) is None


def test_a_cell_with_other_tasks_than_the_trials_is_not_compared() -> None:
    watched = begin(PLAN, promoted())
    cells = cells_of(PLAN, (512, 1024), (), paired=True)
    _, done = watch(PLAN, watched, 12, cells=cells)
    assert {each.cell.key for each in done} == {"Needle512", "StructuredOutput512"}
    assert next_task(PLAN, watched, cells_of(PLAN, (700,), (), paired=True)) is None


def test_what_16_bits_gave_an_earlier_trial_is_held_against_a_later_one() -> None:
    earlier, _ = watch(PLAN, begin(PLAN, promoted()), 30)
    later = begin(PLAN, Progress(), earlier.baselines)
    assert not any(run.count for run in later.runs.values())
    assert asked(PLAN, later).place == 18
    assert fallen(PLAN, watch(PLAN, later, 90, lambda _: 0.0)[0])
    # A trial that has pairs of its own knows better.
    assert begin(PLAN, promoted(), earlier.baselines) == begin(PLAN, promoted())


def test_a_users_own_tasks_come_round_and_are_told_from_edited_ones() -> None:
    plan = PLAN.model_copy(update={"tasks": (Probe.REFERENCES,)})

    def own(word: str) -> tuple[Cell, ...]:
        prompts = tuple(Prompt(str(n), text=f"{word} {n}", reference="yes") for n in range(15))
        return cells_of(plan, (), prompts, paired=True)

    cells = own("tell me")
    watched, done = watch(plan, begin(plan, promoted(plan, 15, cells=cells)), 45, cells=cells)
    assert [each.place for each in done] == [*range(15)] * 3
    assert sum(each.grade is not None for each in done) == 15
    assert next_task(plan, watched, own("say")) is None


def test_a_floor_is_watched_whatever_16_bits_gave() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 80}})
    # Six in ten are right: the trial had more of them, and 16 bits as few.
    poor = begin(plan, promoted(plan, plain=lambda _: 0.6))
    watched, _ = watch(plan, poor, 900, lambda each: 0.6 if "Needle" in each.cell.key else 1.0)
    assert fallen(plan, watched).startswith("WatchedNeedleFloor: 40.00 % missed")


def test_a_floor_goes_on_with_engines_that_are_compared_no_more() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 80}})
    watched = begin(plan, promoted(plan)).replaced()
    watched, done = watch(plan, watched, 40)
    assert {each.cell.probe for each in done} == {Probe.NEEDLE}
    assert all(each.grade is None and each.place >= CELL_TASKS for each in done)
    assert watched.runs["WatchedNeedleFloor"].count == 40
    assert not watched.runs["WatchedNeedle512Level"].count
    assert next_task(PLAN, begin(PLAN, promoted()).replaced(), CELLS) is None


def test_a_floor_that_is_edited_begins_anew_and_one_that_is_gone_decides_nothing() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 80}})
    watched, _ = watch(plan, begin(plan, promoted(plan)), 600, lambda _: 0.7)
    assert "Floor" in fallen(plan, watched) or "Level" in fallen(plan, watched)
    other = plan.model_copy(update={"floors": {Probe.NEEDLE: 20}})
    assert not watched.with_floors(other).runs["WatchedNeedleFloor"].count
    assert "WatchedNeedleFloor" not in watched.with_floors(PLAN).runs
    assert watched.with_floors(plan) == watched


def test_likelihoods_share_the_error_with_tasks() -> None:
    plan = PLAN.model_copy(update={"likelihood": True})
    progress = promoted(plan).compared(plan.quality(f"{SERVED}LikelihoodShort"), [0.001] * 30)
    watched = begin(plan, progress)
    assert next(iter(watched.runs)) == "WatchedLikelihoodShort"
    count = 0
    while not fallen(plan, watched):
        watched, count = scored(plan, watched, "Short", 0.3), count + 1
    assert plan.min_samples <= count < 30
    assert fallen(plan, watched).startswith("WatchedLikelihoodShort")
    alone = begin(plan, Progress())
    for _ in range(count):
        alone = scored(plan, alone, "Short", 0.3)
    assert fallen(plan, alone)


def test_half_of_the_error_is_for_the_levels() -> None:
    watched = begin(PLAN, promoted())
    run = watched.runs["WatchedNeedle512"]
    watched = watched.model_copy(update={"runs": {"WatchedNeedle512": run}})
    while not fallen(PLAN, watched):
        run = run.add([0.7])
        watched = watched.model_copy(update={"runs": {"WatchedNeedle512": run}})
    edge = run.comparison.harm.log_peak
    plain = watched.model_copy(update={"baselines": {}})
    strict = PLAN.model_copy(update={"false_rollback": PLAN.false_rollback / 2})
    assert edge > 0
    assert fallen(strict, plain) == fallen(PLAN, watched)


def test_the_other_half_is_shared_out_among_levels() -> None:
    chance = random.Random(2)
    progress = promoted(plain=lambda _: float(chance.random() < 0.8))
    found = begin(PLAN, progress).baselines
    assert PLAN.rules.false_rollback == 0.01
    for key, grades in progress.kept.items():
        assert found[key].shown_percent == shown_percent(grades.values(), 0.01 / 2 / 3)
        assert found[key].shown_percent < shown_percent(grades.values(), 0.01)


def test_a_short_time_shows_nothing_however_bad_it_looks() -> None:
    plan = PLAN.model_copy(update={"min_samples": 20})
    _, done = watch(plan, begin(plan, promoted(pairs=250)), 3 * 40, lambda _: 0.0)
    assert len(done) == 3 * 19 + 1
    # Of all numbers since the promotion, so that a late fall need not wait for so many again.
    patient = PLAN.model_copy(update={"min_samples": 200})
    watched, _ = watch(patient, begin(patient, promoted()), 3 * 250)
    assert watched.runs["WatchedNeedle512Level"].epoch > 1
    _, done = watch(patient, watched, 3 * 100, lambda _: 0.0)
    assert len(done) < 3 * 60


def test_everything_survives_being_stored() -> None:
    plan = PLAN.model_copy(update={"floors": {Probe.NEEDLE: 80}})
    watched, _ = watch(plan, begin(plan, promoted(plan)), 100, lambda each: each.place % 2)
    stored = Watched.model_validate_json(watched.model_dump_json())
    assert stored == watched
    assert asked(plan, stored) == asked(plan, watched)
    progress = promoted()
    assert Progress.model_validate_json(progress.model_dump_json()) == progress


def test_what_is_kept_fits_a_configmap() -> None:
    plan = PLAN.model_copy(update={"tasks": tuple(Probe)[1:-1]})
    cells = cells_of(plan, (512, 3072), (), paired=True)
    progress = promoted(plan, MOST_KEPT, lambda _: 0.8333333333333334, cells=cells)
    size = len(progress.model_dump_json()) + len(begin(plan, progress).model_dump_json())
    assert size < 200_000
