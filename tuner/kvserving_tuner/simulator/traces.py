"""Readers of published traces of requests; the files are not part of this package.

- Azure LLM inference traces 2023 (Azure/AzurePublicDataset, CC-BY-4.0): CSV with the columns
  TIMESTAMP, ContextTokens and GeneratedTokens.
- Mooncake FAST'25 traces (kvcache-ai/Mooncake, Apache-2.0): one JSON object a line, with a hash for
  each 512 tokens of the prompt and what is before them.

Files may be compressed with gzip.
"""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.workload import Request, Shared, Workload

MOONCAKE_HASHED_TOKENS: Final = 512
MICROSECONDS: Final = 26
"""Characters of a timestamp down to microseconds; the trace has one digit more."""


def read_trace(path: Path) -> Workload:
    """Read a trace of either kind, told apart by its first line; SimulationError if it is none."""
    lines = _lines(path)
    first = next(lines, "")
    kind: Callable[[Iterable[str]], Iterator[Request]] | None = None
    if first.lstrip().startswith("{"):
        kind = mooncake
    elif first.startswith("TIMESTAMP,"):
        kind = azure
    if kind is None:
        expected = "an Azure trace (CSV) or a Mooncake trace (JSON lines)"
        raise SimulationError("trace", expected, f"{path} beginning with {first[:40]!r}")

    def all_lines() -> Iterator[str]:
        yield first
        yield from lines

    return Workload.of(path.name, kind(all_lines()))


def azure(lines: Iterable[str]) -> Iterator[Request]:
    """Requests of an Azure trace; answers without a token count as one."""
    began: datetime | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:MICROSECONDS])
            prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            began = began or at
            # Rows are in order but for a few milliseconds.
            arrival = max(0.0, (at - began).total_seconds())
            yield Request(arrival, max(1, prompt), max(1, answer))
        except (KeyError, TypeError, ValueError) as error:
            raise SimulationError(f"line {number}", "an Azure trace's columns", str(row)) from error


def mooncake(lines: Iterable[str]) -> Iterator[Request]:
    """Requests of a Mooncake trace, with what of their prompts they share."""
    rows = [_mooncake_row(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    uses = Counter(name for row in rows for name in row["hash_ids"])
    for row in rows:
        prompt = int(row["input_length"])
        prefix = _shared(row["hash_ids"], prompt, uses)
        arrival = row["timestamp"] / 1000
        yield Request(arrival, prompt, max(1, int(row["output_length"])), prefix)


def _shared(names: list[int], prompt: int, uses: Mapping[int, int]) -> tuple[Shared, ...]:
    """Stretches that other requests have, too.

    A hash stands for all that is before it. So hashes that follow each other and are used equally
    often belong to the same requests, and are one stretch.
    """
    found: list[Shared] = []
    first: int | None = None
    for at, (name, following) in enumerate(pairwise([*names, None])):
        if name is None or uses[name] < 2:
            break
        first = name if first is None else first
        if following is None or uses[following] != uses[name]:
            found.append(Shared(first, min(prompt, (at + 1) * MOONCAKE_HASHED_TOKENS)))
            first = None
    return tuple(found)


def _mooncake_row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SimulationError(f"line {number}", "a JSON object", line[:60]) from error
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    missing = [name for name in names if name not in row] if isinstance(row, dict) else list(names)
    if missing:
        raise SimulationError(f"line {number}", f"the field {missing[0]}", line[:60])
    return dict(row)


def _lines(path: Path) -> Iterator[str]:
    """Lines of a file, with an error of ours where it cannot be read."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            yield from file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SimulationError("trace", "a file that can be read", f"{path}: {reason}") from error
