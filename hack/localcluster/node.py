"""The node's own namespaces: network, mounts and processes apart from the host's.

They are held open by one tiny process. When it ends the kernel ends every process inside, and with
the last one go the mounts, the interfaces and the nftables rules: nothing has to be undone by hand.
"""

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import cgroups
from localcluster.cgroups import CgroupTree
from localcluster.errors import CommandError, NotReadyError
from localcluster.layout import Layout
from localcluster.links import remove_link
from localcluster.shell import run

ANCHOR = f"{cgroups.DAEMONS}/anchor"
# Written inside the namespaces once they are complete, so it vanishes with them.
COMPLETE = "/run/kvserving-node-complete"

# What the kubelet insists on. None of it is namespaced: the host keeps its own values.
KUBELET_SYSCTLS: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Folders whose place the kubelet and the CNI library do not let anybody choose.
FIXED_FOLDERS: Mapping[str, str] = {"kubelet": "/var/lib/kubelet", "cni": "/var/lib/cni"}


class Node:
    """Starts the namespaces and programs inside them."""

    def __init__(self, layout: Layout, tree: CgroupTree) -> None:
        self._layout = layout
        self._tree = tree

    def init_pid(self) -> int | None:
        """Host's id of the first process in the node's process namespace; None without one."""
        for pid in sorted(self._tree.members(ANCHOR)):
            if _is_namespace_init(pid):
                return pid
        return None

    def complete(self) -> bool:
        """Whether the namespaces exist and were set up to the end."""
        pid = self.init_pid()
        return pid is not None and Path(f"/proc/{pid}/root{COMPLETE}").exists()

    def enter(self, argv: Sequence[str]) -> list[str]:
        """Command line that runs a program inside the node."""
        pid = self.init_pid()
        if pid is None:
            raise NotReadyError("the node's namespaces are gone")
        return ["nsenter", "--target", str(pid), "--mount", "--net", "--pid", "--", *argv]

    def create(self, pause: Path) -> None:
        """Make the namespaces, join them to the host by a veth pair and arrange their mounts."""
        folders = self._tree.create(ANCHOR)
        # Its child is the first process of the namespace; unshare itself just waits for it.
        options = "--net --mount --propagation private --pid --fork --mount-proc"
        subprocess.Popen(
            ["unshare", *options.split(), str(pause)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: cgroups.join(folders),
        )
        deadline = time.monotonic() + 10
        while (pid := self.init_pid()) is None or os.readlink(f"/proc/{pid}/exe") != str(pause):
            if time.monotonic() > deadline:
                raise NotReadyError("the node's namespaces did not come up")
            time.sleep(0.02)
        self._join_networks(pid)
        run(self.enter(["/bin/sh", "-euc", self._mount_script()]))

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a daemon inside the node, detached from this tool, with its own cgroup and log."""
        folders = self._tree.create(f"{cgroups.DAEMONS}/{name}")
        records = (shlex.quote(str(folder / "cgroup.procs")) for folder in folders)
        joins = "".join(f"echo 0 > {record}; " for record in records)
        log = shlex.quote(str(self._layout.logs / f"{name}.log"))
        # The shell goes into the cgroup first: a tool killed right here leaves no stray process.
        script = f'{joins}exec </dev/null >>{log} 2>&1; setsid "$@" &'
        run(self.enter(["/bin/sh", "-euc", script, name, *argv]), env=env)

    def running(self, name: str, program: Path) -> int | None:
        """Process id of a daemon, None when it does not run."""
        for pid in sorted(self._tree.members(f"{cgroups.DAEMONS}/{name}")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") == str(program):
                    return pid
        return None

    def _join_networks(self, pid: int) -> None:
        network = self._layout.network
        host, node, size = network.host_link, network.node_link, network.prefix_length
        inside = f"nsenter --target {pid} --net -- ip"
        remove_link(host)
        for command in (
            f"ip link add {host} type veth peer name {node} netns {pid}",
            f"ip address add {network.host_address}/{size} dev {host}",
            f"ip link set {host} up",
            f"{inside} address add {network.node_address}/{size} dev {node}",
            f"{inside} link set {node} up",
            f"{inside} link set lo up",
            f"{inside} route add default via {network.host_address}",
        ):
            run(command.split())
        for target in (network.pod_range, network.service_range):
            try:
                run(f"ip route add {target} via {network.node_address}".split())
            except CommandError as error:
                raise CommandError(
                    f"{target} is needed by the local cluster but routed elsewhere\n{error}"
                ) from error

    def _mount_script(self) -> str:
        state = self._layout.state
        lines = [
            # The kubelet needs shared mounts; the tie to the host's was cut when they were copied.
            "mount --make-rshared /",
            "mount -t tmpfs -o mode=755 node-run /run",
            "mkdir -p /run/lock",
            "mount -t tmpfs -o mode=755 node-log /var/log",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
        ]
        for name, target in FIXED_FOLDERS.items():
            lines += [
                f"mkdir -p {state}/{name}",
                f"[ -d {target} ] || {{ echo {target} >> {state}/made-folders; mkdir {target}; }}",
                f"mount --bind {state}/{name} {target}",
            ]
        for key, value in KUBELET_SYSCTLS.items():
            fake = f"{state}/sysctl-{key.replace('/', '-')}"
            lines += [f"echo {value} > {fake}", f"mount --bind {fake} /proc/sys/{key}"]
        return "\n".join([*lines, f": > {COMPLETE}"])


def _is_namespace_init(pid: int) -> bool:
    """Whether a process is the first one of a process namespace directly below this one."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                ids = line.split()[1:]
                return len(ids) > 1 and ids[-1] == "1"
    return False


def remove_made_folders(state: Path) -> None:
    """Remove the mount points that had to be made on the host, unless somebody uses them by now."""
    record = state / "made-folders"
    if record.exists():
        for line in record.read_text().splitlines():
            with contextlib.suppress(OSError):
                Path(line).rmdir()
