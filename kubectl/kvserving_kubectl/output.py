"""Answers as tables for people, and as JSON or YAML for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

NOTHING = "-"
SHORT = ("READY", "STATUS", "AGE", "SINCE", "TIME")
"""Columns that stay whole where a terminal is narrow; the others are folded, never cut."""
PIPE_WIDTH = 2000
"""Columns where no terminal says how many: every row stays in a line, for grep."""
STYLES: Mapping[str, str] = {
    "Promoted": "green",
    "Passed": "green",
    "Kept": "green",
    "RolledBack": "red",
    "Failed": "red",
    "Warning": "yellow",
    "Inconclusive": "yellow",
    "Void": "dim",
}
"""Colors of words that tell how something ended."""


def document(out: Console, form: str, value: Any) -> None:
    """Print a value as JSON or YAML, as it is: no wrapping, no colors of its own."""
    text = (
        json.dumps(value, indent=2, ensure_ascii=False)
        if form == "json"
        else yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip("\n")
    )
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table as kubectl prints it: no frame, a dash for what is not there.

    Nothing in it is taken for markup, whoever wrote it.
    """
    made = Table(
        box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold"
    )
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column in SHORT)
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def titled(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Group:
    """A table under a title, apart from what stands before it."""
    return Group(Text(f"\n{printable(title)}", style="italic"), table(columns, rows))


def pairs(rows: Sequence[tuple[str, Any]]) -> Table:
    """Names with their values, without those that have none."""
    made = table(("", ""), [(name, value) for name, value in rows if value not in (None, "")])
    made.show_header = False
    return made


def cell(value: Any) -> RenderableType:
    """One value of a table."""
    text = NOTHING if value is None or value == "" else str(value)
    return Text(printable(text), style=STYLES.get(text, ""))


def printable(text: str) -> str:
    """Text without control characters, which could rewrite a terminal's other lines."""
    return "".join(each if each.isprintable() or each == "\n" else "�" for each in text)


def say(out: Console, text: str) -> None:
    """Print a line of words."""
    out.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def age(then: str | None, now: datetime) -> str:
    """How long ago a moment was, as kubectl writes it."""
    if not then:
        return NOTHING
    try:
        seconds = int((now - datetime.fromisoformat(then)).total_seconds())
    except ValueError:
        return NOTHING
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    for size, unit, most in ((60, "m", 120), (3600, "h", 48)):
        if seconds < most * size:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86_400}d"
