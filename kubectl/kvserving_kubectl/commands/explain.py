"""Why a KVServing runs as it does: the last decision, the trial, and what stands in the way."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rich.text import Text

from kvserving_kubectl import lookup
from kvserving_kubectl.api import Object
from kvserving_kubectl.commands.status import condition
from kvserving_kubectl.context import Context
from kvserving_kubectl.errors import PluginError
from kvserving_kubectl.history import events_of
from kvserving_kubectl.options import add_output, add_serving
from kvserving_kubectl.output import age, document, printable, titled
from kvserving_operator.api.docs import sentences
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_tuner import reasons

LATEST_EVENTS = 5
CHOSEN = (Reason.RECOMMEND_ONLY, Reason.TUNING_OFF, Reason.NO_GATEWAY)
"""Reasons that the spec gives."""
GOOD_WHEN_FALSE = (ConditionType.PROGRESSING, ConditionType.DEGRADED, ConditionType.ROLLED_BACK)


@cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """What the words of a decision mean: of its diagnosis, its action and its reason."""
    return {
        "diagnosis": sentences(reasons.DiagnosisKind),
        "action": sentences(reasons.Action),
        "reason": sentences(reasons.Reason),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser)
    add_output(parser)


def run(context: Context) -> None:
    """Print the explanation."""
    api, namespace, name = context.api, context.namespace, context.options.name
    serving = lookup.serving(api, namespace, name)
    trials = lookup.trials_of(api, namespace, name)
    try:
        events = events_of(api, namespace, name, trials)
    except PluginError as error:
        context.note(f"Events cannot be read: {error}")
        events = []
    if context.options.output != "table":
        document(context.out, context.options.output, facts(serving, trials, events))
        return
    for line in explained(context, serving, trials, events):
        context.out.print(line)


def facts(serving: Object, trials: Sequence[Object], events: Sequence[Object]) -> dict[str, Any]:
    """What the explanation stands on, for programs."""
    status = serving.get("status") or {}
    return {
        "lastDecision": status.get("lastDecision"),
        "recommendation": status.get("recommendation"),
        "conditions": status.get("conditions") or [],
        "promoted": status.get("promoted") or [],
        "trial": lookup.under_way(trials),
        "lastVerdict": _latest_verdict(status),
        "events": [
            {key: event.get(key) for key in ("type", "reason", "message", "lastTimestamp")}
            for event in events[-LATEST_EVENTS:]
        ],
    }


def explained(
    context: Context, serving: Object, trials: Sequence[Object], events: Sequence[Object]
) -> Iterator[Any]:
    """The explanation in paragraphs and tables."""
    status, now = serving.get("status") or {}, context.now
    decision = status.get("lastDecision")
    if decision is None:
        yield _text("The tuner has decided nothing yet.")
        yield from _why_not(status)
    else:
        yield _text(f"Decision {decision['id']}, {age(decision['at'], now)} ago")
        yield _text(f"Found:   {_worded(decision['diagnosis'], meanings()['diagnosis'])}")
        yield _text(f"Decided: {_worded(decision['action'], meanings()['action'])}")
        yield _text(f"Because: {_worded(decision['reason'], meanings()['reason'])}")
        yield _text(f"         {decision['message']}")
        if decision.get("knob"):
            yield _text(
                f"Change:  {decision['knob']} from {decision.get('fromValue', 'unknown')} to "
                f"{decision.get('toValue', 'unknown')}, cost class "
                f"{decision.get('costClass', 'unknown')}, {decision.get('outcome') or 'no outcome'}"
            )
        numbers = decision.get("numbers") or ()
        if numbers:
            yield titled("Numbers", ("NUMBER", "VALUE"), [(n["name"], n["value"]) for n in numbers])
    yield from _recommended(status)
    yield from _in_force(serving, status)
    yield from _tried(status, trials)
    yield from _troubles(status)
    if events:
        rows = [
            (age(_moment(e), now), e.get("type"), e.get("reason"), e.get("message"))
            for e in events[-LATEST_EVENTS:]
        ]
        yield titled("Latest Events", ("AGE", "TYPE", "REASON", "MESSAGE"), rows)


def _text(words: str) -> Text:
    return Text(printable(words))


def _worded(name: str, meanings: Mapping[str, str]) -> str:
    """A machine-readable word with what it means."""
    return f"{name}: {meanings[name]}" if name in meanings else name


def _moment(event: Mapping[str, Any]) -> str | None:
    return event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")


def _why_not(status: Mapping[str, Any]) -> Iterator[Text]:
    tuning = condition(status, ConditionType.TUNING_ACTIVE)
    if tuning:
        yield _text(
            f"Tuning:  {tuning['status']} ({tuning['reason']}): {tuning.get('message', '')}"
        )


def _recommended(status: Mapping[str, Any]) -> Iterator[Text]:
    found = status.get("recommendation")
    if found:
        yield _text(
            f"\nIt recommends {found['knob']} {found['toValue']} ({found['reason']}, cost class "
            f"{found['costClass']}): {found['message']}"
        )


def _in_force(serving: Object, status: Mapping[str, Any]) -> Iterator[Text]:
    for entry in status.get("promoted") or ():
        by = (
            f"trial {entry['trial']}" if entry.get("trial") else f"decision {entry.get('decision')}"
        )
        yield _text(
            f"\nIn force in place of the spec's: {entry['field']} {entry['value']}, by {by}."
        )
    back = condition(status, ConditionType.ROLLED_BACK)
    if back.get("status") == "True":
        yield _text(f"\nRolled back: {back.get('message', '')}")


def _tried(status: Mapping[str, Any], trials: Sequence[Object]) -> Iterator[Text]:
    trial = lookup.under_way(trials)
    if trial is not None:
        told = trial.get("status") or {}
        yield _text(
            f"\nTrial {trial['metadata']['name']} ({told.get('summary') or 'not begun'}) is "
            f"{told.get('state') or 'Pending'}: {told.get('message') or 'nothing was said yet'}"
        )
        return
    verdict = _latest_verdict(status)
    if verdict:
        yield _text(
            f"\nThe latest trial, {verdict['trial']}, of {verdict['field']} {verdict['value']}, "
            f"ended {verdict['verdict']} ({verdict.get('reason') or 'no reason given'})."
        )


def _latest_verdict(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = sorted(status.get("verdicts") or (), key=lambda each: str(each["at"]))
    return found[-1] if found else None


def _troubles(status: Mapping[str, Any]) -> Iterator[Text]:
    """Conditions that are neither as they should be nor as somebody chose, with their reasons."""
    meanings = {reason.value: reason.sentence for reason in Reason}
    for each in status.get("conditions") or ():
        wanted = "False" if each["type"] in {kind.value for kind in GOOD_WHEN_FALSE} else "True"
        if each["status"] in (wanted, "Unknown") or each["reason"] in CHOSEN:
            continue
        yield _text(f"\n{each['type']} is {each['status']}: {_worded(each['reason'], meanings)}")
        if each.get("message"):
            yield _text(f"  {each['message']}")
