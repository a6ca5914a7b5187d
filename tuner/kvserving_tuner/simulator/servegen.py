"""Clients of ServeGen (alibaba/ServeGen, Apache-2.0): bursty and drifting, from a real service.

A client is two files, which are not part of this package: `chunk-N-trace.csv` has a row for every
600 seconds (start, requests per second, coefficient of variation, family of the time between
requests, its shape, its scale), and `chunk-N-dataset.json` the shares of prompt and answer lengths
for every six hours. They are read from a folder or a tar archive of it.
"""

import csv
import json
import math
import re
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.workload import Request, Workload

WINDOW_SECONDS = 600.0
NAME = re.compile(r"(chunk-\d+)-(trace\.csv|dataset\.json)$")


@dataclass(frozen=True)
class Window:
    """How a client's requests follow each other for a while; `start` in seconds."""

    start: float
    rate: float
    family: str
    shape: float


@dataclass(frozen=True)
class Lengths:
    """How long they are for a while: tokens and their shares."""

    start: float
    prompts: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    answers: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Client:
    """One client of the service."""

    name: str
    windows: tuple[Window, ...]
    lengths: tuple[Lengths, ...]

    def requests(self, begin: float, seconds: float, source: np.random.Generator) -> list[Request]:
        """Draw the requests of a stretch of the trace; they arrive from 0 s on."""
        found = []
        for window in self.windows:
            low, high = (
                max(window.start, begin),
                min(window.start + WINDOW_SECONDS, begin + seconds),
            )
            if low >= high or window.rate <= 0:
                continue
            at = bisect_right(self.lengths, low, key=lambda each: each.start) - 1
            # Windows from before the first known lengths have those.
            lengths = self.lengths[max(0, at)]
            arrivals = _arrivals(window, high - low, source)
            prompts = source.choice(lengths.prompts[0], len(arrivals), p=lengths.prompts[1])
            answers = source.choice(lengths.answers[0], len(arrivals), p=lengths.answers[1])
            for after, prompt, answer in zip(arrivals, prompts, answers, strict=True):
                tokens = max(1, int(prompt)), max(1, int(answer))
                found.append(Request(float(low - begin + after), *tokens))
        return found


def draw(
    clients: Mapping[str, Client], begin: float, seconds: float, seed: int, name: str = "servegen"
) -> Workload:
    """Requests of all clients together, each from a random stream of its own."""
    return Workload.of(
        name,
        (
            request
            for at, client in enumerate(clients.values())
            for request in client.requests(begin, seconds, np.random.default_rng([seed, at]))
        ),
    )


def read_clients(path: Path) -> dict[str, Client]:
    """Clients of which both files are there, by name; SimulationError if there are none."""
    texts: dict[str, dict[str, str]] = {}
    for name, text in _files(path):
        match = NAME.search(name)
        if match:
            texts.setdefault(match[1], {})[match[2]] = text
    found = {
        name: _client(name, both["trace.csv"], both["dataset.json"])
        for name, both in sorted(texts.items())
        if len(both) == 2
    }
    if not found:
        raise SimulationError("clients", "chunk-N-trace.csv with chunk-N-dataset.json", str(path))
    return found


def _client(name: str, trace: str, dataset: str) -> Client:
    try:
        windows = tuple(
            Window(float(row[0]), float(row[1]), row[3], float(row[4]))
            for row in csv.reader(trace.splitlines())
            if row
        )
        lengths = tuple(
            Lengths(float(start), _shares(each["input_tokens"]), _shares(each["output_tokens"]))
            for start, each in json.loads(dataset).items()
            if _has_any(each["input_tokens"]) and _has_any(each["output_tokens"])
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise SimulationError(name, "a ServeGen client's columns and fields", str(error)) from error
    if not lengths:
        raise SimulationError(name, "lengths of prompts and answers", "none")
    return Client(name, windows, tuple(sorted(lengths, key=lambda each: each.start)))


def _has_any(text: str) -> bool:
    return bool(text.strip("{} "))


def _shares(text: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Lengths and their shares, from `{length: share, ...}`."""
    pairs = np.array(text.strip("{} ").replace(":", ",").split(","), dtype=np.float64)
    lengths, weights = pairs.reshape(-1, 2).T
    return lengths, weights / weights.sum()


def _arrivals(window: Window, seconds: float, source: np.random.Generator) -> np.ndarray[Any, Any]:
    """Times of arrival: the family and shape of the window, at its mean rate."""
    expected = window.rate * seconds
    count, found = int(expected + 4 * math.sqrt(expected) + 16), np.empty(0)
    while not len(found) or found[-1] < seconds:
        if window.family == "Weibull":
            between = source.weibull(window.shape, count) / math.gamma(1 + 1 / window.shape)
        else:
            between = source.gamma(window.shape, 1 / window.shape, count)
        after = np.cumsum(between / window.rate)
        found = np.concatenate([found, after + (found[-1] if len(found) else 0.0)])
    return np.asarray(found[found < seconds])


def _files(path: Path) -> Iterator[tuple[str, str]]:
    try:
        if path.is_dir():
            for file in sorted(path.iterdir()):
                if NAME.search(file.name):
                    yield file.name, file.read_text()
            return
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if NAME.search(member.name) else None
                if content is not None:
                    yield member.name, content.read().decode()
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SimulationError("clients", "a folder or an archive", f"{path}: {reason}") from error
