"""Who is asked which task in a trial, and what the grades of answers say; pure.

Tasks come in cells of one probe and length, and have numbers that go round all cells. The first of
each cell are answered in 16 bits alone, before any engine has the change: a model that fails them
there cannot show a drop, and its cell is left out. All others are pairs of two grades, of an engine
with the change and of one in 16 bits without eviction. Texts of the two are never compared.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvserving_tuner.judge import Comparison
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.strata import stratum_of
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import SERVED, LeftOut, Progress

LEVEL_TASKS: Final = 8
"""Tasks of a cell that are asked in 16 bits first."""
LEAST_BASELINE: Final = 0.25
"""Mean grade of these below which a cell is left out."""
CELL_TASKS: Final = 500
"""Made-up tasks of a cell: at 2 % a change that fails none that 16 bits solve needs 253 pairs."""
SPARE: Final = 1.5
"""Tasks that are recorded before an only engine is switched, over the least that can suffice."""
MOST_KEPT: Final = 250
"""Grades of a cell in 16 bits that are kept for the time after a promotion."""
ANSWER_ROOM: Final = 64
"""Tokens that the longest answer to a made-up task takes."""
FIT: Final = 1.1
"""Most tokens of a made-up task over what was asked for."""
SHORT_TOKENS, LONG_TOKENS = 512, 3072
TWO_LENGTHS: Final = frozenset({Probe.NEEDLE, Probe.RECALL})
"""Probes that look up what stands far back; the others are asked at the shorter length alone."""
REFERENCE_TOKENS_PER_WORD: Final = 1.6


@dataclass(frozen=True)
class Cell:
    """Tasks of one probe and length."""

    probe: Probe
    tokens: int
    """Of a prompt, about."""
    count: int = CELL_TASKS
    levels: int = LEVEL_TASKS
    prompts: tuple[Prompt, ...] = ()
    """A user's own, which are as many as the cell has tasks."""
    paired: bool = True
    """Whether there are answers in 16 bits; without them only a floor can be judged."""

    @property
    def name(self) -> str:
        """Criterion of its pairs."""
        return f"{SERVED}{self.probe}{stratum_of(self.tokens)}"

    @cached_property
    def key(self) -> str:
        """Tells it from cells with other tasks: by their length, and by a user's own texts."""
        if not self.prompts:
            return f"{self.probe}{self.tokens}"
        texts = "\0".join(f"{each.plain}\0{each.reference}" for each in self.prompts)
        return f"{self.probe}{self.tokens}-{hashlib.sha256(texts.encode()).hexdigest()[:8]}"


def lengths(block_size: int, context: int, kept: int) -> tuple[int, ...]:
    """Lengths of made-up tasks in tokens, none where no context can hold them.

    `kept` are the tokens that eviction keeps: the answer to a shorter prompt says nothing of it.
    """
    room = math.floor((context - ANSWER_ROOM) / FIT)
    short = min(room, max(SHORT_TOKENS, 4 * block_size, math.ceil(1.5 * kept)))
    if short * (2 - FIT) <= least_tokens(block_size, kept):
        return ()
    long = min(room, max(LONG_TOKENS, 3 * kept))
    return (short, long) if long >= 1.5 * short else (short,)


def least_tokens(block_size: int, kept: int) -> int:
    """Tokens that a prompt has to be longer than."""
    return max(2 * block_size, kept)


def cells_of(
    plan: Plan, sizes: Sequence[int], prompts: Sequence[Prompt], *, paired: bool
) -> tuple[Cell, ...]:
    """Cells that a plan's probes have; a user's references are grouped by their length.

    Without answers in 16 bits (`paired`) they are those of probes that have a floor.
    """
    probes = [probe for probe in plan.tasks if paired or probe in plan.floors]
    levels = LEVEL_TASKS if paired else 0
    made_up = tuple(
        Cell(probe, tokens, levels=levels, paired=paired)
        for probe in probes
        if probe is not Probe.REFERENCES
        for tokens in (sizes if probe in TWO_LENGTHS else sizes[:1])
    )
    if Probe.REFERENCES not in probes:
        return made_up
    strata: dict[str, list[Prompt]] = {}
    about: dict[str, int] = {}
    for prompt in prompts:
        if prompt.reference:
            tokens = round(REFERENCE_TOKENS_PER_WORD * len(prompt.plain.split()))
            strata.setdefault(stratum_of(tokens), []).append(prompt)
            about.setdefault(stratum_of(tokens), tokens)
    # A user's prompts are too few to spend some on a level, and they chose what they mean.
    own = tuple(
        Cell(Probe.REFERENCES, about[name], len(group), 0, tuple(group), paired)
        for name, group in strata.items()
    )
    return made_up + own


def task_of(cells: Sequence[Cell], number: int) -> tuple[Cell, int]:
    """Cell of a number, and the task's number in it."""
    return cells[number % len(cells)], number // len(cells)


