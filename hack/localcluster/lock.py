"""One tool at a time on a machine: a second one waits for the first."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.progress import Progress

POLL_SECONDS = 0.2


@contextmanager
def machine_lock(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the machine-wide lock; the kernel drops it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        waiting = False
        while not _try(handle):
            if not waiting:
                waiting = True
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
                progress.say(
                    f"waiting for another localcluster command (process {holder or 'unknown'})"
                )
            time.sleep(POLL_SECONDS)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
