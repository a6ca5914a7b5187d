"""The command line's parser: every command is a module of `commands`.

Only the command that is named is loaded, so that a TAB is answered at once.
"""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

from kvserving_kubectl.options import add_connection

PROGRAM = "kubectl-kvserving"

COMMANDS: Mapping[str, str] = {
    "status": "show KVServings, or one of them whole",
    "explain": "say why the last decision was taken, in words and numbers",
    "history": "show what was decided, tried, promoted and rolled back",
    "trials": "list trials, or show one with its evidence",
    "top": "show KV use, TTFT, TPOT and queue of each engine",
    "validate": "check manifests without a cluster",
    "plan": "say what applying manifests would do to what runs",
    "promote": "approve a trial",
    "rollback": "end a trial, or take back what was promoted",
    "pause": "stop tuning, of one or of all",
    "resume": "tune again what was paused",
    "support-bundle": "collect what helps others to help, without secrets",
    "completion": "print the completion of a shell",
}
"""What each command does, in the order of the help."""


def command(name: str) -> ModuleType:
    """Module of a command."""
    return import_module(f"kvserving_kubectl.commands.{name.replace('-', '_')}")


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The command line, whole for the commands among the words that were typed.

    Options of the cluster stand before or behind the command.
    """
    parser = argparse.ArgumentParser(
        prog="kubectl kvserving", description="See and steer KVServings.", allow_abbrev=False
    )
    add_connection(parser, defaults=True)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help in COMMANDS.items():
        each = commands.add_parser(name, help=help, allow_abbrev=False)
        if name in words:
            module = command(name)
            each.description = module.__doc__
            module.configure(each)
            add_connection(each, defaults=False)
    return parser
