"""Collect what a person needs who is to help: resources, status, Events, logs and metrics.

Secrets and ConfigMaps are not read. Tokens, keys, passwords, prompts and answers are taken out of
everything else; look into it all the same before you send it to anybody.
"""

import argparse
import re
from importlib.metadata import version
from pathlib import Path

from kvserving_kubectl import lookup
from kvserving_kubectl.bundle.archive import write
from kvserving_kubectl.bundle.collect import Collector, Wanted, description
from kvserving_kubectl.bundle.redact import Redactor
from kvserving_kubectl.commands.history import OPERATOR_NAMESPACE
from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import UsageError
from kvserving_kubectl.options import add_all_namespaces, add_serving
from kvserving_kubectl.output import say

LOG_LINES = 5000


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser, optional=True)
    add_all_namespaces(parser)
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="default: kvserving-support-TIME.tar.gz"
    )
    parser.add_argument(
        "--log-lines",
        type=int,
        default=LOG_LINES,
        metavar="N",
        help="newest lines of each log (5000)",
    )
    parser.add_argument(
        "--redact", action="append", default=[], metavar="REGEX",
        help="something of your own to take out; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--operator-namespace", metavar="NAME", default=OPERATOR_NAMESPACE,
        help="where the operator runs (kvserving-system)",
    )  # fmt: skip


def run(context: Context) -> None:
    """Write the bundle, and say what is not in it."""
    options, now = context.options, context.now
    namespace = context.namespace
    if options.name:
        lookup.serving(context.api, namespace, options.name)
    wanted = Wanted(
        (namespace,) if namespace else (),
        options.name or "",
        options.operator_namespace,
        options.log_lines,
    )
    bundle = Collector(context.api, Redactor(patterns(options.redact)), wanted).collect()
    folder = f"kvserving-support-{now:%Y%m%d-%H%M%S}"
    at = now.isoformat(timespec="seconds")
    bundle.files["bundle.json"] = description(bundle, wanted, version("kvserving"), at)
    path = options.file or Path(f"{folder}.tar.gz")
    size = write(path, folder, bundle.files, context.clock())
    for missing in bundle.missing:
        context.note(f"left out: {missing}")
    say(context.out, f"{path}: {len(bundle.files)} files, {size / 1024:.0f} KiB")


def patterns(texts: list[str]) -> list[re.Pattern[str]]:
    """Regular expressions of `--redact`; UsageError for one that is none."""
    try:
        return [re.compile(text) for text in texts]
    except re.error as error:
        raise UsageError(f"--redact: expected a regular expression: {error}") from None
