"""`kvserving explain`: one decision in words and numbers, from an audit log or a recorded one."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvserving_tuner.decision import Action
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.recording import documents

HELP = "say why something was decided"


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("file", type=Path, help="audit log, or log of `tune --record`")
    parser.add_argument("--id", help="decision, or how its id begins; default: the last to act")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print one decision; raises SettingsError where there is none such."""
    for line in explained(find(options.file, options.id)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def find(path: Path, identity: str | None) -> Mapping[str, Any]:
    """The decision with an id; without one the last that acted, else the last of all."""
    last: Mapping[str, Any] | None = None
    acted: Mapping[str, Any] | None = None
    for _, document in documents(path):
        decision = document.get("decision", document)
        if not isinstance(decision, Mapping) or "diagnosis" not in decision:
            continue
        if identity and str(decision.get("id", "")).startswith(identity):
            return decision
        last = decision
        if decision.get("action") != Action.HOLD.value:
            acted = decision
    if identity:
        raise SettingsError(f"--id: expected a decision of {path}, got {identity}")
    found = acted or last
    if found is None:
        raise SettingsError(f"{path}: expected decisions, got none")
    return found


def explained(decision: Mapping[str, Any]) -> list[str | Table]:
    """A decision in paragraphs and tables."""
    diagnosis, change, case = decision["diagnosis"], decision.get("change"), decision.get("case")
    lines: list[str | Table] = [
        f"Decision {decision['id']} at {decision['at']:.0f}",
        f"Found: {diagnosis['kind']}: {diagnosis['message']}",
        f"Decided: {decision['action']} ({decision['reason']}): {decision['message']}",
    ]
    if change:
        lines.append(
            f"Change: {change['knob']} from {change['from']} to {change['to']}, cost class "
            f"{change['cost']}"
        )
    if case:
        lines += _case(case)
    passed = decision.get("passed_over") or []
    if passed:
        lines.append("Passed over:" if change else "Looked at, and nothing is due:")
        lines += [f"  {each['rung']}: {each['why']}" for each in passed]
    if decision.get("numbers"):
        lines.append(_numbers(decision["numbers"]))
    return lines


def _case(case: Mapping[str, Any]) -> list[str | Table]:
    forecast, seconds = case.get("forecast"), case.get("start_seconds")
    gain = "not forecast"
    if forecast:
        gain = (
            f"{forecast['gain']:+.0%}, with a chance of a fifth each below {forecast['low']:+.0%} "
            f"and above {forecast['high']:+.0%} ({forecast['basis']})"
        )
    start = "never measured" if seconds is None else f"{seconds:.0f} s"
    return [
        f"Rung: {case['rung']}, risk {case['risk']}",
        f"Expected gain: {gain}",
        f"Engines are away for: {start}",
    ]


def _numbers(numbers: Mapping[str, Any]) -> Table:
    table = Table(box=None)
    table.add_column("number")
    table.add_column("value", justify="right")
    for name, value in numbers.items():
        table.add_row(name, f"{value:g}" if isinstance(value, int | float) else str(value))
    return table
