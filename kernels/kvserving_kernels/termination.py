"""The container's termination message: often the only thing that outlives a failed container."""

from contextlib import suppress
from pathlib import Path
from typing import Final

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where Kubernetes reads it; the file is there in every container, and nowhere else."""


def leave_message(message: str, path: Path = TERMINATION_LOG) -> None:
    """Write the message, on one line, where Kubernetes looks for it."""
    with suppress(OSError):
        if path.is_file():
            path.write_text(" ".join(message.split()) + "\n", encoding="utf-8")
