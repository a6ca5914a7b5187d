"""The table at the end: the same load before and after the tuner acted."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table

from harness.counters import Phase

TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"

SAME_SHARE = 0.05
"""A smaller relative difference between two phases is taken for noise."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what it shows, from which counters, in which form."""

    label: str
    measure: Callable[[Phase], float | None]
    form: str
    more_is_better: bool = False


ROWS = (
    Row(
        "Preemptions per minute",
        lambda p: 60 * p.per_second("vllm:num_preemptions_total"),
        "{:.1f}",
    ),
    Row(
        "Answer tokens per second",
        lambda p: p.per_second("vllm:generation_tokens_total"),
        "{:.1f}",
        more_is_better=True,
    ),
    Row(
        "Requests finished per minute",
        lambda p: 60 * p.per_second("vllm:request_success_total"),
        "{:.1f}",
        more_is_better=True,
    ),
    Row("TTFT, mean", lambda p: p.mean(TTFT), "{:.2f} s"),
    Row("TPOT, mean", lambda p: p.mean(TPOT), "{:.3f} s"),
)


def table(before: Phase, after: Phase, cap_before: int, cap_after: int, lost: int) -> Table:
    """Give the table; every number but the lost requests is from the engine's counters."""
    result = Table(title="The same load, before and after", title_justify="left")
    result.add_column("")
    result.add_column(f"cap {cap_before} ({before.seconds:.0f} s)", justify="right")
    result.add_column(f"cap {cap_after} ({after.seconds:.0f} s)", justify="right")
    result.add_column("ratio", justify="right")
    for row in ROWS:
        first, second = row.measure(before), row.measure(after)
        cells = [row.form.format(value) if value is not None else "-" for value in (first, second)]
        ratio = f"{second / first:.2f}" if first and second is not None else "-"
        result.add_row(row.label, *cells, ratio)
    result.add_row("Requests lost in the whole run (seen by clients)", str(lost), str(lost), "")
    return result


def traded(before: Phase, after: Phase) -> str:
    """Say in one sentence what got better and what got worse, with the numbers of the table."""
    found: dict[str, list[str]] = {"better": [], "worse": [], "about the same": []}
    for row in ROWS:
        first, second = row.measure(before), row.measure(after)
        if first is None or second is None:
            continue
        change = f"{row.label} {row.form.format(first)} to {row.form.format(second)}"
        if abs(second - first) <= SAME_SHARE * first:
            verdict = "about the same"
        else:
            verdict = "better" if (second > first) == row.more_is_better else "worse"
        found[verdict].append(change)
    parts = [f"{verdict}: {', '.join(changes)}" for verdict, changes in found.items() if changes]
    return f"What the change traded: {'; '.join(parts) or 'nothing could be compared'}."
