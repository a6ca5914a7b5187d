"""`kvserving replay`: what would have been decided on a recorded log, under other settings.

The log is what happened: a change that would have been made is not, and what follows it in the log
is still without it. So the first difference counts, and the later ones with care.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from kvserving_tuner.commands.options import add_ladder, ladder_settings
from kvserving_tuner.decision import Action, Decision
from kvserving_tuner.loop import decide
from kvserving_tuner.recording import recorded
from kvserving_tuner.rules import Ability
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.sources.base import EngineTarget, Histories
from kvserving_tuner.state import TunerState

HELP = "decide again on a log of `tune --record`"


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("file", type=Path, help="log that `kvserving tune --record` wrote")
    add_ladder(parser)
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default="Auto")
    parser.add_argument("--all", action="store_true", help="also turns that say nothing new")
    parser.add_argument("--output", choices=("text", "json"), default="text")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print what would have been decided; raises SettingsError for a file that is no log."""
    settings = ladder_settings(options, Mode(options.mode), Ability.CHANGE)
    shown, turns, different = "", 0, 0
    for decision, before in replay(options.file, settings):
        turns += 1
        differs = _outcome(decision.to_dict()) != _outcome(before)
        different += differs
        said = f"{decision.action}/{decision.reason}"
        if said == shown and decision.action is Action.HOLD and not options.all:
            continue
        shown = said
        if options.output == "json":
            document = json.dumps({**decision.to_dict(), "recorded": before}, default=str)
            console.print(document, soft_wrap=True, markup=False, highlight=False)
            continue
        then = f" (recorded: {before['action']})" if differs else ""
        console.print(f"{decision.at:.0f} {said}{then}: {decision.message}", highlight=False)
    if options.output == "text":
        console.print(f"{turns} turns, {different} decided otherwise than recorded")
    return 0


def replay(
    path: Path, settings: TuningSettings, state: TunerState | None = None
) -> Iterator[tuple[Decision, Mapping[str, Any]]]:
    """Each decision on a log's observations, and the one that is recorded with it."""
    histories = Histories(settings.windows, settings.thresholds)
    state = state or TunerState()
    for turn in recorded(path):
        targets = [EngineTarget(name, name) for name in turn.read]
        seen = histories.update(targets, turn.read, turn.at)
        decision, state = decide(settings, seen, turn.runtime, state, turn.at)
        yield decision, turn.decision


def _outcome(document: Mapping[str, Any]) -> tuple[object, object]:
    """What a decision comes to: its change, or that there is none."""
    change = document.get("change")
    return document.get("action"), change and (change.get("knob"), change.get("to"))
