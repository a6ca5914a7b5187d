"""A log of what the loop saw and decided, one line of JSON a turn, that can be decided on again.

A line has the samples of each engine and what its runtime API said; the windows and the decision
follow from them. A file whose name ends with `.gz` is compressed: a line of one engine is some
10 KB, and 300 bytes then.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from kvserving_tuner.errors import SettingsError
from kvserving_tuner.live import Turn
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.scrape import Sample, Scrape
from kvserving_tuner.sources.base import Attempt

SCHEMA: Final = "kvserving.dev/observation/v1"


class Recorder:
    """Writes turns to a file; give `saw` to the source and `wrote` each turn."""

    def __init__(self, path: Path) -> None:
        try:
            # Open for as long as the loop runs.
            self._file: IO[str] = (gzip.open if path.suffix == ".gz" else open)(path, "at")
        except OSError as error:
            raise SettingsError(f"--record: {path}: {error.strerror}") from error
        self._read: Mapping[str, Attempt] = {}

    def saw(self, read: Mapping[str, Attempt]) -> None:
        """Keep what was read for the turn that it belongs to."""
        self._read = read

    def wrote(self, turn: Turn) -> None:
        """Write a turn down."""
        record = {
            "schema": SCHEMA,
            "at": turn.observation.at,
            "read": {name: _attempt(each) for name, each in self._read.items()},
            "runtime": {each.target: each.model_dump(mode="json") for each in turn.runtime},
            "decision": turn.decision.to_dict(),
        }
        # NaN is what an engine may export, and has to come back as such.
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()


class Recorded:
    """One line read back: the time, what was read, what engines said, and what was decided."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.at = float(document["at"])
        self.read = {name: _to_attempt(each) for name, each in document["read"].items()}
        self.runtime = tuple(
            RuntimeState.of(name, each) for name, each in document["runtime"].items()
        )
        self.decision: Mapping[str, Any] = document["decision"]


def recorded(path: Path) -> Iterator[Recorded]:
    """The observations of a log, in order; SettingsError names the line that is none."""
    found = False
    for number, document in documents(path):
        if document.get("schema") != SCHEMA:
            continue
        found = True
        try:
            yield Recorded(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SettingsError(f"{path}: line {number} is no observation: {error!r}") from error
    if not found:
        raise SettingsError(
            f"{path}: expected observations, as `kvserving tune --record` writes them, got none"
        )


def documents(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The JSON objects of a log with their line numbers; lines that are none are left out.

    An operator's log has other lines too, and the last line of a log may be cut off.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, line in enumerate(file, 1):
                try:
                    document = json.loads(line[line.index("{") :]) if "{" in line else None
                except ValueError:
                    continue
                if isinstance(document, Mapping):
                    yield number, document
    except EOFError:
        return
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error


def _attempt(attempt: Attempt) -> dict[str, Any]:
    if attempt.failure is not None:
        return {"failure": attempt.failure}
    return {
        "scrapes": [
            {
                "at": scrape.at,
                "engine_samples": scrape.engine_samples,
                "samples": [[s.name, dict(s.labels), s.value] for s in scrape.samples],
            }
            for scrape in attempt.scrapes
        ]
    }


def _to_attempt(document: Mapping[str, Any]) -> Attempt:
    if "failure" in document:
        return Attempt(failure=str(document["failure"]))
    return Attempt(
        tuple(
            Scrape(
                float(scrape["at"]),
                tuple(
                    Sample(name, labels, float(value)) for name, labels, value in scrape["samples"]
                ),
                int(scrape["engine_samples"]),
            )
            for scrape in document["scrapes"]
        )
    )
