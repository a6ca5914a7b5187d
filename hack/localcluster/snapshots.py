"""Image layers made in place, as containerd's unpacked snapshots.

The engine's layer has five gigabytes, and an image that is imported needs it three times: as an
archive, as a blob and unpacked. Only the last is ever read here, so only the last is made. A
layer's digest therefore says how the layer was made instead of what its archive would hash to; a
registry gets its images from `docker build` with the same Dockerfiles.
"""

from collections.abc import Sequence
from pathlib import Path

from localcluster.errors import CommandError
from localcluster.oci import chain_id, digest_of
from localcluster.store import ImageStore

ROOT_LABEL = "containerd.io/gc.root"


def layer_digest(key: str) -> str:
    """Digest that stands for the layer a step with this key makes."""
    return digest_of(f"kvserving layer {key}".encode())


class SnapshotStore:
    """Stacks layers; what no image keeps is for containerd's garbage collector."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def exists(self, layers: Sequence[str]) -> bool:
        """Whether a stack of layers is there."""
        return self._has(chain_id(layers))

    def open(self, key: str, parents: Sequence[str], target: Path) -> str:
        """Begin a layer; the mount command that shows it, writable, at a folder."""
        self.discard(key)
        self._store.ctr("snapshots", "prepare", key, *([chain_id(parents)] if parents else []))
        return self._store.ctr("snapshots", "mounts", str(target), key).strip()

    def view(self, key: str, layers: Sequence[str], target: Path) -> str:
        """Give the mount command that shows a stack of layers, read-only, at a folder."""
        parent = chain_id(layers)
        if self._has(key) and parent not in self._store.ctr("snapshots", "info", key):
            self.discard(key)
        if not self._has(key):
            self._store.ctr("snapshots", "view", key, parent)
        return self._store.ctr("snapshots", "mounts", str(target), key).strip()

    def discard(self, key: str) -> None:
        """Forget a layer that was begun; nothing to do when there is none."""
        if self._has(key):
            self._store.ctr("snapshots", "remove", key)

    def close(self, key: str, layers: Sequence[str]) -> None:
        """Finish the last of these layers: give its snapshot the name that images look for."""
        self._store.ctr("snapshots", "commit", chain_id(layers), key)

    def release(self, layers: Sequence[str]) -> None:
        """Leave a finished image's layers to the image: when it is replaced, they may go."""
        for number in range(1, len(layers) + 1):
            name = chain_id(layers[:number])
            self._store.ctr("snapshots", "label", name, f"{ROOT_LABEL}=")

    def _has(self, name: str) -> bool:
        try:
            self._store.ctr("snapshots", "info", name)
        except CommandError:
            return False
        return True
