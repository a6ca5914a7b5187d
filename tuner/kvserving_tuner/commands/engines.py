"""Options of commands that run the loop on engines by their URLs."""

import argparse
import os

from kvserving_tuner.errors import SettingsError
from kvserving_tuner.sources.base import EngineTarget


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Which engines, and the token of their runtime API."""
    parser.add_argument(
        "--engine", action="append", required=True, metavar="URL", help="may be repeated"
    )
    parser.add_argument("--token-env", metavar="NAME", help="variable that holds the API token")


def add_turns(parser: argparse.ArgumentParser, interval_seconds: float) -> None:
    """How often the loop looks, how many times, and what it prints."""
    parser.add_argument("--interval", type=float, default=interval_seconds, help="seconds")
    parser.add_argument("--turns", type=int, help="stop after this many")
    parser.add_argument("--json", action="store_true", help="print audit lines, no table")


def check_token(options: argparse.Namespace) -> None:
    """Raise SettingsError where the variable of the token is not set."""
    if options.token_env and options.token_env not in os.environ:
        raise SettingsError(f"--token-env: variable {options.token_env} is not set")


def targets_of(options: argparse.Namespace) -> list[EngineTarget]:
    """The engines that were named."""
    token = os.environ.get(options.token_env) if options.token_env else None
    return [EngineTarget(url, url, token) for url in options.engine]
