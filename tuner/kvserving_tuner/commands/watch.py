"""`kvserving watch`: see, and with `--apply` tune, engines without Kubernetes."""

import argparse
import asyncio
import time

import httpx
from rich.console import Console
from rich.live import Live

from kvserving_tuner.actuators.runtime_api import RuntimeActuator
from kvserving_tuner.audit import audit_line
from kvserving_tuner.commands.engines import add_engines, add_turns, check_token, targets_of
from kvserving_tuner.decision import Decision
from kvserving_tuner.live import INTERVAL_SECONDS, Loop, Turn
from kvserving_tuner.runtime_client import RuntimeClient
from kvserving_tuner.settings import Bounds, Mode, Slo, TuningSettings
from kvserving_tuner.sources.direct import DirectSource
from kvserving_tuner.view import render

HELP = "observe engines and say what would be changed"
REMEMBERED_DECISIONS = 200


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_engines(parser)
    parser.add_argument("--apply", action="store_true", help="change the engines (mode Auto)")
    parser.add_argument("--minimum", type=int, default=1, help="lowest cap")
    parser.add_argument("--maximum", type=int, help="highest cap")
    parser.add_argument("--ttft-ms", type=float, help="target for time to first token")
    parser.add_argument("--tpot-ms", type=float, help="target for time per output token")
    parser.add_argument("--percentile", type=float, default=95, help="of both targets")
    add_turns(parser, INTERVAL_SECONDS)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run until interrupted; raises SettingsError with the option at fault."""
    check_token(options)
    asyncio.run(watch(options, console))
    return 0


async def watch(options: argparse.Namespace, console: Console) -> None:
    """Run the loop until interrupted."""
    targets = targets_of(options)
    settings = TuningSettings(
        mode=Mode.AUTO if options.apply else Mode.RECOMMEND,
        max_active_seqs=Bounds(minimum=options.minimum, maximum=options.maximum),
        slo=Slo(ttft_ms=options.ttft_ms, tpot_ms=options.tpot_ms, percentile=options.percentile),
    )
    serving = ",".join(options.engine)
    decisions: list[Decision] = []
    async with httpx.AsyncClient() as http:
        client = RuntimeClient(http)
        loop = Loop(targets, DirectSource(http), client, RuntimeActuator(client), settings)
        with Live(console=console, auto_refresh=False) as screen:

            def show(turn: Turn) -> None:
                decisions.append(turn.decision)
                del decisions[:-REMEMBERED_DECISIONS]
                if options.json:
                    outcome = turn.applied.outcome.value if turn.applied else None
                    line = audit_line(turn.decision, serving, turn.observation, outcome)
                    console.print(line, soft_wrap=True, markup=False, highlight=False)
                    return
                table = render(turn.observation, turn.decision, settings.slo, decisions)
                screen.update(table, refresh=True)

            await loop.run(show, time.time, interval_seconds=options.interval, turns=options.turns)
