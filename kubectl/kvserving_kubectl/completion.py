"""Completion by kubectl: the program `kubectl_complete-kvserving`, which kubectl asks for words.

kubectl gives it what was typed behind `kubectl kvserving`, the word under the cursor last, and
reads one word a line and then a directive, as of every program that is built with cobra.
"""

import io
import os
import shlex
import sys
from collections.abc import Sequence

from argcomplete.finders import CompletionFinder

from kvserving_kubectl.parser import PROGRAM, build_parser

NO_FILES = 4
"""Of cobra's directives the one that keeps the shell from adding names of files."""
FILES = 0
WITH_FILES = ("-f", "--filename", "--config", "--kubeconfig", "--file")
"""Options whose value is a file, which a shell completes better itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print what the last word may become, and a directive."""
    words = list(sys.argv[1:] if argv is None else argv)
    found = completions(words)
    before = words[-2] if len(words) > 1 else ""
    directive = FILES if before in WITH_FILES else NO_FILES
    sys.stdout.write("".join(f"{word}\n" for word in found) + f":{directive}\n")
    return 0


def completions(words: Sequence[str]) -> list[str]:
    """What the last of these words may become; empty for one that is a file."""
    if len(words) > 1 and words[-2] in WITH_FILES:
        return []
    typed = list(words) or [""]
    line = " ".join([PROGRAM, *(shlex.quote(word) if word else "" for word in typed)])
    given = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    answer = io.StringIO()
    try:
        finder = CompletionFinder()
        finder(
            build_parser(typed),
            exit_method=lambda _: None,
            output_stream=answer,
            append_space=False,
            always_complete_options=False,
        )
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
    return [word for word in answer.getvalue().split("\n") if word]


if __name__ == "__main__":
    sys.exit(main())
