"""Trials of a namespace or of a KVServing, or one of them with its evidence."""

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvserving_kubectl import lookup
from kvserving_kubectl.api import Object
from kvserving_kubectl.completing import complete_trials
from kvserving_kubectl.context import Context
from kvserving_kubectl.options import add_all_namespaces, add_output
from kvserving_kubectl.output import age, document, pairs, printable, say, table, titled
from kvserving_kubectl.resources import KVTRIALS
from kvserving_operator.api.v1alpha1 import RequestedBy

COLUMNS = ("NAME", "SERVING", "CHANGE", "STATE", "STEP%", "VERDICT", "REASON", "BY", "AGE")


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    argument = parser.add_argument("trial", nargs="?", metavar="TRIAL", help="name of a KVTrial")
    argument.completer = complete_trials  # type: ignore[attr-defined]
    parser.add_argument("--serving", metavar="NAME", default="", help="only those of a KVServing")
    parser.add_argument("--open", action="store_true", help="only those that have not ended")
    add_all_namespaces(parser)
    add_output(parser)


def run(context: Context) -> None:
    """Print the list, or one trial."""
    options, api = context.options, context.api
    if options.trial:
        found = lookup.trial(api, context.namespace, options.trial)
        if options.output != "table":
            document(context.out, options.output, found)
            return
        context.out.print(whole(context, found))
        return
    trials = sorted(
        (
            each
            for each in api.list(KVTRIALS, context.namespace)
            if options.serving in ("", each["spec"]["servingRef"]["name"])
            and (lookup.is_open(each) or not options.open)
        ),
        key=lambda each: str(each["metadata"].get("creationTimestamp", "")),
    )
    if options.output != "table":
        document(context.out, options.output, trials)
        return
    if not trials:
        say(context.out, "no trials")
        return
    everywhere = not context.namespace
    columns = (*(("NAMESPACE",) if everywhere else ()), *COLUMNS)
    context.out.print(table(columns, [_row(context, each, everywhere) for each in trials]))


def _row(context: Context, trial: Object, everywhere: bool) -> list[Any]:
    meta, spec, status = trial["metadata"], trial["spec"], trial.get("status") or {}
    return [
        *([meta["namespace"]] if everywhere else []),
        meta["name"],
        spec["servingRef"]["name"],
        status.get("summary"),
        status.get("state") or "Pending",
        status.get("stepPercent"),
        status.get("verdict"),
        status.get("reason"),
        spec.get("requestedBy", RequestedBy.USER.value),
        age(meta.get("creationTimestamp"), context.now),
    ]


def whole(context: Context, trial: Object) -> RenderableType:
    """One trial with its evidence."""
    spec, status, now = trial["spec"], trial.get("status") or {}, context.now
    ab = (spec.get("policy") or {}).get("ab") or {}
    steps = ", ".join(map(str, ab.get("steps") or ()))
    known = [
        ("KVTrial", f"{trial['metadata']['namespace']}/{trial['metadata']['name']}"),
        ("KVServing", spec["servingRef"]["name"]),
        ("Change", status.get("summary") or str(spec["change"])),
        ("Asked for by", spec.get("requestedBy", RequestedBy.USER.value)),
        ("Control", spec.get("control")),
        ("State", status.get("state") or "Pending"),
        ("Step", _step(status, steps)),
        ("Approval", ab.get("approval")),
        ("Blocks compared", status.get("quietBlocks")),
        ("Began", f"{age(status.get('startedAt'), now)} ago" if status.get("startedAt") else None),
        ("Verdict", " ".join(str(status[k]) for k in ("verdict", "reason") if status.get(k))),
    ]
    parts: list[RenderableType] = [pairs(known)]
    if status.get("message"):
        parts.append(Text(f"\n{printable(status['message'])}"))
    evidence = status.get("evidence") or ()
    if evidence:
        columns = ("CRITERION", "OUTCOME", "VALUE", "BOUND", "INTERVAL", "N", "E-VALUE", "REASON")
        parts.append(titled("Evidence", columns, [_evidence(each) for each in evidence]))
    return Group(*parts)


def _step(status: Mapping[str, Any], steps: str) -> str | None:
    percent = status.get("stepPercent")
    return None if percent is None else f"{percent} % (of {steps})"


def _evidence(entry: Mapping[str, Any]) -> list[Any]:
    low, high = entry.get("lower"), entry.get("upper")
    bounded = low is not None or high is not None
    interval = f"{low if low is not None else '-inf'} to {high if high is not None else 'inf'}"
    return [
        entry["name"], entry["outcome"], entry.get("value"), entry.get("threshold"),
        interval if bounded else None, entry.get("samples"), entry.get("eValue"),
        entry.get("reason"),
    ]  # fmt: skip
