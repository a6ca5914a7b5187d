"""Runs `vllm serve`, and says at the end why it failed."""

import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, BinaryIO, Final

from kvserving_kernels.preflight.arguments import strip_command
from kvserving_kernels.serve.reason import last_words
from kvserving_kernels.termination import leave_message

KEPT_LINES: Final = 400
"""A failed start logs up to three tracebacks, one per process, of about a hundred lines each."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_DRAIN_SECONDS: Final = 2.0


def main(argv: Sequence[str], command: Sequence[str] = ("vllm", "serve")) -> int:
    """Run the engine and return its exit status, 128 and more for a signal."""
    engine = subprocess.Popen(
        [*command, *strip_command(argv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    asked_to_stop = threading.Event()

    def forward(number: int, frame: object) -> None:
        asked_to_stop.set()
        with suppress(ProcessLookupError):
            engine.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    # Processes that the engine leaves behind may hold the pipe open: never wait for its end.
    copier = threading.Thread(target=_copy, args=(engine.stdout, sys.stdout.buffer, lines))
    copier.daemon = True
    copier.start()
    status = engine.wait()
    copier.join(_DRAIN_SECONDS)
    if status != 0 and not asked_to_stop.is_set():
        leave_message(last_words(list(lines), status))
    return status if status >= 0 else 128 - status


def _copy(source: IO[bytes] | None, target: BinaryIO, lines: deque[str]) -> None:
    if source is None:
        return
    for line in source:
        target.write(line)
        target.flush()
        lines.append(line.decode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