def expecting(plan: Plan, progress: Progress, cells: Sequence[Cell]) -> Progress:
    """With every criterion that tasks are to decide, so that none is forgotten."""
    evidence = dict(progress.evidence)
    for cell in cells:
        judged = cell.paired and cell.name not in progress.left_out
        if judged and cell.name not in evidence:
            evidence[cell.name] = Comparison.start(plan.task(cell.name))
        floor = floor_name(cell.probe)
        if cell.probe in plan.floors and floor not in evidence:
            evidence[floor] = Comparison.start(plan.floor(floor, cell.probe))
    return progress.model_copy(update={"evidence": evidence})


def floor_name(probe: Probe) -> str:
    """Criterion of a probe's floor, over all lengths."""
    return f"{SERVED}{probe}Floor"


def to_record(
    plan: Plan, progress: Progress, cells: Sequence[Cell], *, alone: bool
) -> Iterator[int]:
    """Numbers to be asked before any engine has the change, in 16 bits.

    An engine that is alone gives the 16-bit half of all its pairs now.
    """
    spare = math.ceil(SPARE * plan.least_pairs) if alone else 0
    for number in range(len(cells) * max((cell.levels + spare for cell in cells), default=0)):
        cell, place = task_of(cells, number)
        wanted = place < cell.levels or (
            cell.paired
            and place < min(cell.count, cell.levels + spare)
            and cell.name not in progress.left_out
        )
        if wanted and number not in progress.recorded:
            yield number


def recorded(
    plan: Plan, progress: Progress, cells: Sequence[Cell], number: int, grade: float
) -> Progress:
    """With the grade of an answer in 16 bits; a cell that is too hard for the model is left out.

    One with a floor is not: the floor holds for a weak model too.
    """
    progress = progress.model_copy(update={"recorded": {**progress.recorded, number: grade}})
    cell, _ = task_of(cells, number)
    if cell.probe in plan.floors:
        return progress
    levels = _levels(cells, cell.name)
    if number not in levels or any(each not in progress.recorded for each in levels):
        return progress
    mean = math.fsum(progress.recorded[each] for each in levels) / len(levels)
    if mean >= LEAST_BASELINE:
        return progress
    message = (
        f"the model gets {100 * mean:.0f} % of {len(levels)} tasks right in 16 bits, and less than "
        f"{100 * LEAST_BASELINE:.0f} % cannot tell what a change costs"
    )
    entry = LeftOut(
        reason="BaselineTooWeak", message=message, value=100 * mean, samples=len(levels)
    )
    return progress.leaves_out(cell.name, entry)


def to_pair(plan: Plan, progress: Progress, cells: Sequence[Cell], *, live: bool) -> Iterator[int]:
    """Numbers to be asked on engines with the change; `live` is whether one in 16 bits is left."""
    told = {
        cell.name
        for cell in cells
        if cell.name in progress.left_out
        or is_shown(plan, progress, (cell.name, floor_name(cell.probe)))
    }
    if told >= {cell.name for cell in cells}:
        return
    last = len(cells) * max((cell.count for cell in cells), default=0)
    for number in range(progress.tasks, last):
        cell, place = task_of(cells, number)
        if cell.name in told or not cell.levels <= place < cell.count:
            continue
        if live or not cell.paired or number in progress.recorded:
            yield number


def paired(
    plan: Plan,
    progress: Progress,
    cells: Sequence[Cell],
    number: int,
    grade: float,
    baseline: float | None,
) -> Progress:
    """With the grades of one task, with the change and in 16 bits."""
    cell, place = task_of(cells, number)
    if baseline is not None:
        progress = progress.compared(plan.task(cell.name), [baseline - grade])
        progress = progress.keeps(cell.key, place, baseline, MOST_KEPT)
    if cell.probe in plan.floors:
        floor = plan.floor(floor_name(cell.probe), cell.probe)
        progress = progress.compared(floor, [1 - grade])
    return progress.model_copy(update={"tasks": number + 1})


def is_shown(plan: Plan, progress: Progress, names: Collection[str]) -> bool:
    """Whether all of these criteria are shown to be kept."""
    return all(plan.is_kept(found) for name, found in progress.evidence.items() if name in names)


def criteria(plan: Plan, progress: Progress, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Names of the criteria of these cells that have to be shown to be kept.

    Floors always; falls only where likelihoods say nothing. Where they do, they show in tens of
    prompts what takes hundreds of tasks, and the fall of a task rolls back where it shows.
    """
    names = {floor_name(cell.probe) for cell in cells}
    if not plan.likelihood:
        names |= {cell.name for cell in cells}
    return tuple(name for name in progress.evidence if name in names)


def _levels(cells: Sequence[Cell], name: str) -> list[int]:
    """Numbers that tell the level of a criterion."""
    first = range(len(cells) * max(cell.levels for cell in cells))
    found = [(number, *task_of(cells, number)) for number in first]
    return [number for number, cell, place in found if cell.name == name and place < cell.levels]
