"""What goes on being measured after a promotion: likelihoods, tasks and floors; pure.

No engine is left that could answer the same tasks in 16 bits. What is left are the grades that 16
bits gave to the trial's pairs. They are used twice, and no more:

- Each is paired once with an answer that is given now. A grade that is used again and again is
  wrong in the same direction each time: its bad luck adds up, and looks like a fall in the end.
- Together they show what mean grade 16 bits reach at least. That less the accepted drop is a level
  which answers to ever new tasks are held against for as long as engines run.

Half of the accepted chance of a false rollback is for levels that are shown too high.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import Field

from kvserving_tuner.judge import Criterion, LongRun, floor
from kvserving_tuner.judge.interval import NOTHING, MeanInterval
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.trials.plan import Frozen, Plan
from kvserving_tuner.trials.progress import SERVED, Progress
from kvserving_tuner.trials.tasks import CELL_TASKS, Cell

WATCHED = "Watched"
"""Kind of evidence: of engines whose change was promoted before."""


class Baseline(Frozen):
    """What is known of a cell's tasks in 16 bits."""

    unused: dict[int, float] = Field(default_factory=dict)
    """Grades that were not paired since the promotion, by the task's place in its cell."""
    shown_percent: float = 0.0
    """Mean grade that 16 bits are shown to reach at least; 0 for none."""


@dataclass(frozen=True)
class Next:
    """A task to be asked."""

    number: int
    cell: Cell
    place: int
    """The task's number in its cell."""
    grade: float | None = None
    """That of 16 bits; None where there is none to be paired with."""


class Watched(Frozen):
    """Evidence since a promotion, and what it is held against."""

    runs: dict[str, LongRun] = Field(default_factory=dict)
    """By criterion, also those without a number yet: they share the accepted error."""
    task: int = 0
    """Number of the next task: it moves with the evidence, so that no answer counts twice."""
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    """By a cell's key."""
    compares: bool = True
    """Whether engines are still those that the grades in 16 bits are of."""

    def adds(self, criterion: Criterion, number: float) -> "Watched":
        """With one more number of a criterion."""
        run = self.runs.get(criterion.name) or LongRun.start(criterion)
        return self.model_copy(update={"runs": {**self.runs, criterion.name: run.add([number])}})

    def replaced(self) -> "Watched":
        """After engines came that may have other weights: floors and likelihoods alone go on."""
        # What was shown stays known, as its part of the accepted error is spent.
        baselines = {
            key: each.model_copy(update={"unused": {}}) for key, each in self.baselines.items()
        }
        return self.model_copy(update={"compares": False, "baselines": baselines})

    def with_floors(self, plan: Plan) -> "Watched":
        """Held against the floors of a plan; one that has changed begins anew."""
        floors = {each.name: each for each in (_floor(plan, probe) for probe in plan.floors)}
        every = {_floor_name(probe) for probe in Probe}
        kept = {
            name: run
            for name, run in self.runs.items()
            if name not in every or run.comparison.criterion == floors.get(name)
        }
        new = {name: LongRun.start(each) for name, each in floors.items() if name not in kept}
        return self.model_copy(update={"runs": kept | new})


def begin(
    plan: Plan, progress: Progress, known: Mapping[str, Baseline] = MappingProxyType({})
) -> Watched:
    """Nothing measured yet, held against what a trial has left, and what was known before it."""
    alpha = plan.rules.false_rollback / 2 / max(1, len(progress.kept))
    baselines = dict(known) | {
        key: Baseline(unused=grades, shown_percent=shown_percent(grades.values(), alpha))
        for key, grades in progress.kept.items()
    }
    strata = [name.removeprefix(SERVED) for name in progress.likelihood(SERVED)]
    criteria = [plan.quality(f"{WATCHED}{name}") for name in strata]
    for key, baseline in baselines.items():
        criteria += [_fall(plan, key), *_level(plan, key, baseline)]
    runs = {each.name: LongRun.start(each) for each in criteria}
    return Watched(runs=runs, baselines=baselines).with_floors(plan)


