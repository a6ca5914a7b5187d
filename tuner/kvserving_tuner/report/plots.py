"""Plots of a history, as parts of a page.

Plotly is loaded here and by nothing else, when a plot is drawn. It reads some HTML in texts, so
whatever came from a log is escaped before it gets any.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from kvserving_tuner.errors import SettingsError
from kvserving_tuner.report.history import History, Told

HEIGHT: Final = 260
LONGEST_LABEL: Final = 160
CONFIG: Final = {
    "displaylogo": False,
    "responsive": True,
    # None of Plotly's own that would send a plot elsewhere.
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}
PANELS: Final[tuple[tuple[str, str, tuple[tuple[str, str, float], ...]], ...]] = (
    ("KV cache", "% in use", (("kv_usage", "KV use, the fullest engine", 100),)),
    ("Time to first token", "seconds", (("ttft_seconds", "TTFT", 1),)),
    ("Time per output token", "milliseconds", (("tpot_seconds", "TPOT", 1000),)),
    (
        "Throughput",
        "tokens per second",
        (("tokens_per_second", "answers", 1), ("prompt_tokens_per_second", "prompts", 1)),
    ),
    ("Requests", "at once", (("running", "run", 1), ("waiting", "wait", 1), ("cap", "cap", 1))),
    ("Preemptions", "per second", (("preemptions_per_second", "preemptions", 1),)),
)
"""Title, unit, and the figures of each plot: name, label, and factor."""


def draw(history: History, targets: dict[str, float] | None = None) -> list[str]:
    """One `div` for each panel that has a figure; the first brings the library along.

    `targets` are lines by figure, in its own unit. SettingsError where Plotly is not installed.
    """
    try:
        from plotly import graph_objects
        from plotly.io import to_html
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{error}: plots need the extra `report`: pip install 'kvserving[report]'"
        ) from error
    drawn: list[str] = []
    for title, unit, figures in PANELS:
        shown = [each for each in figures if history.has(each[0])]
        if not shown:
            continue
        figure = graph_objects.Figure(layout=_layout(title, unit))
        for name, label, factor in shown:
            at, values = history.series(name)
            scaled = [None if value is None else value * factor for value in values]
            figure.add_scatter(x=_times(at), y=scaled, name=label, mode="lines")
        name, _, factor = shown[0]
        target = (targets or {}).get(name)
        if target is not None:
            figure.add_hline(y=target * factor, line_dash="dot", annotation_text="target")
        _mark(figure, [told for told in history.decisions if told.acted])
        drawn.append(
            to_html(
                figure,
                full_html=False,
                include_plotlyjs=not drawn,
                div_id=f"plot-{len(drawn)}",
                config=CONFIG,
            )
        )
    return drawn


def _mark(figure: Any, decisions: Sequence[Told]) -> None:
    """A line at each decision that acted, and a marker that says what it was."""
    if not decisions:
        return
    times = _times([told.at for told in decisions])
    for at in times:
        figure.add_vline(x=at, line_width=1, line_dash="dash", line_color="#888")
    figure.add_scatter(
        x=times,
        y=[1.0] * len(times),
        yaxis="y2",
        mode="markers",
        name="decisions",
        marker={"symbol": "triangle-down", "size": 11, "color": "#b5342c"},
        hovertext=[label(told) for told in decisions],
        hoverinfo="text+x",
    )


def label(told: Told) -> str:
    """A decision in a line for a plot, escaped twice: the page reads HTML, and Plotly again."""
    change = told.document.get("change")
    said = str(told.document.get("action", ""))
    if isinstance(change, dict):
        said = f"{said}: {change.get('knob')} from {change.get('from')} to {change.get('to')}"
    return escape(said[:LONGEST_LABEL])


def _layout(title: str, unit: str) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "height": HEIGHT,
        "margin": {"l": 60, "r": 20, "t": 40, "b": 30},
        "template": "plotly_white",
        "hovermode": "x unified",
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis2": {"overlaying": "y", "range": [0, 1.02], "visible": False, "fixedrange": True},
        "legend": {"orientation": "h", "y": 1.15, "x": 0.4},
    }


def _times(at: Sequence[float]) -> list[str]:
    return [datetime.fromtimestamp(each, UTC).isoformat(timespec="milliseconds") for each in at]
