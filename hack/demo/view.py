"""What the terminal shows while the demo runs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel

from kvserving_tuner.observation import Observation
from kvserving_tuner.readings import Known, Reading, explain
from kvserving_tuner.settings import Slo
from kvserving_tuner.view import engines_table, problems_text

LINES = 10


@dataclass(frozen=True)
class Sight:
    """The newest observation, since when the cap stands, and what happened so far."""

    slo: Slo
    observation: Observation | None = None
    cap: int = 0
    cap_since: float = 0.0
    log: tuple[str, ...] = ()

    def seen(self, observation: Observation, status: Mapping[str, Any]) -> "Sight":
        """Take in one look at the engines and at the KVServing's status."""
        cap = int(status.get("effective", {}).get("maxActiveSeqs") or 0)
        since = self.cap_since if cap == self.cap else time.time()
        sight = replace(self, observation=observation, cap=cap, cap_since=since)
        decision = status.get("lastDecision") or {}
        words = f"{decision.get('action', '')}: {decision.get('message', '')}"
        return sight if decision.get("action") in (None, "Hold") else sight.told(words)

    def told(self, words: str) -> "Sight":
        """Add a line to the log, once: a decision stands in the status until the next one."""
        if any(line.endswith(words) for line in self.log):
            return self
        return replace(self, log=(*self.log, f"{time.strftime('%H:%M:%S')} {words}"))

    def line(self) -> str:
        """The state in one line, for output that is not a terminal."""
        if self.observation is None:
            return "the engines have not been seen yet"
        fleet = self.observation.fleet
        facts = {
            "KV use": _shown(fleet.kv_usage_max, "{:.0%}"),
            "running": _shown(fleet.running, "{:.0f}"),
            "waiting": _shown(fleet.waiting, "{:.0f}"),
            "preemptions/s": _shown(fleet.preemptions_per_second, "{:.2f}"),
            "answer tokens/s": _shown(fleet.generation_tokens_per_second, "{:.0f}"),
        }
        return " | ".join([f"cap {self.cap or '?'}", *(f"{n} {at}" for n, at in facts.items())])


def _shown(value: Reading, form: str) -> str:
    return form.format(value.value) if isinstance(value, Known) else explain(value)


def render(sight: Sight) -> RenderableType:
    """Give the live view."""
    if sight.observation is None:
        return Panel("The engines have not been seen yet.", title="KVServing")
    parts: list[RenderableType] = [engines_table(sight.observation, sight.slo)]
    if sight.observation.blocking():
        parts.append(problems_text(sight.observation))
    parts.append("\n".join(sight.log[-LINES:]))
    return Panel(Group(*parts), title="KVServing")
