"""Decisions, trials, promotions and rollbacks of a KVServing, in time."""

import argparse
from datetime import UTC, datetime

from kvserving_kubectl import lookup
from kvserving_kubectl.context import Context
from kvserving_kubectl.durations import seconds_of
from kvserving_kubectl.errors import PluginError
from kvserving_kubectl.history import Entry, audit_of, events_of, timeline
from kvserving_kubectl.options import add_output, add_serving
from kvserving_kubectl.output import document, say, table

OPERATOR_NAMESPACE = "kvserving-system"
LIMIT = 50


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser)
    parser.add_argument("--since", metavar="DURATION", default="", help="no older than, such as 2h")
    parser.add_argument(
        "--limit", type=int, metavar="N", default=LIMIT, help="the newest so many (50)"
    )
    parser.add_argument(
        "--operator-namespace", metavar="NAME", default=OPERATOR_NAMESPACE,
        help="where the operator runs, for its audit log (kvserving-system)",
    )  # fmt: skip
    parser.add_argument("--no-audit", action="store_true", help="leave the audit log out")
    add_output(parser)


def run(context: Context) -> None:
    """Print the history."""
    entries = gather(context)
    if context.options.output != "table":
        document(context.out, context.options.output, [entry.to_json() for entry in entries])
        return
    if not entries:
        say(context.out, "nothing has happened that is still told of")
        return
    rows = [(e.at, e.what, e.about, e.message) for e in entries]
    context.out.print(table(("TIME", "WHAT", "OF", "MESSAGE"), rows))


def gather(context: Context) -> list[Entry]:
    """Entries that were asked for; what may not be read is left out, and named."""
    api, namespace, options = context.api, context.namespace, context.options
    serving = lookup.serving(api, namespace, options.name)
    trials = lookup.trials_of(api, namespace, options.name)
    events, audit = [], []
    try:
        events = events_of(api, namespace, options.name, trials)
    except PluginError as error:
        context.note(f"left out: Events: {error}")
    if not options.no_audit:
        try:
            audit = audit_of(api, options.operator_namespace, f"{namespace}/{options.name}")
        except PluginError as error:
            context.note(f"left out: the operator's audit log: {error}")
    found = timeline(serving, trials, events, audit)
    if options.since:
        first = datetime.fromtimestamp(context.clock() - seconds_of(options.since, "--since"), UTC)
        found = [entry for entry in found if entry.at >= first.strftime("%Y-%m-%dT%H:%M:%SZ")]
    return found[-options.limit :] if options.limit > 0 else found
