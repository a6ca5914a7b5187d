"""An observation and a decision on a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvserving_tuner.decision import Action, Decision, DiagnosisKind
from kvserving_tuner.histograms import Histogram, Interval
from kvserving_tuner.observation import EngineObservation, Observation, Window
from kvserving_tuner.readings import Known, Reading, Stale, Unknown
from kvserving_tuner.settings import Slo

_STYLES = {
    DiagnosisKind.IDLE: "dim",
    DiagnosisKind.HEALTHY: "green",
    DiagnosisKind.SEQUENCE_CAP: "cyan",
    DiagnosisKind.KV_PRESSURE: "yellow",
    DiagnosisKind.PREFIX_THRASH: "yellow",
    DiagnosisKind.TOKEN_BUDGET: "cyan",
    DiagnosisKind.COMPUTE_BOUND: "cyan",
    DiagnosisKind.PREEMPTION_STORM: "bold red",
    DiagnosisKind.UNKNOWN: "magenta",
}


def render(
    observation: Observation,
    decision: Decision | None,
    slo: Slo | None = None,
    history: Sequence[Decision] = (),
) -> RenderableType:
    """The engines, what the tuner thinks of them, and its last decisions other than holding."""
    parts: list[RenderableType] = [engines_table(observation, slo or Slo())]
    if observation.problems:
        parts.append(problems_text(observation))
    if decision is not None:
        parts.append(decision_panel(decision))
    acted = [each for each in history if each.action is not Action.HOLD]
    if acted:
        parts.append(history_table(acted[-6:]))
    return Group(*parts)


def engines_table(observation: Observation, slo: Slo) -> Table:
    """One row per engine, and one for all of them where there are several."""
    percentile = f"p{slo.percentile:g}"
    # Narrow on purpose: with one engine it has to fit a terminal of 80 columns, in a frame.
    table = Table(
        expand=True,
        title="engines",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    table.add_column("engine", overflow="ellipsis")
    table.add_column("KV use", min_width=10)
    for name in ("cap", "run", "wait", "tok/s", "preempt\n/s", "req/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("TTFT", "TPOT"):
        table.add_column(f"{name} {percentile}", justify="right", no_wrap=True, min_width=10)
    for engine in observation.engines:
        table.add_row(*_row(engine, slo))
    fleet = observation.fleet
    if fleet.engines > 1:
        table.add_section()
        table.add_row(
            "all",
            _bar(fleet.kv_usage_max),
            "",
            number(fleet.running),
            number(fleet.waiting),
            number(fleet.generation_tokens_per_second),
            number(fleet.preemptions_per_second, 2),
            number(fleet.finished_per_second, 2),
            latency(fleet.ttft, slo.percentile),
            latency(fleet.tpot, slo.percentile),
        )
    return table


def problems_text(observation: Observation) -> Text:
    """Problems, one a line."""
    lines = [
        Text(
            f"{problem.reason.value}: {problem.target or 'all'}: {problem.message}",
            style="dim" if problem.reason.informational else "magenta",
        )
        for problem in observation.problems
    ]
    return Text("\n").join(lines)


def decision_panel(decision: Decision) -> Panel:
    """The diagnosis and the decision in words."""
    kind = decision.diagnosis.kind
    text = Text.assemble(
        (kind.value, _STYLES[kind]),
        f": {decision.diagnosis.message}\n",
        (f"{decision.action.value} ({decision.reason.value})", "bold"),
        f": {decision.message}",
    )
    return Panel(text, title="tuner", title_align="left")


def history_table(decisions: Sequence[Decision]) -> Table:
    """Changes and recommendations, oldest first."""
    table = Table(expand=True, title="changes", title_justify="left")
    for name in ("ago", "action", "change", "why"):
        table.add_column(name)
    newest = decisions[-1].at
    for decision in decisions:
        change = decision.change
        moved = f"{change.knob.value} {change.from_value} -> {change.to_value}" if change else ""
        ago = f"{newest - decision.at:.0f} s"
        table.add_row(ago, decision.action.value, moved, decision.message)
    return table


def number(value: Reading, digits: int = 0) -> str:
    """A reading in a narrow column: a question mark where it is unknown, ~ where it is stale."""
    match value:
        case Known(amount, _):
            return f"{amount:.{digits}f}"
        case Stale(amount, _):
            return f"~{amount:.{digits}f}"
        case Unknown():
            return "?"


def latency(histogram: Histogram | Unknown, percentile: float) -> str:
    """A percentile as the interval that is known for it, from a second on in seconds."""
    if isinstance(histogram, Unknown):
        return "?"
    found = histogram.quantile(percentile / 100)
    if isinstance(found, Unknown):
        return "-"
    largest = found.lo if found.hi == float("inf") else found.hi
    return f"{interval(found)} s" if largest >= 1 else f"{interval(found.scaled(1000))} ms"


def interval(bounds: Interval) -> str:
    """An interval in the shortest form that says the same."""
    if bounds.exact:
        return f"{bounds.lo:g}"
    if bounds.hi == float("inf"):
        return f">{bounds.lo:g}"
    return f"{bounds.lo:g}-{bounds.hi:g}"


def _row(engine: EngineObservation, slo: Slo) -> list[RenderableType]:
    full = engine.full
    if isinstance(full, Window):
        rates = [
            number(full.per_second(full.generation_tokens)),
            number(full.per_second(full.preemptions), 2),
            number(full.per_second(full.finished), 2),
            latency(full.ttft, slo.percentile),
            latency(full.tpot, slo.percentile),
        ]
    else:
        rates = ["?"] * 5
    return [
        engine.target,
        _bar(engine.kv_usage_max),
        number(engine.max_active_seqs),
        number(engine.running),
        number(engine.waiting),
        *rates,
    ]


def _bar(usage: Reading) -> RenderableType:
    if not isinstance(usage, Known):
        return number(usage, 2)
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(width=5, justify="right")
    grid.add_row(ProgressBar(total=1.0, completed=usage.value), f"{usage.value:.0%}")
    return grid
