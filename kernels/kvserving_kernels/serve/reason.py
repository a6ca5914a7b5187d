"""Finds the line of an engine's output that says why it ended."""

import re
import signal
from collections.abc import Sequence
from typing import Final

MAX_CHARACTERS: Final = 1000
"""Kubernetes keeps 4096 bytes of a termination message; a reason needs fewer."""

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS: Final = re.compile(r"^\([A-Za-z][^()]* pid=\d+\) ")
_LOG_HEADER: Final = re.compile(
    r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]+\] ?"
)
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit)(?:: .*|)$")
_USAGE_ERROR: Final = re.compile(r"^[\w. -]+: error: .*$")

# They report another process's failure, or follow from it.
_CONSEQUENCES: Final = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "EngineCore encountered an issue",
    "EngineDeadError",
    "CancelledError",
    "BrokenPipeError",
)


def last_words(lines: Sequence[str], status: int) -> str:
    """One line that says why an engine with this output and exit status ended.

    `status` is as `subprocess` gives it: negative for a signal.
    """
    reason = _reason([_plain(line) for line in lines])
    return f"{_ending(status)}: {reason}"[:MAX_CHARACTERS] if reason else _ending(status)


def _reason(lines: Sequence[str]) -> str | None:
    found = [
        index
        for index, line in enumerate(lines)
        if _EXCEPTION.match(line) or _USAGE_ERROR.match(line)
    ]
    causes = [index for index in found if not any(text in lines[index] for text in _CONSEQUENCES)]
    if causes:
        return _with_detail(lines, causes[-1])
    if found:
        return lines[found[-1]]
    spoken = [line for line in lines if line.strip()]
    return spoken[-1].strip() if spoken else None


def _with_detail(lines: Sequence[str], index: int) -> str:
    """An exception's line; pydantic says what was wrong on the lines that follow."""
    line = lines[index]
    if "validation error" not in line:
        return line
    detail = []
    for following in lines[index + 1 :]:
        if not following.startswith("  ") or "For further information" in following:
            break
        detail.append(following.strip().partition(" [type=")[0].removeprefix("Value error, "))
    return f"{line}: {' '.join(detail)}" if detail else line


def _plain(line: str) -> str:
    text = _PROCESS.sub("", _ANSI.sub("", line.rstrip()))
    return _LOG_HEADER.sub("", text)


def _ending(status: int) -> str:
    if status >= 0:
        return f"vllm serve ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", as by the kernel when memory runs out" if name == "SIGKILL" else ""
    return f"vllm serve was ended by {name}{hint}"
