"""How often the judge is wrong, and how many pairs it takes to be right.

Simulated trials of one quality criterion are judged after every pair, as a controller does that
looks all the time, by the rates that a trial's plan has. Made-up task scores are 1, 0 or -1 for an
answer that the change broke, left or mended, and made-up likelihood differences are normal.
Measured ones are drawn from the pairs of `aa_noise.json` where it is there: their own deviations,
tails and shares of equal answers, as they are, or moved to the bound and beyond it. Beside the
judge stands a t-test at the same rate that is looked at every 50 pairs. A change at the bound is
judged to the last pair, whatever else was shown before. Needs no engine:

    python benchmarks/judge_error_rates.py
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import envelope
import numpy as np
from judge_arrays import Array, Draw, Moments, peeked, simulate, upper_bound

from kvserving_tuner.judge import Criterion, goodput_gain, likelihood, task
from kvserving_tuner.trials.plan import Plan

RESULTS = envelope.ROOT / "benchmarks/results"
PEEK_PAIRS = 50
DISCORDANT = 0.1
"""Share of answers that differ in made-up pairs, at least."""
SAME_DROPS = {"no drop": "no drop", "-5 pt": "5 %", "-7 pt": "margin + 5 %", "-20 pt": "20 %"}
"""Task scores beside likelihoods."""
GAIN_BLOCKS = 240
BLOCK_DEVIATION = 0.1


@dataclass(frozen=True)
class Case:
    """A change of known effect."""

    name: str
    criterion: Criterion
    draw: Draw
    drop: float
    """True mean."""

    @property
    def harmful(self) -> bool:
        """Whether the true drop is beyond the bound."""
        return self.drop > self.criterion.bound + 1e-9


def scores(drop: float, discordant: float) -> Draw:
    """Fall of a task score in pairs, of which a share differs."""
    discordant = max(discordant, drop + 0.02)
    chances = ((discordant + drop) / 2, (discordant - drop) / 2, 1 - discordant)

    def draw(source: np.random.Generator, shape: tuple[int, int]) -> Array:
        where = np.searchsorted(np.cumsum(chances[:2]), source.random(shape), side="right")
        return np.array([1.0, -1.0, 0.0])[where]

    return draw


def normal(mean: float, deviation: float) -> Draw:
    """Rise of a prompt's negative log-likelihood, in nats per token."""
    return lambda source, shape: source.normal(mean, deviation, shape)


def ratings(better: float, worse: float) -> Draw:
    """Fall of a rating out of five, as a share, where both arms have their own mean and answers."""

    def draw(source: np.random.Generator, shape: tuple[int, int]) -> Array:
        first, second = source.random(shape) < better - 4, source.random(shape) < worse - 4
        return (first.astype(np.float64) - second) / 5

    return draw


def resampled(pairs: Sequence[float], mean: float | None = None) -> Draw:
    """Measured differences, moved so that their mean is the one given."""
    values = np.array(pairs)
    if mean is not None:
        values = values - values.mean() + mean
    return lambda source, shape: source.choice(values, shape)


def turned(pairs: Sequence[float], drop: float) -> Draw:
    """Measured differences of scores with signs drawn anew, so that their mean is the drop.

    Where all signs together do not make it, whole answers are broken instead.
    """
    sizes = np.abs(np.array(pairs))
    mean = float(sizes.mean())
    worse = min(1.0, 0.5 + drop / (2 * mean)) if mean else 0.5
    left = drop - mean * (2 * worse - 1)
    broken = left / (1 - mean * (2 * worse - 1)) if left > 1e-12 else 0.0

    def draw(source: np.random.Generator, shape: tuple[int, int]) -> Array:
        found = source.choice(sizes, shape) * np.where(source.random(shape) < worse, 1.0, -1.0)
        return np.where(source.random(shape) < broken, 1.0, found) if broken else found

    return draw


def blocks(ratio: float, candidates: int, engines: int) -> Draw:
    """What the candidates lack of their part of goodput; every engine has noise of its own."""
    factors = np.where(np.arange(engines) < candidates, ratio, 1.0)

    def draw(source: np.random.Generator, shape: tuple[int, int]) -> Array:
        did = factors * np.maximum(0, source.normal(1, BLOCK_DEVIATION, (*shape, engines)))
        candidate = did[..., :candidates].sum(axis=-1)
        share = candidate / did.sum(axis=-1)
        part = candidates / engines
        lacking: Array = (part - share) / (2 * part * (1 - part))
        return lacking

    return draw


def made_up() -> Iterator[Case]:
    """Effects at the bound, within it and beyond it, by formulas."""
    for margin in (0, 2):
        criterion, at = task("task", margin), margin / 100
        name = f"task, margin {margin}"
        yield Case(f"{name}: at it", criterion, scores(at, DISCORDANT), at)
        if margin:
            yield Case(f"{name}: no drop", criterion, scores(0.0, DISCORDANT), 0.0)
        for points in sorted({5, 10, 20, margin + 5}):
            drop = points / 100
            yield Case(f"{name}: -{points} pt", criterion, scores(drop, DISCORDANT), drop)
    criterion = task("task", 2)
    yield Case("ratings 4.74 against 4.71 of 5, margin 2", criterion, ratings(4.74, 4.71), 0.006)
    criterion = likelihood("likelihood", 2)
    for deviation in (0.01, 0.03, 0.1):
        for words, mean in _likelihood_means(criterion).items():
            name = f"likelihood, margin 2, normal of deviation {deviation}: {words}"
            yield Case(name, criterion, normal(mean, deviation), mean)


