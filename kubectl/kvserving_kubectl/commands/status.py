"""What KVServings run, whether they are well, and what the tuner does with them."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from kvserving_kubectl import lookup
from kvserving_kubectl.api import Object
from kvserving_kubectl.context import Context
from kvserving_kubectl.options import add_all_namespaces, add_output, add_serving
from kvserving_kubectl.output import age, document, pairs, printable, table, titled
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS
from kvserving_operator.api.reasons import ConditionType

INTERVAL_SECONDS = 2.0
COLUMNS = ("NAME", "READY", "KV", "SEQS", "MODE", "GATE", "TRIAL", "REASON", "AGE")
TRIAL_COLUMNS = ("TRIAL", "STATE", "CHANGE", "MESSAGE")
POD_COLUMNS = ("POD", "STATE", "KV", "SEQS", "RESTARTS", "NODE", "MESSAGE")


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser, optional=True)
    add_all_namespaces(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="show it anew until interrupted")
    parser.add_argument(
        "--interval", type=float, default=INTERVAL_SECONDS, metavar="SECONDS",
        help="pause between two looks with --watch (2)",
    )  # fmt: skip
    parser.add_argument("--turns", type=int, metavar="N", help="stop --watch after so many looks")
    add_output(parser)


def run(context: Context) -> None:
    """Show it once, or again and again."""
    options = context.options
    if options.output != "table":
        document(context.out, options.output, _document(context))
        return
    view = _one if options.name else _fleet
    if not options.watch:
        context.out.print(view(context))
        return
    watch(context, view)


def watch(context: Context, view: Callable[[Context], RenderableType]) -> None:
    """Show a view anew until interrupted, or as often as was asked for."""
    turn, turns = 0, context.options.turns
    with Live(console=context.out, auto_refresh=False) as screen:
        while turns is None or turn < turns:
            if turn:
                context.sleep(context.options.interval)
            screen.update(view(context), refresh=True)
            turn += 1


def _document(context: Context) -> Any:
    """What programs get: the objects themselves, with the trials beside one KVServing."""
    name = context.options.name
    if not name:
        return context.api.list(KVSERVINGS, context.namespace)
    found = lookup.serving(context.api, context.namespace, name)
    trials = lookup.trials_of(context.api, context.namespace, name)
    return {"serving": found, "trials": trials}


def _fleet(context: Context) -> RenderableType:
    servings = context.api.list(KVSERVINGS, context.namespace)
    if not servings:
        where = f"in namespace {context.namespace}" if context.namespace else "in the cluster"
        return Text(f"no KVServing {where}")
    trials = context.api.list(KVTRIALS, context.namespace)
    everywhere = not context.namespace
    rows = [row(each, trials, context.now, everywhere) for each in servings]
    return table((*(("NAMESPACE",) if everywhere else ()), *COLUMNS), rows)


def row(serving: Object, trials: Sequence[Object], now: datetime, everywhere: bool) -> list[Any]:
    """One KVServing in a line."""
    meta, spec, status = serving["metadata"], serving["spec"], serving.get("status") or {}
    effective = status.get("effective") or {}
    mine = [each for each in trials if each["metadata"]["namespace"] == meta["namespace"]]
    trial = lookup.under_way(lookup.of_serving(mine, meta["name"]))
    wanted = spec.get("replicas", 1)
    return [
        *([meta["namespace"]] if everywhere else []),
        meta["name"],
        f"{status.get('readyReplicas', 0)}/{wanted}",
        effective.get("kvCacheDtype"),
        effective.get("maxActiveSeqs"),
        (spec.get("tuning") or {}).get("mode"),
        condition(status, ConditionType.QUALITY_GATE).get("reason"),
        None if trial is None else trial_in_short(trial),
        status.get("reason"),
        age(meta.get("creationTimestamp"), now),
    ]


def trial_in_short(trial: Object) -> str:
    """Where a trial stands, in two words."""
    status = trial.get("status") or {}
    percent = status.get("stepPercent")
    state = status.get("state") or "Pending"
    return f"{state} {percent}%" if percent is not None else str(state)


def condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    """One condition; empty where it was never set."""
    found = status.get("conditions") or ()
    return next((each for each in found if each["type"] == kind.value), {})


def _one(context: Context) -> RenderableType:
    api, namespace, name = context.api, context.namespace, context.options.name
    found = lookup.serving(api, namespace, name)
    return whole(found, lookup.trials_of(api, namespace, name), context.now)


def whole(serving: Object, trials: Sequence[Object], now: datetime) -> Group:
    """One KVServing with all that its status says."""
    status = serving.get("status") or {}
    parts: list[RenderableType] = [facts(serving)]
    rows = [
        (
            c["type"],
            c["status"],
            c["reason"],
            age(c.get("lastTransitionTime"), now),
            c.get("message"),
        )
        for c in status.get("conditions") or ()
    ]
    columns = ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE")
    parts += [titled("Conditions", columns, rows)] if rows else []
    pods = [
        (p["name"], p["state"], p.get("kvCacheDtype"), p.get("maxActiveSeqs"), p.get("restarts", 0),
         p.get("node"), p.get("message"))
        for p in status.get("pods") or ()
    ]  # fmt: skip
    parts += [titled("Engines", POD_COLUMNS, pods)] if pods else []
    promoted = [
        (p["field"], p["value"], p.get("trial") or p.get("decision"), age(p.get("at"), now))
        for p in status.get("promoted") or ()
    ]
    if promoted:
        title = "In force in place of the spec's"
        parts.append(titled(title, ("FIELD", "VALUE", "BY", "AGE"), promoted))
    trial = lookup.under_way(trials)
    if trial is not None:
        told = trial.get("status") or {}
        name, state = trial["metadata"]["name"], trial_in_short(trial)
        shown = [name, state, told.get("summary"), told.get("message")]
        parts.append(titled("Trial under way", TRIAL_COLUMNS, [shown]))
    for key, title in (("lastDecision", "Last decision"), ("recommendation", "Recommended")):
        entry = status.get(key)
        if entry:
            parts.append(Text(f"\n{title}: {decision_line(entry, now)}"))
    return Group(*parts)


def decision_line(entry: Mapping[str, Any], now: datetime) -> str:
    """A decision or a recommendation in a line."""
    head = "/".join(str(entry[key]) for key in ("diagnosis", "action", "reason") if entry.get(key))
    change = ""
    if entry.get("knob"):
        change = f" {entry['knob']} {entry.get('fromValue', '?')} -> {entry.get('toValue', '?')}:"
    return printable(
        f"{head}:{change} {entry.get('message', '')} ({age(entry.get('at'), now)} ago)"
    )


def facts(serving: Object) -> RenderableType:
    """What runs, in pairs of a name and a value."""
    spec, status, meta = serving["spec"], serving.get("status") or {}, serving["metadata"]
    effective, capacity = status.get("effective") or {}, status.get("capacity") or {}
    traffic, slo = status.get("traffic") or {}, spec.get("slo") or {}
    size = capacity.get("kvCacheBytes")
    in_gib = "" if size is None else f" ({int(size) / 1024**3:.2f} GiB in each engine)"
    asked = (spec.get("kvCache") or {}).get("dtype", "auto")
    tokens = capacity.get("kvCacheTokens")
    room = f"room for {effective.get('maxNumSeqs', '-')}"
    known = [
        ("KVServing", f"{meta['namespace']}/{meta['name']}"),
        ("Model", spec["model"].get("uri")),
        ("Engines", f"{status.get('readyReplicas', 0)} of {spec.get('replicas', 1)} ready"),
        ("Endpoint", status.get("endpoint")),
        ("KV format", f"{effective.get('kvCacheDtype', '-')} (spec: {asked})"),
        ("Eviction", effective.get("eviction")),
        ("Active sequences", f"{effective.get('maxActiveSeqs', '-')} ({room})"),
        ("KV tokens", None if tokens is None else f"{tokens}{in_gib}"),
        ("Tuning", (spec.get("tuning") or {}).get("mode")),
        ("Targets", targets(slo)),
        ("Traffic", traffic.get("message") or traffic.get("split")),
    ]
    return pairs(known)


def targets(slo: Mapping[str, Any]) -> str:
    """Targets of latency in words; empty where there are none."""
    said = [
        f"{name} {slo[key]} ms"
        for name, key in (("TTFT", "ttftMilliseconds"), ("TPOT", "tpotMilliseconds"))
        if slo.get(key)
    ]
    return f"p{slo.get('percentile', 95)} of {', '.join(said)}" if said else ""
