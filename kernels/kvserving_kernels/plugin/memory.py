"""How much memory a process may still take on a host: in a container less than the machine has."""

import re
from pathlib import Path

_KIB = 1024


def free_host_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that this process can still take, by the machine and by its control group (v2).

    Pages of files that the kernel can drop count as free in both.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    free = int(found[1]) * _KIB if found else 0
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        statistics = (cgroup / "memory.stat").read_text()
    except OSError:
        return free
    if limit == "max":
        return free
    droppable = re.search(r"^inactive_file (\d+)", statistics, re.MULTILINE)
    return max(0, min(free, int(limit) - used + (int(droppable[1]) if droppable else 0)))
