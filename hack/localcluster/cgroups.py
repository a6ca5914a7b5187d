"""The cluster's own cgroup tree: the kernel's record of which processes belong to the cluster.

Every daemon starts inside it and every pod lives below it, so the record holds whatever happens to
this tool, and no process id is ever stored that another process could have taken over.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from localcluster.errors import LocalClusterError, UnsupportedHostError
from localcluster.host import HostFacts

ROOT = "kvserving"
DAEMONS = f"{ROOT}/node"
CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


class CgroupTree:
    """Makes, lists, empties and removes the tree in every hierarchy of the machine."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def folders(self, path: str) -> list[Path]:
        """The folder of one cgroup in each hierarchy."""
        return [mount / path for mount in self._facts.cgroup_mounts.values()]

    def create(self, path: str) -> list[Path]:
        """Make a cgroup below the root of the tree, with its parents, in each hierarchy."""
        if not self._facts.cgroup_mounts:
            raise UnsupportedHostError("no writable cgroup hierarchy below /sys/fs/cgroup")
        for mount in self._facts.cgroup_mounts.values():
            folder = mount
            for part in path.split("/"):
                if self._facts.cgroup_version == 2 and folder in (mount, mount / ROOT):
                    _pass_controllers_down(folder)
                folder = folder / part
                folder.mkdir(exist_ok=True)
                _fill_cpuset(folder)
            _weigh(mount / ROOT, 2)
            _weigh(mount / DAEMONS, 8)
        return self.folders(path)

    def exists(self) -> bool:
        """Whether any hierarchy still has the tree."""
        return any(folder.exists() for folder in self.folders(ROOT))

    def members(self, path: str) -> set[int]:
        """Process ids in a cgroup and everything below it."""
        return {pid for folder in self.folders(path) for pid in _members_below(folder)}

    def kill(self, path: str, *, timeout_seconds: float = 20.0) -> None:
        """Kill whatever runs in a cgroup or below it and wait until nothing does."""
        deadline = time.monotonic() + timeout_seconds
        while pids := self.members(path):
            for folder in self.folders(path):
                with contextlib.suppress(OSError):
                    (folder / "cgroup.kill").write_text("1")
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise LocalClusterError(f"processes {sorted(pids)} in cgroup {path} do not end")
            time.sleep(0.05)

    def remove(self, *, timeout_seconds: float = 10.0) -> None:
        """Remove the whole tree; its processes must have ended."""
        deadline = time.monotonic() + timeout_seconds
        for top in self.folders(ROOT):
            for folder in _deepest_first(top):
                while not _removed(folder):
                    if time.monotonic() > deadline:
                        raise LocalClusterError(f"cgroup {folder} cannot be removed: still in use")
                    time.sleep(0.05)


def join(folders: Iterable[Path]) -> None:
    """Move the calling process into a cgroup."""
    for folder in folders:
        (folder / "cgroup.procs").write_text("0")


def _members_below(folder: Path) -> Iterable[int]:
    for inner, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            yield from map(int, (Path(inner) / "cgroup.procs").read_text().split())


def _deepest_first(top: Path) -> list[Path]:
    return [Path(inner) for inner, _, _ in os.walk(top, topdown=False)]


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _fill_cpuset(folder: Path) -> None:
    """Give a version 1 cpuset what its parent has; it starts without processor and memory."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = folder / name
        parent = folder.parent / name
        version_2 = (folder / "cgroup.controllers").exists()
        if not version_2 and own.exists() and parent.exists() and not own.read_text().strip():
            own.write_text(parent.read_text())


def _weigh(folder: Path, factor: int) -> None:
    """Give a cgroup so many times the usual processor share.

    The cluster as a whole gets twice that of the process that loads or tests it. Its daemons, which
    need little but at once, go before all pods: an engine keeps every processor busy.
    """
    for name, default in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (folder / name).exists():
            (folder / name).write_text(str(factor * default))


def _pass_controllers_down(folder: Path) -> None:
    """Let the children of a version 2 cgroup use every controller it has."""
    available = (folder / "cgroup.controllers").read_text().split()
    passed = (folder / "cgroup.subtree_control").read_text().split()
    missing = [name for name in CONTROLLERS if name in available and name not in passed]
    if not missing:
        return
    try:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))
    except OSError as error:
        raise UnsupportedHostError(
            f"{folder}: cannot pass {', '.join(missing)} to child cgroups ({error.strerror}). "
            f"Inside a container, first move its processes out of the way: mkdir {folder}/init && "
            f"xargs -rn1 < {folder}/cgroup.procs > {folder}/init/cgroup.procs"
        ) from error
