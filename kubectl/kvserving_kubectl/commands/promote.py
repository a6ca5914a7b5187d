"""Approve a trial: what has passed, or will have, goes to every engine."""

import argparse

from kvserving_kubectl import lookup
from kvserving_kubectl.changing import Change, carry_out
from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import UsageError
from kvserving_kubectl.options import add_change, add_serving, add_trial
from kvserving_kubectl.output import say
from kvserving_kubectl.resources import KVTRIALS
from kvserving_operator.api.v1alpha1 import Control, TrialState


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser)
    add_trial(parser)
    add_change(parser)


def run(context: Context) -> None:
    """Set `spec.control: Promote`; it promotes nothing that has not passed."""
    options, namespace = context.options, context.namespace
    found = lookup.chosen(context.api, namespace, options.name, options.trial)
    if found is None:
        raise UsageError(
            f"{options.name} has no trial under way; an edit of spec.kvCache begins one"
        )
    status, name = found.get("status") or {}, found["metadata"]["name"]
    passed = status.get("state") == TrialState.APPROVAL.value
    effect = (
        f"Every engine of {options.name} gets the change: {status.get('summary')}."
        if passed
        else f"The trial has not passed yet ({status.get('state') or 'Pending'}): it goes on, and "
        f"every engine of {options.name} gets the change without further approval if it passes."
    )
    patch = {"spec": {"control": Control.PROMOTE.value}}
    words = f"approves {status.get('summary') or found['spec']['change']}"
    if carry_out(context, [Change(KVTRIALS, namespace, name, patch, words)], effect):
        say(context.out, f"Approved. `kubectl kvserving status {options.name} --watch` shows it.")
