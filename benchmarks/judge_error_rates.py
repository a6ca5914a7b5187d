"""How often the judge is wrong, and how many pairs it takes to be right.

Simulated trials of one quality criterion are judged after every pair, as a controller does that
looks all the time. Task scores are 1, 0 or -1 for an answer that the change broke, left or mended;
likelihood differences are normal with the deviation given. Beside the judge stands a t-test at the
same error rate that is looked at every 50 pairs. Needs no engine:

    python benchmarks/judge_error_rates.py
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envelope

from kvserving_tuner.judge import Comparison, Criterion, Rules, likelihood, task

Draw = Callable[[random.Random], float]
PEEK_PAIRS = 50
CHUNK = 10
"""Pairs taken at a time, for speed alone."""
NORMAL_QUANTILE_99 = 2.326


@dataclass(frozen=True)
class Case:
    """A change of known effect."""

    name: str
    criterion: Criterion
    draw: Draw
    harmful: bool
    """Whether its true drop is beyond the bound."""


def scores(drop: float, discordant: float) -> Draw:
    """Fall of a task score in pairs, of which a share differs."""
    broken, mended = (discordant + drop) / 2, (discordant - drop) / 2
    return lambda source: source.choices((1.0, -1.0, 0.0), (broken, mended, 1 - discordant))[0]


def normal(mean: float, deviation: float) -> Draw:
    """Rise of a prompt's negative log-likelihood, in nats per token."""
    return lambda source: source.gauss(mean, deviation)


def ratings(better: float, worse: float) -> Draw:
    """Fall of a rating out of five, as a share, where both arms have their own mean and answers."""

    def rating(source: random.Random, mean: float) -> float:
        return 5.0 if source.random() < mean - 4 else 4.0

    return lambda source: (rating(source, better) - rating(source, worse)) / 5


def cases() -> list[Case]:
    """Effects at the bound, within it and beyond it."""
    found = []
    for margin in (0, 2):
        criterion = task("task", margin)
        at = margin / 100
        found.append(Case(f"task margin {margin}: at it", criterion, scores(at, 0.1), False))
        for drop in (0.05, 0.1, 0.2):
            name = f"task margin {margin}: {100 * drop:.0f} pt drop"
            found.append(Case(name, criterion, scores(drop, max(0.1, drop + 0.02)), True))
        name = f"task margin {margin}: {margin + 5} pt drop"
        found.append(Case(name, criterion, scores(at + 0.05, max(0.1, at + 0.07)), True))
    found.append(
        Case("ratings 4.74 against 4.71, margin 2", task("task", 2), ratings(4.74, 4.71), False)
    )
    for deviation in (0.01, 0.03, 0.1):
        criterion, words = likelihood("likelihood", 2), f"likelihood, deviation {deviation}"
        bound = criterion.bound
        found += [
            Case(f"{words}: at the margin of 2 %", criterion, normal(bound, deviation), False),
            Case(f"{words}: none", criterion, normal(0.0, deviation), False),
            Case(f"{words}: 5 %", criterion, normal(math.log(1.05), deviation), True),
            Case(f"{words}: 20 %", criterion, normal(math.log(1.2), deviation), True),
        ]
    return found


def run(case: Case, rules: Rules, source: random.Random) -> tuple[str, int]:
    """Outcome of one simulated trial, and the pairs it took."""
    comparison = Comparison.start(case.criterion)
    while comparison.count < rules.max_samples:
        numbers = [case.draw(source) for _ in range(CHUNK)]
        later = comparison.add(numbers)
        if later.count >= rules.min_samples and decision(later, rules):
            # A rejection stays, so that the pair that decided is in this chunk.
            for number in numbers:
                comparison = comparison.add((number,))
                found = decision(comparison, rules)
                if found and comparison.count >= rules.min_samples:
                    return found, comparison.count
        comparison = later
    return "open", rules.max_samples


def decision(comparison: Comparison, rules: Rules) -> str:
    """What the evidence allows to decide, empty for nothing."""
    if comparison.is_harmful(rules.false_rollback):
        return "rolled back"
    return "passed" if comparison.is_safe(rules.false_promotion) else ""


def peeked(case: Case, rules: Rules, source: random.Random) -> bool:
    """Whether a t-test at the same rate calls the change harmful at any of its looks."""
    total = squares = 0.0
    for count in range(1, rules.max_samples + 1):
        number = case.draw(source) - case.criterion.bound
        total, squares = total + number, squares + number * number
        if count % PEEK_PAIRS == 0:
            variance = (squares - total * total / count) / (count - 1)
            if variance and total / math.sqrt(variance * count) > NORMAL_QUANTILE_99:
                return True
    return False


def row(case: Case, rules: Rules, runs: int, peeks: int) -> dict[str, Any]:
    """Error rates and sizes of one case."""
    source = random.Random(f"{case.name} {runs}")  # noqa: S311
    outcomes = [run(case, rules, source) for _ in range(runs)]
    rolled = [count for outcome, count in outcomes if outcome == "rolled back"]
    passed = [count for outcome, count in outcomes if outcome == "passed"]
    decided = rolled if case.harmful else passed
    ranks = sorted(decided) + [rules.max_samples] * (runs - len(decided))
    return {
        "case": case.name,
        "runs": runs,
        "false_rollback": None if case.harmful else len(rolled),
        "missed": runs - len(rolled) if case.harmful else None,
        "passed": len(passed),
        "pairs_median": statistics.median(ranks),
        "pairs_p90": ranks[math.ceil(0.9 * runs) - 1],
        "fixed_test_with_peeking_rolled_back": sum(
            peeked(case, rules, source) for _ in range(peeks)
        ),
        "peeking_runs": peeks,
    }


def main() -> None:
    """Simulate every case and write its row."""
    options = _options()
    rules = Rules(max_samples=options.max_samples)
    rows = []
    for case in cases():
        if options.only and options.only not in case.name:
            continue
        rows.append(row(case, rules, options.runs, options.peeks))
        print(json.dumps(rows[-1]), flush=True)  # noqa: T201
    rates = {"false_rollback": rules.false_rollback, "false_promotion": rules.false_promotion}
    envelope.write(options.out, rows, rates=rates, max_samples=rules.max_samples)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--peeks", type=int, default=500)
    parser.add_argument("--max-samples", type=int, default=4000)
    parser.add_argument("--only", default="", help="part of the names of the cases to simulate")
    parser.add_argument(
        "--out", type=Path, default=envelope.ROOT / "benchmarks/results/judge_error_rates.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
