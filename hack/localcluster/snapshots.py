"""Layers made in containerd's own store: written once, already unpacked, and exportable."""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from localcluster.errors import CommandError
from localcluster.oci import LAYER_TYPE, Layer, chain_id
from localcluster.store import ImageStore

ROOT_LABEL = "containerd.io/gc.root"
CHUNK_BYTES = 4 << 20


class SnapshotStore:
    """Makes layers on top of each other; the garbage collector gets what no image keeps."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def exists(self, layers: Sequence[Layer]) -> bool:
        """Whether a stack of layers is there, both unpacked and as blobs."""
        try:
            self._store.ctr("snapshots", "info", chain_id([layer.digest for layer in layers]))
            self._store.ctr("content", "label", layers[-1].digest)
        except CommandError:
            return False
        return True

    def open(self, key: str, parents: Sequence[Layer], target: Path) -> str:
        """Begin a layer; the mount command that shows it, writable, at a folder."""
        self.discard(key)
        parent = [chain_id([layer.digest for layer in parents])] if parents else []
        self._store.ctr("snapshots", "prepare", key, *parent)
        return self._store.ctr("snapshots", "mounts", str(target), key).strip()

    def discard(self, key: str) -> None:
        """Forget a layer that was begun; nothing to do when there is none."""
        try:
            self._store.ctr("snapshots", "info", key)
        except CommandError:
            return
        self._store.ctr("snapshots", "remove", key)

    def close(self, key: str, parents: Sequence[Layer]) -> Layer:
        """Finish a layer: write its blob and give the snapshot the name images look for."""
        layer = self._write_blob(key)
        name = chain_id([*(parent.digest for parent in parents), layer.digest])
        if self.exists([*parents, layer]):
            self._store.ctr("snapshots", "remove", key)
        else:
            self._store.ctr("snapshots", "commit", name, key)
        return layer

    def release(self, layers: Sequence[Layer]) -> None:
        """Leave a finished image's layers to the image: when it is replaced, they may go."""
        digests = [layer.digest for layer in layers]
        for number, digest in enumerate(digests, 1):
            self._store.ctr("snapshots", "label", chain_id(digests[:number]), f"{ROOT_LABEL}=")
            self._store.ctr("content", "label", digest, f"{ROOT_LABEL}=")

    def _write_blob(self, key: str) -> Layer:
        """Let containerd write the layer as a blob; it also prints it, which gives the digest."""
        argv = self._store.command("snapshots", "diff", "--keep", "--media-type", LAYER_TYPE, key)
        digest, size = hashlib.sha256(), 0
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            if process.stdout is None or process.stderr is None:
                raise CommandError(f"{argv[0]}: no output to read")
            while chunk := process.stdout.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
            said = process.stderr.read().decode(errors="replace")
        if process.returncode != 0:
            raise CommandError(f"{' '.join(argv)}: exit status {process.returncode}\n{said}")
        return Layer(f"sha256:{digest.hexdigest()}", size)
