"""Where things lie: one cache that survives `down`, one state folder that does not."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STATE_FOLDER = Path("/var/lib/kvserving-localcluster")
LOCK_FILE = Path("/run/lock/kvserving-localcluster.lock")
REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Network:
    """Addresses of the node, its pods and services, and the veth pair that leads there."""

    host_link: str = "kvserving0"
    node_link: str = "uplink0"
    host_address: str = "10.244.78.2"
    node_address: str = "10.244.78.1"
    prefix_length: int = 24
    pod_range: str = "10.244.77.0/24"
    service_range: str = "10.96.0.0/24"
    api_service_address: str = "10.96.0.1"
    dns_address: str = "10.96.0.10"


@dataclass(frozen=True)
class Layout:
    """Every folder and file the tool uses."""

    cache: Path
    state: Path = STATE_FOLDER
    lock: Path = LOCK_FILE
    repository: Path = REPOSITORY
    network: Network = field(default_factory=Network)
    node_name: str = "node1"

    @property
    def go_modules(self) -> Path:
        """Folders with a go.mod each, in the checkout."""
        return self.repository / "hack" / "localcluster" / "gomod"

    @property
    def manifests(self) -> Path:
        """What every cluster gets applied."""
        return self.repository / "hack" / "localcluster" / "manifests"

    @property
    def binaries(self) -> Path:
        """Built programs, a folder per step."""
        return self.cache / "bin"

    @property
    def containerd_root(self) -> Path:
        """Image store of containerd; kept by `down`, so that no image is imported twice."""
        return self.cache / "containerd"

    @property
    def models(self) -> Path:
        """Model folders behind the PersistentVolumes of class kvserving-models."""
        return self.cache / "models"

    @property
    def compile_caches(self) -> Path:
        """Compile and kernel caches behind the PersistentVolumes of class kvserving-cache."""
        return self.cache / "compile"

    @property
    def image_index(self) -> Path:
        """What the image builder knows of the layers in containerd's store."""
        return self.cache / "images"

    @property
    def pki(self) -> Path:
        """Keys and certificates of this cluster."""
        return self.state / "pki"

    @property
    def kubeconfigs(self) -> Path:
        """One kubeconfig per component."""
        return self.state / "kubeconfigs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One log per component."""
        return self.state / "logs"

    @property
    def config(self) -> Path:
        """Rendered configuration files."""
        return self.state / "config"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens; on disk, so that the host's mount namespace sees it too."""
        return self.state / "containerd.sock"


def layout_from_environment(environment: Mapping[str, str]) -> Layout:
    """Layout with the cache at KVSERVING_CACHE or ~/.cache/kvserving."""
    named = environment.get("KVSERVING_CACHE")
    base = Path(named).expanduser() if named else Path.home() / ".cache" / "kvserving"
    return Layout(cache=Path(os.path.abspath(base)))
