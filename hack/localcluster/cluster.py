"""Brings the cluster up, finds out how it is, and takes it down."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from string import Template
from typing import Any

from localcluster import cgroups, gobuild
from localcluster.cache import content_key
from localcluster.cgroups import CgroupTree
from localcluster.components import Component, components
from localcluster.configs import config_files
from localcluster.errors import ApiError, CommandError, LocalClusterError, NotReadyError
from localcluster.host import HostFacts
from localcluster.kubeapi import KubeApi, split_documents
from localcluster.layout import Layout
from localcluster.links import remove_link
from localcluster.node import ANCHOR, Node, remove_made_folders
from localcluster.pki import create_pki
from localcluster.progress import Progress
from localcluster.shell import tail
from localcluster.store import ImageStore
from localcluster.versions import COREDNS_IMAGE, PAUSE_IMAGE
from localcluster.volumes import ENGINE_USER, reclaim, volume_documents

# Seconds on an idle machine, more than a minute on one whose cores are busy with engines.
READY_SECONDS = 180.0
DNS_PATH = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
# What the others connect to starts first; the rest wants the API server and a clean image store.
FIRST_WAVE = ("etcd", "containerd", "kube-apiserver")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CNI_PROGRAMS = ("ptp", "loopback", "host-local", "portmap")


@dataclass(frozen=True)
class Health:
    """How the cluster is, part by part."""

    components: dict[str, bool]
    api_ready: bool
    node_ready: bool
    dns_ready: bool

    @property
    def healthy(self) -> bool:
        """Whether everything works."""
        return (
            all(self.components.values()) and self.api_ready and self.node_ready and self.dns_ready
        )


class Cluster:
    """The local cluster of this machine."""

    def __init__(self, layout: Layout, facts: HostFacts, progress: Progress) -> None:
        self._layout = layout
        self._facts = facts
        self._progress = progress
        self._tree = CgroupTree(facts)
        self._node = Node(layout, self._tree)
        self._programs = gobuild.programs(layout)
        self._components = components(layout, self._programs)
        self.store = ImageStore(self._programs["ctr"], layout.containerd_socket)

    def ready(self) -> bool:
        """Whether it runs as this checkout would start it; then its volumes are looked after."""
        if self._same_configuration() and self._node.complete() and self.health().healthy:
            return _succeeds(self._maintain)
        return False

    def up(self) -> None:
        """Make the cluster run: nothing to do, a repair, or a new one."""
        if self.ready():
            return
        if self._same_configuration() and self._node.complete():
            self._progress.say("the cluster runs, but not all of it: starting what is missing")
            with contextlib.suppress(LocalClusterError):
                self._start_missing()
                self._finish()
                return
        if self.exists() and not self._same_configuration():
            self._progress.say("the running cluster has other settings than this: replacing it")
        self.down()
        with self._progress.step("start the cluster"):
            self._create()
            self._start_missing()
            self._finish()

    def down(self) -> None:
        """End everything and remove every trace outside the cache."""
        if not self._tree.exists() and not self._layout.state.exists():
            return
        with self._progress.step("take down what is there"):
            self._remove()

    def exists(self) -> bool:
        """Whether a cluster, healthy or not, is there."""
        return self._node.init_pid() is not None

    def health(self) -> Health:
        """How the cluster is now."""
        running = {part.name: self._running(part) for part in self._components}
        api = self._api()
        if api is None or not api.ready():
            return Health(running, api_ready=False, node_ready=False, dns_ready=False)
        with contextlib.suppress(ApiError):
            node = api.get(f"/api/v1/nodes/{self._layout.node_name}")
            dns = api.get(DNS_PATH)
            available = dns.get("status", {}).get("availableReplicas", 0)
            return Health(
                running,
                api_ready=True,
                node_ready=_condition(node, "Ready"),
                dns_ready=available > 0,
            )
        return Health(running, api_ready=True, node_ready=False, dns_ready=False)

    def images(self) -> list[str]:
        """Names of the images the node has."""
        with contextlib.suppress(CommandError):
            return sorted(self.store.references())
        return []

    def _running(self, part: Component) -> bool:
        return self._node.running(part.name, part.program) is not None

    def _api(self) -> KubeApi | None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return KubeApi(self._layout.kubeconfig)
        return None

    def _configuration_key(self) -> str:
        files = config_files(self._layout, self._facts, self._programs)
        manifests = [
            text
            for path in sorted(self._layout.manifests.glob("*.yaml"))
            for text in (path.name, path.read_text())
        ]
        commands = [text for part in self._components for text in part.argv]
        return content_key(
            [*map(str, files), *files.values(), *commands, *manifests, str(self._programs["pause"])]
        )

    def _same_configuration(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return (
                self._layout.state / "configuration-key"
            ).read_text() == self._configuration_key()
        return False

    def _create(self) -> None:
        layout = self._layout
        for folder in (
            layout.containerd_root,
            layout.models,
            layout.compile_caches,
            layout.logs,
            layout.config / "cni-bin",
        ):
            folder.mkdir(parents=True, exist_ok=True)
        os.chown(layout.compile_caches, ENGINE_USER, ENGINE_USER)
        for path, text in config_files(layout, self._facts, self._programs).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name in CNI_PROGRAMS:
            (layout.config / "cni-bin" / name).symlink_to(self._programs[name])
        create_pki(layout)
        self._node.create(self._programs["pause"])
        self._start(FIRST_WAVE)
        self._wait("containerd", self.store.answers)
        self.store.purge_containers()
        (layout.state / "configuration-key").write_text(self._configuration_key())

    def _start(self, names: tuple[str, ...] | None = None) -> None:
        # Where containerd finds its shim and everybody finds nft.
        path = f"{self._programs['containerd'].parent}:{SYSTEM_PATH}"
        for part in self._components:
            if (names is None or part.name in names) and not self._running(part):
                if part.name != "containerd":
                    # What is left there is a shell that never got to its program. Beside
                    # containerd live the shims, which hold the pods and must stay.
                    self._tree.kill(f"{cgroups.DAEMONS}/{part.name}")
                self._node.start(part.name, part.argv, {"PATH": path, "HOME": "/root"})

    def _start_missing(self) -> None:
        self._start(FIRST_WAVE)
        self._wait("containerd", self.store.answers)
        for reference, program in ((PAUSE_IMAGE, "pause"), (COREDNS_IMAGE, "coredns")):
            key = self._programs[program].parent.name
            if not self.store.has(reference, key):
                self.store.add_program(reference, key, self._programs[program])
        self._wait("kube-apiserver", lambda: (api := self._api()) is not None and api.ready())
        self._start()

    def _finish(self) -> None:
        """Apply what every cluster has and wait until it works."""
        api = KubeApi(self._layout.kubeconfig)
        values = {"coredns_image": COREDNS_IMAGE, "dns_address": self._layout.network.dns_address}
        documents = [
            document
            for name in ("coredns.yaml", "storage-classes.yaml")
            for document in split_documents(
                Template((self._layout.manifests / name).read_text()).substitute(values)
            )
        ]

        def apply_all() -> None:
            for document in (*documents, *volume_documents(self._layout)):
                api.apply(document)

        # A server that has just called itself ready still drops connections at times.
        self._wait("kube-apiserver", lambda: _succeeds(apply_all))
        self._wait("kubelet", lambda: self.health().node_ready)
        self._wait("kubelet", lambda: self.health().healthy)
        self._wait("kube-apiserver", lambda: _succeeds(self._maintain))

    def _maintain(self) -> None:
        freed = reclaim(KubeApi(self._layout.kubeconfig))
        if freed:
            self._progress.say(f"returned {freed} released volumes to their pools")

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if time.monotonic() > deadline:
                log = self._layout.logs / f"{name}.log"
                last = tail(log.read_text(errors="replace")) if log.exists() else "no log"
                raise NotReadyError(
                    f"{name} is not ready after {READY_SECONDS:.0f} s; end of {log}:\n{last}"
                )
            time.sleep(0.1)

    def _remove(self) -> None:
        tree, state = self._tree, self._layout.state
        tree.kill(f"{cgroups.DAEMONS}/kubelet")
        tree.kill(f"{cgroups.ROOT}/kubepods")
        with contextlib.suppress(CommandError):
            if self.store.answers():
                self.store.purge_containers()
        tree.kill(ANCHOR)
        tree.kill(cgroups.ROOT)
        remove_link(self._layout.network.host_link)
        tree.remove()
        remove_made_folders(state)
        if state.exists():
            shutil.rmtree(state)


def _succeeds(action: Callable[[], None]) -> bool:
    """Do something with the API; False where it is worth another try."""
    try:
        action()
    except ApiError as error:
        if not error.passing:
            raise
        return False
    return True


def _condition(document: Any, kind: str) -> bool:
    conditions = document.get("status", {}).get("conditions", [])
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)
