"""What this machine can do: cgroup version, privileges, limits. Detected, never assumed."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24
CGROUP_ROOT = "/sys/fs/cgroup"
# The kubelet wants a million; a node of this size never gets near the smaller number.
WANTED_OPEN_FILES = 1_000_000


@dataclass(frozen=True)
class HostFacts:
    """The abilities the configuration depends on."""

    root: bool
    capabilities: int
    cgroup_version: int
    cgroup_mounts: Mapping[str, Path]
    """Hierarchies by name: `unified` alone for version 2, the controllers for version 1."""
    max_open_files: int

    @property
    def can_raise_limits(self) -> bool:
        """Whether out-of-memory scores may be lowered and resource limits raised."""
        return bool(self.capabilities >> CAP_SYS_RESOURCE & 1)

    @property
    def can_make_namespaces(self) -> bool:
        """Whether network, mount and process namespaces may be made."""
        return self.root and bool(self.capabilities >> CAP_SYS_ADMIN & 1)


def parse_capabilities(status: str) -> int:
    """Effective capabilities from the text of /proc/self/status."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def parse_cgroup_mounts(mountinfo: str) -> tuple[int, dict[str, Path]]:
    """Cgroup version and hierarchies from the text of /proc/self/mountinfo.

    The kubelet and runc take version 2 when /sys/fs/cgroup itself is a cgroup2 mount. On a hybrid
    machine that folder is a tmpfs, and the cgroup2 mount below it is one more hierarchy without
    controllers, in which runc makes folders all the same.
    """
    hierarchies: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" and point == CGROUP_ROOT:
            return 2, {"unified": Path(point)}
        if kind in {"cgroup", "cgroup2"}:
            name = Path(point).name
            if name not in hierarchies and "rw" in options.split(","):
                hierarchies[name] = Path(point)
    return 1, hierarchies


def detect_host() -> HostFacts:
    """Facts of the machine this runs on."""
    version, mounts = parse_cgroup_mounts(Path("/proc/self/mountinfo").read_text())
    capabilities = parse_capabilities(Path("/proc/self/status").read_text())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may_raise = bool(capabilities >> CAP_SYS_RESOURCE & 1)
    unlimited = hard == resource.RLIM_INFINITY or may_raise
    return HostFacts(
        root=os.geteuid() == 0,
        capabilities=capabilities,
        cgroup_version=version,
        cgroup_mounts=mounts,
        max_open_files=WANTED_OPEN_FILES if unlimited else min(hard, WANTED_OPEN_FILES),
    )
