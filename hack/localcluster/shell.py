"""Runs programs: output captured, failure turned into an exception with what was said."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.errors import CommandError

TAIL_LINES = 25


def run(
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float | None = None,
    name: str | None = None,
) -> str:
    """Standard output of a program, decoded; CommandError when it fails or takes too long.

    Errors show the command line, or its name where one is given because the line is a script.
    """
    shown = name or shlex.join(argv)
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(f"{argv[0]}: no such program") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{shown}: no end after {timeout_seconds} s") from error
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        said = tail(done.stderr.decode(errors="replace") or output)
        raise CommandError(f"{shown}: exit status {done.returncode}\n{said}")
    return output


def succeeds(argv: Sequence[str], *, timeout_seconds: float | None = None) -> bool:
    """Whether a program ends well; its output does not matter."""
    try:
        run(argv, timeout_seconds=timeout_seconds)
    except CommandError:
        return False
    return True


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Last lines of a text, for error messages."""
    return "\n".join(text.strip().splitlines()[-lines:])
