"""What happened to a KVServing, from all that tells of it: status, trials, Events and audit log."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kvserving_kubectl.api import Api, Object
from kvserving_kubectl.resources import EVENTS, PODS
from kvserving_operator.api.v1alpha1 import RequestedBy
from kvserving_tuner.audit import SCHEMA
from kvserving_tuner.reasons import Action

OPERATOR = {"labelSelector": "app.kubernetes.io/name=kvserving-operator"}


@dataclass(frozen=True)
class Entry:
    """One thing that happened."""

    at: str
    """RFC 3339, in UTC and whole seconds."""
    what: str
    """Kind of thing: an Event's reason, a trial's state or verdict, an action of the tuner."""
    about: str
    """The trial or the decision."""
    message: str

    def to_json(self) -> dict[str, str]:
        """As `--output json` shows it."""
        return asdict(self)


def timeline(
    serving: Object,
    trials: Sequence[Object],
    events: Sequence[Object],
    audit: Iterable[Mapping[str, Any]],
) -> list[Entry]:
    """All entries, oldest first; what two sources tell word for word stands once."""
    found = [
        *_of_status(serving.get("status") or {}),
        *(entry for each in trials for entry in _of_trial(each)),
        *(_of_event(each) for each in events),
        *(_of_audit(each) for each in audit),
    ]
    return sorted(dict.fromkeys(entry for entry in found if entry.at), key=lambda entry: entry.at)


def events_of(api: Api, namespace: str, name: str, trials: Sequence[Object]) -> list[Object]:
    """Events about a KVServing, its trials, and its pods, oldest first."""
    about = {("KVServing", name)} | {("KVTrial", each["metadata"]["name"]) for each in trials}
    found = [
        event
        for event in api.list(EVENTS, namespace)
        if (event["involvedObject"].get("kind"), event["involvedObject"].get("name")) in about
    ]
    return sorted(found, key=moment_of)


def audit_of(api: Api, operator_namespace: str, serving: str) -> list[dict[str, Any]]:
    """Lines of the operator's audit log about a KVServing (namespace/name), oldest first."""
    found = []
    for pod in api.list(PODS, operator_namespace, OPERATOR):
        text = api.text(PODS, operator_namespace, pod["metadata"]["name"], "log")
        found += [line for line in audit_lines(text) if line.get("serving") == serving]
    return sorted(found, key=lambda line: str(line["time"]))


def audit_lines(log: str) -> list[dict[str, Any]]:
    """Audit lines among the lines of a log."""
    found = []
    for line in log.splitlines():
        if SCHEMA not in line:
            continue
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("schema") == SCHEMA and "time" in document:
            found.append(document)
    return found


def moment_of(event: Mapping[str, Any]) -> str:
    """When an Event was last seen; empty where nothing says it."""
    return whole_seconds(
        event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    )


def whole_seconds(text: str | None) -> str:
    """A moment as RFC 3339 in UTC and whole seconds; empty for what is none."""
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return ""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_status(status: Mapping[str, Any]) -> Iterable[Entry]:
    for each in status.get("promoted") or ():
        by = each.get("trial") or each.get("decision") or ""
        yield Entry(
            whole_seconds(each.get("at")), "InForce", by, f"{each['field']} {each['value']}"
        )
    for each in status.get("verdicts") or ():
        reason = f" ({each['reason']})" if each.get("reason") else ""
        message = f"{each['field']} {each['value']}: {each['verdict']}{reason}"
        yield Entry(whole_seconds(each["at"]), f"Trial{each['verdict']}", each["trial"], message)
    decision = status.get("lastDecision")
    if decision:
        yield _of_decision({**decision, "time": decision["at"]})


def _of_trial(trial: Object) -> Iterable[Entry]:
    meta, spec, status = trial["metadata"], trial["spec"], trial.get("status") or {}
    name, change = meta["name"], status.get("summary") or json.dumps(spec["change"])
    by = spec.get("requestedBy", RequestedBy.USER.value)
    made = whole_seconds(meta.get("creationTimestamp"))
    yield Entry(made, "TrialMade", name, f"{change}, asked for by: {by}")
    if status.get("startedAt"):
        yield Entry(
            whole_seconds(status["startedAt"]),
            "TrialServes",
            name,
            f"{change}: first engine has it",
        )
    if status.get("finishedAt"):
        verdict = status.get("verdict", "")
        message = f"{change}: {verdict} ({status.get('reason', '')}): {status.get('message', '')}"
        yield Entry(whole_seconds(status["finishedAt"]), f"Trial{verdict}", name, message)


def _of_event(event: Object) -> Entry:
    count = event.get("count") or 1
    times = f" ({count} times)" if count > 1 else ""
    about = event["involvedObject"]["name"] if event["involvedObject"]["kind"] == "KVTrial" else ""
    return Entry(moment_of(event), str(event["reason"]), about, f"{event['message']}{times}")


def _of_audit(line: Mapping[str, Any]) -> Entry:
    """A line of the audit log: a step of a trial, or a decision."""
    if "trial" not in line:
        return _of_decision(line)
    pods = ", ".join(map(str, line.get("pods") or ()))
    told = f"{line.get('change', '')}: {line.get('message') or 'pods with the change: '}"
    return Entry(
        whole_seconds(str(line["time"])),
        f"Trial{line.get('verdict') or line.get('state', '')}",
        str(line["trial"]),
        told if line.get("message") else told + (pods or "none"),
    )


def _of_decision(decision: Mapping[str, Any]) -> Entry:
    """A decision in the audit log, or `status.lastDecision`."""
    change = decision.get("change")
    change = change if isinstance(change, Mapping) else {}
    knob = change.get("knob") or decision.get("knob")
    before, after = (
        change.get("from", decision.get("fromValue")),
        change.get("to", decision.get("toValue")),
    )
    acts = decision.get("action") != Action.HOLD
    moved = f"{knob} {before} -> {after}: " if knob and acts else ""
    outcome = f" [{decision['outcome']}]" if decision.get("outcome") else ""
    return Entry(
        whole_seconds(str(decision["time"])),
        f"Decision{decision.get('action', '')}",
        str(decision.get("id", "")),
        f"{decision.get('reason', '')}: {moved}{decision.get('message', '')}{outcome}",
    )
