"""What applying manifests would do to what runs, and what fits into the KV cache.

Nothing is changed: the API server is asked for what `kubectl apply` would store.
"""

import argparse
from typing import Any

from kvserving_kubectl.api import Object
from kvserving_kubectl.commands.validate import add_files, files_of
from kvserving_kubectl.context import Context
from kvserving_kubectl.effects import Effect, effects
from kvserving_kubectl.errors import Faulty, NotFound
from kvserving_kubectl.options import add_output
from kvserving_kubectl.output import document, say, table, titled
from kvserving_kubectl.resources import KVSERVINGS
from kvserving_kubectl.validation import capacity, check
from kvserving_kubectl.validation.documents import Document, Fault, read

COLUMNS = ("FIELD", "FROM", "TO", "EFFECT", "MESSAGE")


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_files(parser)
    add_output(parser)


def run(context: Context) -> None:
    """Print the plan of each KVServing; raises Faulty where a manifest is."""
    options, faulty = context.options, False
    model = None
    if options.config is not None:
        model = capacity.Model.read(options.config, options.weights_gib)
    answers: list[dict[str, Any]] = []
    for found in read(files_of(options), recursive=options.recursive):
        faults = [found] if isinstance(found, Fault) else _faults(found)
        for fault in faults:
            faulty = True
            context.note(str(fault))
        if faults or isinstance(found, Fault) or not _is_serving(found):
            continue
        answers.append(_planned(context, found, model))
    if options.output != "table":
        document(context.out, options.output, answers)
    elif not answers:
        say(context.out, "no KVServing to plan for")
    if faulty:
        raise Faulty("")


def _faults(found: Document) -> list[Fault]:
    return list(check.faults(found)) if check.is_ours(found) else []


def _is_serving(found: Document) -> bool:
    return check.is_ours(found) and found.body["kind"] == KVSERVINGS.singular


def _planned(context: Context, found: Document, model: capacity.Model | None) -> dict[str, Any]:
    metadata = found.body["metadata"]
    name = str(metadata["name"])
    namespace = context.options.namespace or metadata.get("namespace") or context.namespace
    before: Object | None
    try:
        before = context.api.get(KVSERVINGS, namespace, name)
    except NotFound:
        before = None
    after = context.api.apply_dry_run(dict(found.body), namespace)
    if before is None:
        replicas = after["spec"].get("replicas", 1)
        message = f"{replicas} engines are started after a check"
        changes = [Effect("", None, name, "Create", message)]
    else:
        changes = effects(before["spec"], after["spec"])
    fits = () if model is None else capacity.fits(after["spec"], model, context.options.gpu)
    told = capacity.shortfall(after["spec"], fits)
    title = f"{namespace}/{name}"
    if context.options.output == "table":
        _show(context, title, changes, fits, told)
    return {
        "serving": title,
        "effects": [each.to_json() for each in changes],
        "capacity": [fit.to_json() for fit in fits],
        "shortfall": told,
    }


def _show(
    context: Context,
    title: str,
    changes: list[Effect],
    fits: tuple[capacity.Fit, ...],
    told: str,
) -> None:
    if changes:
        rows = [(e.field, _short(e.before), _short(e.after), e.kind, e.message) for e in changes]
        context.out.print(titled(title, COLUMNS, rows))
    else:
        say(context.out, f"{title}: nothing changes")
    if fits:
        context.out.print(table(capacity.COLUMNS, [capacity.row(fit) for fit in fits]))
    if told:
        say(context.out, f"spec.engine.kvCacheMemory: {told}")


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 48 else f"{text[:47]}…"
