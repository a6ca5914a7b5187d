"""`kubectl-kvserving`: what kubectl runs for `kubectl kvserving`."""

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status: 1 where it failed, 2 where it was put wrongly."""
    # Beside an engine the package is there without what the commands need, and so is the script.
    try:
        import argcomplete
        from rich.console import Console

        from kvserving_kubectl.api import Connection, KubectlApi
        from kvserving_kubectl.context import Context
        from kvserving_kubectl.errors import PluginError
        from kvserving_kubectl.output import PIPE_WIDTH
        from kvserving_kubectl.parser import build_parser, command
        from kvserving_tuner.errors import TunerError
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"kubectl kvserving: {error}: it needs the extra `kubectl`: "
            "pip install 'kvserving[kubectl]'\n"
        )
        return 2
    # A shell's completion calls the program without words: the line is in the environment.
    words = (sys.argv[1:] if argv is None else list(argv)) or os.environ.get(
        "COMP_LINE", ""
    ).split()
    parser = build_parser(words)
    argcomplete.autocomplete(parser, always_complete_options=False)
    options = parser.parse_args(argv)
    connection = Connection(
        options.kubeconfig, options.context, options.request_timeout, getattr(options, "as")
    )
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    out, err = Console(width=width), Console(stderr=True)
    context = Context(options, KubectlApi(connection), out, err)
    try:
        command(options.command).run(context)
    except PluginError as error:
        if str(error):
            context.note(f"error: {error}")
        return error.status
    except TunerError as error:
        context.note(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has seen enough.
        sys.stderr.close()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
