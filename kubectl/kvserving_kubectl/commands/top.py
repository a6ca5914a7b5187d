"""Use of the KV cache, latencies and queues of each engine, read from the engines now.

Engines are read through the API server's proxy. Without permission for that, the numbers are those
of the last decision, which the operator has read.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live

from kvserving_kubectl import lookup
from kvserving_kubectl.api import Object
from kvserving_kubectl.commands.status import targets
from kvserving_kubectl.context import Context
from kvserving_kubectl.engines import Engines, engine_pods, numbers, slo_of
from kvserving_kubectl.errors import Forbidden
from kvserving_kubectl.options import add_output, add_serving
from kvserving_kubectl.output import document, say, table, titled
from kvserving_tuner.observation import Observation
from kvserving_tuner.view import engines_table, problems_text

INTERVAL_SECONDS = 5.0
WIDTH = 132


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_serving(parser)
    parser.add_argument(
        "--interval", type=float, default=INTERVAL_SECONDS, metavar="SECONDS",
        help="between two looks, over which rates and latencies are counted (5)",
    )  # fmt: skip
    parser.add_argument("-w", "--watch", action="store_true", help="go on until interrupted")
    parser.add_argument("--turns", type=int, metavar="N", help="stop --watch after so many looks")
    add_output(parser)


def run(context: Context) -> None:
    """Look twice and show what was between; or go on."""
    api, namespace, options = context.api, context.namespace, context.options
    serving = lookup.serving(api, namespace, options.name)
    engines = Engines(api, namespace, options.interval)
    try:
        seen = _look(context, engines)
        if seen is None:
            say(context.out, f"{options.name} has no engine")
            return
        if options.watch:
            _watch(context, engines, serving)
            return
        context.sleep(options.interval)
        seen = _look(context, engines) or seen
    except Forbidden as error:
        context.note(f"engines cannot be read, these are the operator's numbers: {error}")
        _by_status(context, serving)
        return
    if options.output != "table":
        percentile = slo_of(serving["spec"]).percentile
        answer = {
            "engines": [numbers(each, percentile) for each in seen.engines],
            "percentile": percentile,
            "problems": [
                {"reason": p.reason.value, "pod": p.target, "message": p.message}
                for p in seen.problems
            ],
        }
        document(context.out, options.output, answer)
        return
    context.out.print(shown(seen, serving), width=min(context.out.width, WIDTH))


def _look(context: Context, engines: Engines) -> Observation | None:
    pods = engine_pods(context.api, context.namespace, context.options.name)
    names = [str(pod["metadata"]["name"]) for pod in pods]
    return engines.look(names, context.clock()) if names else None


def _watch(context: Context, engines: Engines, serving: Object) -> None:
    turn, turns = 0, context.options.turns
    with Live(console=context.out, auto_refresh=False) as screen:
        while turns is None or turn < turns:
            context.sleep(context.options.interval)
            seen = _look(context, engines)
            if seen is not None:
                screen.update(shown(seen, serving), refresh=True)
            turn += 1


def shown(seen: Observation, serving: Object) -> RenderableType:
    """Engines for people, with what is missing."""
    parts: list[RenderableType] = [engines_table(seen, slo_of(serving["spec"]))]
    if seen.problems:
        parts.append(problems_text(seen))
    goal = targets(serving["spec"].get("slo") or {})
    parts += [f"targets: {goal}"] if goal else []
    return Group(*parts)


def _by_status(context: Context, serving: Object) -> None:
    """What the operator has read of the engines."""
    status: Mapping[str, Any] = serving.get("status") or {}
    decision = status.get("lastDecision") or {}
    found: Sequence[Mapping[str, Any]] = decision.get("numbers") or ()
    pods = status.get("pods") or []
    if context.options.output != "table":
        answer = {"pods": pods, "numbers": list(found), "at": decision.get("at")}
        document(context.out, context.options.output, answer)
        return
    rows = [(p["name"], p["state"], p.get("kvCacheDtype"), p.get("maxActiveSeqs")) for p in pods]
    context.out.print(table(("POD", "STATE", "KV", "SEQS"), rows))
    if found:
        title = f"Numbers of the decision of {decision.get('at')}"
        shown_numbers = [(number["name"], number["value"]) for number in found]
        context.out.print(titled(title, ("NUMBER", "VALUE"), shown_numbers))
