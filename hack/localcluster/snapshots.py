"""Image layers made in place, as containerd's unpacked snapshots.

The engine's layer has five gigabytes, and an image that is imported needs it three times: as an
archive, as a blob and unpacked. Only the last is ever read here, so only the last is made. A
layer's digest therefore says how the layer was made instead of what its archive would hash to; a
registry gets its images from `docker build` with the same Dockerfiles.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from localcluster.errors import CommandError
from localcluster.oci import chain_id, digest_of
from localcluster.store import ImageStore

ROOT_LABEL = "containerd.io/gc.root"
# Marks layers being made, apart from the snapshots of containers.
BUILD_PREFIX = "kvserving-build-"
VIEW_PREFIX = "kvserving-view-"


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
        parent = [chain_id(parents)] if parents else []
        self._store.ctr("snapshots", "prepare", f"{BUILD_PREFIX}{key}", *parent)
        return self._store.ctr("snapshots", "mounts", str(target), f"{BUILD_PREFIX}{key}").strip()

    def view(self, layers: Sequence[str], target: Path) -> str:
        """Give the mount command that shows a stack of layers, read-only, at a folder.

        The command names folders of the layers alone, so it outlasts the view's own record, which
        containerd's garbage collector may take at any moment.
        """
        key = f"{VIEW_PREFIX}{uuid.uuid4()}"
        words = ("snapshots", "view", "--target", str(target), key, chain_id(layers))
        return self._store.ctr(*words).strip()

    def discard(self, key: str) -> None:
        """Forget a layer that was begun; nothing to do when there is none."""
        if self._has(f"{BUILD_PREFIX}{key}"):
            self._store.ctr("snapshots", "remove", f"{BUILD_PREFIX}{key}")

    def close(self, key: str, layers: Sequence[str]) -> None:
        """Finish the last of these layers: give its snapshot the name that images look for."""
        self._store.ctr("snapshots", "commit", chain_id(layers), f"{BUILD_PREFIX}{key}")

    def release(self, wanted: Iterable[Sequence[str]]) -> None:
        """Leave layers to the images that have them, so that a replaced image's layers may go.

        What a killed build left goes too, except for finished layers of these wanted stacks.
        """
        keep = {
            chain_id(layers[:number]) for layers in wanted for number in range(1, len(layers) + 1)
        }
        for name, kind in self._names():
            if name.startswith(BUILD_PREFIX):
                self._store.ctr("snapshots", "remove", name)
            elif kind == "Committed" and name not in keep:
                self._store.ctr("snapshots", "label", name, f"{ROOT_LABEL}=")

    def _names(self) -> Iterator[tuple[str, str]]:
        """Name and kind of every snapshot."""
        for line in self._store.ctr("snapshots", "list").splitlines()[1:]:
            words = line.split()
            yield words[0], words[-1]

    def _has(self, name: str) -> bool:
        try:
            self._store.ctr("snapshots", "info", name)
        except CommandError:
            return False
        return True
