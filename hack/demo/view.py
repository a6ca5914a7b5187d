"""What the terminal shows while the demo runs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import Observation
from kvserving_tuner.readings import Reading, explain, known

LINES = 8


@dataclass(frozen=True)
class Sight:
    """The newest observation, the tuner's newest words, and since when the cap stands."""

    observation: Observation | None = None
    status: Mapping[str, Any] | None = None
    cap: int = 0
    cap_since: float = 0.0
    log: tuple[str, ...] = ()

    def seen(self, observation: Observation, status: Mapping[str, Any]) -> "Sight":
        """Take in one look at the engines and at the KVServing's status."""
        cap = int(status.get("effective", {}).get("maxActiveSeqs") or 0)
        since = self.cap_since if cap == self.cap else time.time()
        sight = replace(self, observation=observation, status=status, cap=cap, cap_since=since)
        decision = status.get("lastDecision") or {}
        words = f"{decision.get('action', '')}: {decision.get('message', '')}"
        return sight.told(words) if decision.get("action") in ("Change", "Recommend") else sight

    def told(self, words: str) -> "Sight":
        """Add a line to the log, once."""
        stamp = time.strftime("%H:%M:%S")
        if any(line.endswith(words) for line in self.log):
            return self
        return replace(self, log=(*self.log, f"{stamp} {words}"))

    @property
    def preemptions_per_second(self) -> float:
        """Preemptions per second in the newest window; zero as long as none is known."""
        if self.observation is None:
            return 0.0
        return known(self.observation.fleet.preemptions_per_second) or 0.0

    def line(self) -> str:
        """The state in one line, for output that is not a terminal."""
        return " | ".join(f"{label} {value}" for label, value in _facts(self)) + (
            f" | {self.log[-1]}" if self.log else ""
        )


def render(sight: Sight) -> RenderableType:
    """Give the live view."""
    facts = Table.grid(padding=(0, 2))
    for label, value in _facts(sight):
        facts.add_row(label, value)
    usage = _usage(sight)
    bar = ProgressBar(total=1.0, completed=usage, width=40) if usage is not None else ""
    log = "\n".join(sight.log[-LINES:])
    return Panel(Group(facts, "KV use", bar, "", log), title="KVServing", width=110)


def _usage(sight: Sight) -> float | None:
    return known(sight.observation.fleet.kv_usage_max) if sight.observation else None


def _facts(sight: Sight) -> list[tuple[str, str]]:
    if sight.observation is None:
        return [("engines", "not seen yet")]
    fleet = sight.observation.fleet
    usage = _usage(sight)
    return [
        ("KV use", f"{usage:.0%}" if usage is not None else explain(fleet.kv_usage_max)),
        ("running", explain(fleet.running)),
        ("waiting", explain(fleet.waiting)),
        ("active cap", str(sight.cap or "-")),
        ("preemptions/min", _per_minute(fleet.preemptions_per_second)),
        ("answer tokens/s", explain(fleet.generation_tokens_per_second)),
        ("TTFT", _mean(fleet.ttft)),
        ("TPOT", _mean(fleet.tpot)),
    ]


def _per_minute(rate: Reading) -> str:
    number = known(rate)
    return f"{60 * number:.1f}" if number is not None else explain(rate)


def _mean(histogram: object) -> str:
    if not isinstance(histogram, Histogram) or not histogram.count:
        return "-"
    return f"{float(histogram.total / histogram.count):.3f} s"
