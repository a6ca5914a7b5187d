"""One HTML page of a history: plots and decisions in words. It loads nothing from anywhere."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from kvserving_tuner.report.history import History, Told

MOST_HOLDS: Final = 500
"""Holds that are told; a day of them has thousands, and nobody reads those."""
POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""A browser refuses whatever else would be loaded, had it come in with a text."""
STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid #ddd; padding: .35rem .6rem; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
td.time { white-space: nowrap; } tr.acted td { background: #fdf3f1; }
p.note, td small { color: #555; }
details { margin-top: 1rem; }
"""


def page(history: History, plots: Sequence[str], percentile: float) -> str:
    """The page as text. Everything from the log is escaped; `plots` are taken as they are."""
    title = f"KVServing report: {history.name}"
    acted = [told for told in history.decisions if told.acted]
    held = [told for told in history.decisions if not told.acted]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_summary(history, acted))}</p>",
        *plots,
        _note(history, plots, percentile),
        "<h2>What was decided</h2>",
        _table(acted) if acted else "<p>Nothing was changed, tried or recommended.</p>",
        f"<details><summary>{len(held)} times nothing was due</summary>",
        _table(held[:MOST_HOLDS]),
        f"<p>{len(held) - MOST_HOLDS} more are left out.</p>" if len(held) > MOST_HOLDS else "",
        "</details></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _summary(history: History, acted: Sequence[Told]) -> str:
    if not history.decisions:
        return "The log is empty."
    first = history.decisions[0].at
    last = history.points[-1].at if history.points else history.decisions[-1].at
    counts: dict[str, int] = {}
    for told in acted:
        action = str(told.document.get("action"))
        counts[action] = counts.get(action, 0) + 1
    done = ", ".join(f"{count} x {action}" for action, count in counts.items()) or "no action"
    return f"{_time(first)} to {_time(last)}: {history.turns} looks, {done}."


def _note(history: History, plots: Sequence[str], percentile: float) -> str:
    if not plots:
        return '<p class="note">The log has no figures over time.</p>'
    if history.servings:
        text = "From an audit log: figures are the numbers behind decisions."
    else:
        text = (
            f"Latencies are the upper bound of percentile {percentile:g} over the last minute; "
            "a gap is a figure that was not known. Triangles are decisions that acted."
        )
    return f'<p class="note">{escape(text)}</p>'


def _table(decisions: Sequence[Told]) -> str:
    rows = "\n".join(_row(told) for told in decisions)
    head = "<tr><th>time (UTC)</th><th>found</th><th>decided</th><th>why</th></tr>"
    return f"<table>{head}\n{rows}</table>"


def _row(told: Told) -> str:
    document, css = told.document, ' class="acted"' if told.acted else ""
    times = f" ({told.times} times)" if told.times > 1 else ""
    cells = [
        f'<td class="time">{escape(_time(told.at))}{times}</td>',
        f"<td>{_found(document)}</td>",
        f"<td>{_decided(document)}</td>",
        f"<td>{_why(document)}</td>",
    ]
    return f"<tr{css}>{''.join(cells)}</tr>"


def _found(document: Mapping[str, Any]) -> str:
    diagnosis = _mapping(document, "diagnosis")
    return f"{_text(diagnosis, 'kind')}<br><small>{_text(diagnosis, 'message')}</small>"


def _decided(document: Mapping[str, Any]) -> str:
    said, change = _text(document, "action"), _mapping(document, "change")
    if change:
        said += f": {_text(change, 'knob')} from {_text(change, 'from')} to {_text(change, 'to')}"
        said += f"<br><small>{_text(change, 'cost')} change</small>"
    if document.get("outcome"):
        said += f"<br><small>{_text(document, 'outcome')}</small>"
    return said


def _why(document: Mapping[str, Any]) -> str:
    said = f"{_text(document, 'message')} <small>({_text(document, 'reason')})</small>"
    forecast = _mapping(_mapping(document, "case"), "forecast")
    if forecast:
        bounds = (_percent(forecast.get(name)) for name in ("gain", "low", "high"))
        gain, low, high = (escape(each) for each in bounds)
        said += f"<br><small>expected gain {gain} ({low} to {high})</small>"
    passed = document.get("passed_over")
    if isinstance(passed, list) and passed and document.get("change"):
        items = "".join(
            f"<li>{_text(each, 'rung')}: {_text(each, 'why')}</li>"
            for each in passed
            if isinstance(each, Mapping)
        )
        said += f"<details><summary>passed over</summary><ul>{items}</ul></details>"
    return said


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return "" if value is None else escape(str(value))


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _percent(value: Any) -> str:
    return f"{value:+.0%}" if isinstance(value, int | float) else "?"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
