"""Tune again what `pause` has stopped: the mode from before, and trials that were paused run on."""

import argparse

from kvserving_kubectl.api import Object
from kvserving_kubectl.changing import Change, carry_out
from kvserving_kubectl.commands.pause import (
    MODE_ANNOTATION,
    add_targets,
    chosen,
    mine,
    trials_within,
)
from kvserving_kubectl.context import Context
from kvserving_kubectl.options import add_change
from kvserving_kubectl.output import say
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS
from kvserving_operator.api.v1alpha1 import Control, TuningMode


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_targets(parser)
    parser.add_argument(
        "--mode", choices=[mode.value for mode in TuningMode if mode is not TuningMode.OFF],
        help="mode to set; default: the one from before it was paused",
    )  # fmt: skip
    add_change(parser)


def run(context: Context) -> None:
    """Do it."""
    trials, changes = trials_within(context), []
    for serving in chosen(context):
        found = resumed(serving, trials, context.options.mode)
        meta = serving["metadata"]
        if not found:
            context.note(
                f"{meta['namespace']}/{meta['name']} was not paused by this command; to change its "
                "mode all the same, pass --mode"
            )
        changes += found
    if not changes:
        say(context.out, "There is nothing to resume.")
        return
    if carry_out(context, changes, "The tuner may act again, within each mode."):
        say(context.out, "Resumed.")


def resumed(serving: Object, trials: list[Object], wanted: str | None) -> list[Change]:
    """Patches that let the tuning of one KVServing go on; none where it was not paused."""
    meta, changes = serving["metadata"], []
    where = meta["namespace"], meta["name"]
    before = (meta.get("annotations") or {}).get(MODE_ANNOTATION)
    now = (serving["spec"].get("tuning") or {}).get("mode")
    mode = wanted or (before if now == TuningMode.OFF.value else None)
    patch: dict[str, object] = {}
    if before is not None:
        patch["metadata"] = {"annotations": {MODE_ANNOTATION: None}}
    if mode is not None and mode != now:
        patch["spec"] = {"tuning": {"mode": mode}}
    if patch:
        words = f"mode {now} becomes {mode}" if "spec" in patch else f"mode {now} stays"
        changes.append(Change(KVSERVINGS, *where, patch, words))
    for trial in mine(serving, trials):
        if trial["spec"].get("control") == Control.PAUSE.value:
            again = {"spec": {"control": Control.RUN.value}}
            name = trial["metadata"]["name"]
            changes.append(Change(KVTRIALS, where[0], name, again, "runs on"))
    return changes
