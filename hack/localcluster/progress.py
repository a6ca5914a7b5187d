"""Says what happens and how long it took, on standard error: standard output is for results."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Prints steps with the seconds since the tool started."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._start = time.monotonic()
        self._quiet = quiet

    def say(self, text: str) -> None:
        """Print one line with the elapsed time."""
        if not self._quiet:
            elapsed = time.monotonic() - self._start
            print(f"[{elapsed:6.1f}s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print a step when it begins and, with its duration, when it ends."""
        self.say(f"{text} ...")
        begin = time.monotonic()
        yield
        self.say(f"{text}: done in {time.monotonic() - begin:.1f} s")
