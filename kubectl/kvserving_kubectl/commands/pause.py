"""Stop tuning, of one KVServing or of all: its mode becomes Off, and trials under way are paused.

What is in force stays in force. `resume` brings back the mode that was set before.
"""

import argparse

from kvserving_kubectl import lookup
from kvserving_kubectl.api import Object
from kvserving_kubectl.changing import Change, carry_out
from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import UsageError
from kvserving_kubectl.options import add_change, add_serving
from kvserving_kubectl.output import say
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS
from kvserving_operator.api.v1alpha1 import Control, TuningMode
from kvserving_operator.kinds import API_GROUP

MODE_ANNOTATION = f"{API_GROUP}/paused-mode"
"""Mode that a KVServing had before it was paused."""
DEFAULT_MODE = TuningMode.RECOMMEND.value


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_targets(parser)
    add_change(parser)


def add_targets(parser: argparse.ArgumentParser) -> None:
    """One KVServing, or all of them."""
    add_serving(parser, optional=True)
    parser.add_argument(
        "--all", action="store_true", help="all in the cluster; with -n all in the namespace"
    )


def run(context: Context) -> None:
    """Do it."""
    servings = chosen(context)
    trials = trials_within(context)
    changes = [change for each in servings for change in paused(each, trials)]
    if not changes:
        say(context.out, "Tuning is off already.")
        return
    effect = "Nothing is tuned any more. Engines serve on with what is in force."
    if carry_out(context, changes, effect):
        say(context.out, "Paused. `kubectl kvserving resume` undoes it.")


def chosen(context: Context) -> list[Object]:
    """KVServings that were named; UsageError where none or both ways were."""
    name, everything = context.options.name, context.options.all
    if bool(name) == bool(everything):
        raise UsageError("expected the name of a KVServing, or --all")
    if name:
        return [lookup.serving(context.api, context.namespace, name)]
    return context.api.list(KVSERVINGS, _within(context))


def _within(context: Context) -> str:
    """Namespace of the change: the whole cluster for `--all` without one."""
    if context.options.all:
        return str(context.options.namespace)
    return context.namespace


def trials_within(context: Context) -> list[Object]:
    """KVTrials of the namespaces that the change is about."""
    return context.api.list(KVTRIALS, _within(context))


def paused(serving: Object, trials: list[Object]) -> list[Change]:
    """Patches that stop the tuning of one KVServing; none where it stands."""
    meta, changes = serving["metadata"], []
    where = meta["namespace"], meta["name"]
    mode = (serving["spec"].get("tuning") or {}).get("mode", DEFAULT_MODE)
    if mode != TuningMode.OFF.value:
        patch = {
            "metadata": {"annotations": {MODE_ANNOTATION: mode}},
            "spec": {"tuning": {"mode": TuningMode.OFF.value}},
        }
        changes.append(Change(KVSERVINGS, *where, patch, f"mode {mode} becomes Off"))
    for trial in mine(serving, trials):
        control = trial["spec"].get("control", Control.RUN.value)
        if control == Control.RUN.value:
            stop = {"spec": {"control": Control.PAUSE.value}}
            name = trial["metadata"]["name"]
            words = "its clocks and probes stop; engines keep what they have"
            changes.append(Change(KVTRIALS, where[0], name, stop, words))
    return changes


def mine(serving: Object, trials: list[Object]) -> list[Object]:
    """Open trials of a KVServing."""
    meta = serving["metadata"]
    here = [each for each in trials if each["metadata"]["namespace"] == meta["namespace"]]
    return [each for each in lookup.of_serving(here, meta["name"]) if lookup.is_open(each)]