def shown_percent(grades: Iterable[float], alpha: float) -> float:
    """Percent that the mean grade in 16 bits is shown to reach, at this error rate; 0 for none.

    It holds whenever the trial ended: a trial that ends well has looked at these grades often.
    """
    # An interval errs on either side, and only one matters here.
    interval = MeanInterval(0.0, 1.0, 2 * alpha)
    return 100 * interval.of(interval.add(NOTHING, grades)).low


def scored(plan: Plan, watched: Watched, stratum: str, rise: float) -> Watched:
    """With the paired rise of one prompt's likelihood."""
    return watched.adds(plan.quality(f"{WATCHED}{Probe.LIKELIHOOD}{stratum}"), rise)


def next_task(plan: Plan, watched: Watched, cells: Sequence[Cell]) -> Next | None:
    """The task to be asked now, of each cell in turn; None where no answer would tell anything."""
    asked = [cell for cell in cells if _tells(plan, watched, cell)]
    if not asked:
        return None
    turn, which = divmod(watched.task, len(asked))
    cell = asked[which]
    unused = watched.baselines.get(cell.key, Baseline()).unused
    if unused:
        place = min(unused)
        return Next(watched.task, cell, place, unused[place])
    # Made-up tasks that no trial has asked; a user's own come round again.
    place = turn % cell.count if cell.prompts else CELL_TASKS + turn
    return Next(watched.task, cell, place)


def graded(plan: Plan, watched: Watched, asked: Next, grade: float) -> Watched:
    """With the grade of an answer."""
    key = asked.cell.key
    baseline = watched.baselines.get(key)
    if asked.grade is not None and baseline is not None:
        watched = watched.adds(_fall(plan, key), asked.grade - grade)
        unused = {place: each for place, each in baseline.unused.items() if place != asked.place}
        baseline = baseline.model_copy(update={"unused": unused})
        baselines = {**watched.baselines, key: baseline}
        watched = watched.model_copy(update={"baselines": baselines})
    if watched.compares and baseline is not None:
        for level in _level(plan, key, baseline):
            watched = watched.adds(level, 1 - grade)
    if asked.cell.probe in plan.floors:
        watched = watched.adds(_floor(plan, asked.cell.probe), 1 - grade)
    return watched.model_copy(update={"task": asked.number + 1})


def fallen(plan: Plan, watched: Watched) -> str:
    """What shows that quality fell, with its numbers; empty while nothing does."""
    levels = any(each.shown_percent for each in watched.baselines.values())
    alpha = plan.rules.false_rollback / (2 if levels else 1) / max(1, len(watched.runs))
    found = [
        run.comparison
        for run in watched.runs.values()
        if run.count >= plan.min_samples and run.is_harmful(alpha)
    ]
    if not found:
        return ""
    return str(max(found, key=lambda each: each.harm.log_peak).finding())


def _tells(plan: Plan, watched: Watched, cell: Cell) -> bool:
    if cell.probe in plan.floors:
        return True
    baseline = watched.baselines.get(cell.key)
    if baseline is None or not watched.compares:
        return False
    return bool(baseline.unused or _level(plan, cell.key, baseline))


def _fall(plan: Plan, key: str) -> Criterion:
    """Criterion of a cell's pairs."""
    return plan.task(f"{WATCHED}{key}")


def _level(plan: Plan, key: str, baseline: Baseline) -> tuple[Criterion, ...]:
    """Criterion of a cell's mean grade alone; none where too little is shown to hold it against."""
    percent = baseline.shown_percent - plan.max_drop_percent
    return (floor(f"{WATCHED}{key}Level", percent),) if percent > 0 else ()


def _floor(plan: Plan, probe: Probe) -> Criterion:
    return plan.floor(_floor_name(probe), probe)


def _floor_name(probe: Probe) -> str:
    return f"{WATCHED}{probe}Floor"
