"""The table at the end: the same load before and after the tuner acted."""

from collections.abc import Callable

from rich.table import Table

from harness.counters import Phase

TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"

ROWS: tuple[tuple[str, Callable[[Phase], float | None], str], ...] = (
    ("Preemptions per minute", lambda p: 60 * p.per_second("vllm:num_preemptions_total"), "{:.1f}"),
    ("Answer tokens per second", lambda p: p.per_second("vllm:generation_tokens_total"), "{:.1f}"),
    (
        "Requests finished per minute",
        lambda p: 60 * p.per_second("vllm:request_success_total"),
        "{:.1f}",
    ),
    ("TTFT, mean", lambda p: p.mean(TTFT), "{:.2f} s"),
    ("TPOT, mean", lambda p: p.mean(TPOT), "{:.3f} s"),
)


def table(before: Phase, after: Phase, cap_before: int, cap_after: int, lost: int) -> Table:
    """Give the table; every number but the lost requests is from the engine's counters."""
    result = Table(title="The same load, before and after", title_justify="left")
    result.add_column("")
    result.add_column(f"cap {cap_before} ({before.seconds:.0f} s)", justify="right")
    result.add_column(f"cap {cap_after} ({after.seconds:.0f} s)", justify="right")
    result.add_column("ratio", justify="right")
    for label, measure, form in ROWS:
        first, second = measure(before), measure(after)
        cells = [form.format(value) if value is not None else "-" for value in (first, second)]
        ratio = f"{second / first:.2f}" if first and second is not None else "-"
        result.add_row(label, *cells, ratio)
    result.add_row("Requests lost (seen by the clients)", "", str(lost), "")
    return result
