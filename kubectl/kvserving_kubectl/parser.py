"""The command line's parser: every command is a module of `commands`."""

import argparse
from collections.abc import Mapping
from types import ModuleType

from kvserving_kubectl.commands import (
    completion,
    explain,
    history,
    pause,
    plan,
    promote,
    resume,
    rollback,
    status,
    support_bundle,
    top,
    trials,
    validate,
)
from kvserving_kubectl.options import add_connection

PROGRAM = "kubectl-kvserving"

COMMANDS: Mapping[str, ModuleType] = {
    "status": status,
    "explain": explain,
    "history": history,
    "trials": trials,
    "top": top,
    "validate": validate,
    "plan": plan,
    "promote": promote,
    "rollback": rollback,
    "pause": pause,
    "resume": resume,
    "support-bundle": support_bundle,
    "completion": completion,
}
"""Modules by the name of their command, in the order of the help."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; options of the cluster stand before or behind the command."""
    parser = argparse.ArgumentParser(
        prog="kubectl kvserving", description="See and steer KVServings.", allow_abbrev=False
    )
    add_connection(parser, defaults=True)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        each = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, allow_abbrev=False
        )
        module.configure(each)
        add_connection(each, defaults=False)
    return parser
