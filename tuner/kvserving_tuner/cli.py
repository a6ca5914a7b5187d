"""`kvserving`: the command line, whose subcommands are entry points of `kvserving.commands`.

A subcommand is a module with `HELP`, `configure(parser)` and `run(options, console)`.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from kvserving_tuner.errors import TunerError

GROUP = "kvserving.commands"
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit status, 2 where what was given cannot be used."""
    # Beside an engine the package is there without what the commands need, and so is the script.
    try:
        from rich.console import Console

        found = {entry.name: entry.load() for entry in entry_points(group=GROUP)}
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"kvserving: {error}: the commands need the extra `tuner`: "
            "pip install 'kvserving[tuner]'\n"
        )
        return 2
    parser = argparse.ArgumentParser(prog="kvserving", description="Plan and tune KV caches.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in sorted(found.items()):
        module.configure(commands.add_parser(name, help=module.HELP, description=module.__doc__))
    options = parser.parse_args(argv)
    try:
        return int(found[options.command].run(options, Console()))
    except TunerError as error:
        Console(stderr=True).print(f"kvserving {options.command}: {error}", highlight=False)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