def measured(document: dict[str, Any]) -> Iterator[Case]:
    """The same from pairs of a real engine."""
    for row in document["rows"]:
        pairs, name = row["differences"], f"{row['name']}, {row['kind']} of {document['model']}"
        if row["kind"] == "likelihood":
            criterion = likelihood("likelihood", 2)
            means = _likelihood_means(criterion)
            moved = {words: (resampled(pairs, mean), mean) for words, mean in means.items()}
        else:
            criterion = task("task", 2)
            drops = {"at the margin": 0.02, "margin + 5 pt": 0.07}
            moved = {words: (turned(pairs, drop), drop) for words, drop in drops.items()}
        yield Case(f"{name}: as measured", criterion, resampled(pairs), float(np.mean(pairs)))
        for words, (draw, mean) in moved.items():
            yield Case(f"{name}: moved to {words}", criterion, draw, mean)


def _likelihood_means(criterion: Criterion) -> dict[str, float]:
    return {
        "at the margin": criterion.bound,
        "no drop": 0.0,
        "5 %": math.log(1.05),
        "margin + 5 %": math.log(1.07),
        "20 %": math.log(1.2),
    }


def row(case: Case, plan: Plan, runs: int) -> dict[str, Any]:
    """Error rates and sizes of one case."""
    source = np.random.default_rng([len(case.name), *case.name.encode()])
    rules = plan.rules
    found = simulate(
        case.criterion, case.draw, runs, source,
        harm_alpha=rules.false_rollback, safe_alpha=rules.false_promotion,
        least=rules.min_samples, most=rules.max_samples,
    )  # fmt: skip
    harmful = int(np.isfinite(found.harmful).sum())
    ever, once = peeked(
        case.criterion, case.draw, runs, source,
        quantile=NormalDist().inv_cdf(1 - rules.false_rollback), every=PEEK_PAIRS,
        most=rules.max_samples,
    )  # fmt: skip
    pairs = found.harmful if case.harmful else found.safe
    pairs = np.minimum(pairs, rules.max_samples)
    errors = runs - harmful if case.harmful else harmful
    return {
        "case": case.name,
        "runs": runs,
        "false_rollback": None if case.harmful else harmful,
        "missed": runs - harmful if case.harmful else None,
        "errors_per_2000": round(2000 * errors / runs, 2),
        "upper_95_percent": round(100 * upper_bound(errors, runs), 3),
        "passed": int(np.isfinite(_before(found)).sum()),
        "pairs_median": float(np.median(pairs)),
        "pairs_p90": float(np.quantile(pairs, 0.9)),
        "t_test_with_peeking_rolled_back": ever,
        "t_test_at_the_end_rolled_back": once,
    }


def _before(found: Moments) -> Array:
    """Pair at which trials were shown to be safe before anything else."""
    return np.where(found.safe < found.harmful, found.safe, np.inf)


def same_verdicts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median pairs of task scores and of likelihoods for verdicts on equal drops at margin 2."""
    medians = {row["case"]: row["pairs_median"] for row in rows if "pairs_median" in row}
    found = []
    for points, percent in SAME_DROPS.items():
        likelihoods = {
            case.removesuffix(percent).rstrip(": "): pairs for case, pairs in medians.items()
            if "likelihood" in case and case.endswith((f": {percent}", f"to {percent}"))
        }  # fmt: skip
        scored = medians.get(f"task, margin 2: {points}")
        found.append({"drop": percent, "task_scores": scored, **likelihoods})
    return found


def gain_row(ratio: float, candidates: int, engines: int, runs: int, plan: Plan) -> dict[str, Any]:
    """How often a gain is shown within the time that a trial has for it."""
    criterion = goodput_gain("goodput", 1.0)
    source = np.random.default_rng([round(1000 * ratio), candidates, engines])
    rules = plan.rules
    found = simulate(
        criterion, blocks(ratio, candidates, engines), runs, source,
        harm_alpha=1e-300, safe_alpha=rules.false_promotion, least=1, most=GAIN_BLOCKS,
    )  # fmt: skip
    shown = int(np.isfinite(found.safe).sum())
    waits = np.minimum(found.safe, GAIN_BLOCKS)
    return {
        "case": f"goodput ratio {ratio}, {candidates} of {engines} engines",
        "runs": runs,
        "false_gain": shown if ratio <= 1 else None,
        "missed": None if ratio <= 1 else runs - shown,
        "upper_95_percent": round(100 * upper_bound(shown, runs), 3) if ratio <= 1 else None,
        "blocks_median": float(np.median(waits)),
        "blocks_p90": float(np.quantile(waits, 0.9)),
    }


def main() -> None:
    """Simulate every case and write its row."""
    options = _options()
    plan = Plan(max_samples=options.max_samples)
    cases = list(made_up())
    if options.noise.exists():
        cases += measured(json.loads(options.noise.read_text()))
    rows = []
    for case in cases:
        if options.only in case.name:
            rows.append(row(case, plan, options.runs))
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    for ratio in (1.0, 1.05, 1.1, 1.2):
        for candidates in (1, 2, 3):
            rows.append(gain_row(ratio, candidates, 4, options.runs, plan))
            print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    rules = plan.rules
    rates = {"false_rollback": rules.false_rollback, "false_promotion": rules.false_promotion}
    envelope.write(
        options.out, rows, rates=rates, min_samples=rules.min_samples,
        max_samples=rules.max_samples, block_deviation=BLOCK_DEVIATION,
        same_verdicts=same_verdicts(rows),
    )  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--max-samples", type=int, default=Plan().max_samples)
    parser.add_argument("--only", default="", help="part of the names of the cases to simulate")
    parser.add_argument("--noise", type=Path, default=RESULTS / "aa_noise.json")
    parser.add_argument("--out", type=Path, default=RESULTS / "judge_error_rates.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
