"""`kvserving report`: a log as one HTML page with plots, readable without a network."""

import argparse
from pathlib import Path

from rich.console import Console

from kvserving_tuner.errors import SettingsError
from kvserving_tuner.report.history import read_history
from kvserving_tuner.report.page import page
from kvserving_tuner.report.plots import draw

HELP = "make one HTML page of a log: figures over time, and decisions in words"


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("file", type=Path, help="log of `tune --record`, or an audit log")
    parser.add_argument("--out", type=Path, help="default: the log's name with .html")
    parser.add_argument("--serving", help="namespace/name, where an audit log is of several")
    parser.add_argument("--ttft-ms", type=float, help="target to draw for the first token")
    parser.add_argument("--tpot-ms", type=float, help="target to draw for tokens after it")
    parser.add_argument("--percentile", type=float, default=95, help="of the latencies")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the page; raises SettingsError for a log that cannot be read."""
    if not 0 < options.percentile <= 100:
        raise SettingsError(f"--percentile: expected 0 to 100, got {options.percentile:g}")
    history = read_history(options.file, options.percentile, options.serving)
    given = {"ttft_seconds": options.ttft_ms, "tpot_seconds": options.tpot_ms}
    targets = {name: ms / 1000 for name, ms in given.items() if ms is not None}
    out = options.out or _beside(options.file)
    text = page(history, draw(history, targets), options.percentile)
    try:
        out.write_text(text)
    except OSError as error:
        raise SettingsError(f"--out: {out}: {error.strerror}") from error
    console.print(f"{out}: {history.turns} looks", markup=False, highlight=False)
    return 0


def _beside(log: Path) -> Path:
    plain = log.with_suffix("") if log.suffix == ".gz" else log
    return plain.with_suffix(".html")
