"""`kvserving tune`: tune vLLM servers by URL, with the loop that tunes a cluster."""

import argparse
import asyncio
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.live import Live

from kvserving_tuner.actuators.runtime_api import RuntimeActuator
from kvserving_tuner.audit import audit_line
from kvserving_tuner.commands.engines import add_engines, add_turns, check_token, targets_of
from kvserving_tuner.commands.options import add_ladder, ladder_settings
from kvserving_tuner.decision import Decision
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.live import INTERVAL_SECONDS, Loop, Turn
from kvserving_tuner.recording import Recorder
from kvserving_tuner.rules import Ability
from kvserving_tuner.runtime_client import RuntimeClient
from kvserving_tuner.screening import ProbeGate
from kvserving_tuner.settings import Mode
from kvserving_tuner.sources.direct import DirectSource
from kvserving_tuner.state import TunerState
from kvserving_tuner.view import render

HELP = "tune vLLM servers by URL, without Kubernetes"
REMEMBERED_DECISIONS = 200
MAX_DROP_PERCENT = 2.0
"""The default of `quality.maxDropPercent` of a KVRollbackPolicy."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_engines(parser)
    add_ladder(parser)
    parser.add_argument(
        "--max-drop-percent", type=float, default=MAX_DROP_PERCENT, metavar="PERCENT",
        help="of quality, that a KV format may cost",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="recommend, and change nothing")
    parser.add_argument("--state", type=Path, metavar="FILE", help="memory between runs")
    parser.add_argument("--record", type=Path, metavar="FILE", help="log for `replay`; may be .gz")
    add_turns(parser, INTERVAL_SECONDS)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run until interrupted; raises SettingsError with the option at fault."""
    check_token(options)
    asyncio.run(tune(options, console))
    return 0


async def tune(options: argparse.Namespace, console: Console) -> None:
    """Run the loop until interrupted."""
    targets = targets_of(options)
    mode = Mode.RECOMMEND if options.dry_run else Mode.AUTO
    settings = ladder_settings(options, mode, Ability.TRIAL)
    state = read_state(options.state)
    recorder = Recorder(options.record) if options.record else None
    decisions: list[Decision] = []
    async with httpx.AsyncClient() as http:
        client = RuntimeClient(http)
        source = DirectSource(http, on_read=recorder.saw if recorder else None)
        gate = ProbeGate(http, options.max_drop_percent)
        loop = Loop(targets, source, client, RuntimeActuator(client), settings, state, gate)
        with Live(console=console, auto_refresh=False) as screen:

            def show(turn: Turn) -> None:
                if recorder is not None:
                    recorder.wrote(turn)
                if options.state is not None:
                    write_state(options.state, loop.state)
                decisions.append(turn.decision)
                del decisions[:-REMEMBERED_DECISIONS]
                if options.json:
                    outcome = turn.applied.outcome.value if turn.applied else None
                    serving = ",".join(options.engine)
                    line = audit_line(turn.decision, serving, turn.observation, outcome)
                    console.print(line, soft_wrap=True, markup=False, highlight=False)
                    return
                table = render(turn.observation, turn.decision, settings.slo, decisions)
                screen.update(table, refresh=True)

            try:
                await loop.run(
                    show, time.time, interval_seconds=options.interval, turns=options.turns
                )
            finally:
                if recorder is not None:
                    recorder.close()


def read_state(path: Path | None) -> TunerState:
    """The memory of an earlier run; a fresh one where there is none."""
    if path is None or not path.exists():
        return TunerState()
    try:
        return TunerState.from_json(path.read_text())
    except OSError as error:
        raise SettingsError(f"--state: {path}: {error.strerror}") from error


def write_state(path: Path, state: TunerState) -> None:
    """Keep the memory; what was there is replaced at once, so that no half of it is ever read."""
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(state.to_json())
        new.replace(path)
    except OSError as error:
        raise SettingsError(f"--state: {path}: {error.strerror}") from error
