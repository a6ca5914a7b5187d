"""containerd's image store, through its `ctr` program, in the namespace that Kubernetes uses."""

import contextlib
import platform
from pathlib import Path

from localcluster.errors import CommandError
from localcluster.oci import ARCHITECTURES, ImageConfig, Layer, archive, digest_of, files_layer
from localcluster.shell import run

KEY_LABEL = "kvserving.dev/key"
DIGEST_MARK = "sha256:"


class ImageStore:
    """Images and snapshots in a running containerd."""

    def __init__(self, ctr: Path, socket: Path) -> None:
        self._base = [str(ctr), "--address", str(socket), "--namespace", "k8s.io"]

    def command(self, *arguments: str) -> list[str]:
        """Command line of a ctr command."""
        return [*self._base, *arguments]

    def ctr(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Output of a ctr command."""
        return run(self.command(*arguments), stdin=stdin)

    def answers(self) -> bool:
        """Whether containerd can be talked to."""
        try:
            run([*self._base, "images", "list", "--quiet"], timeout_seconds=5)
        except CommandError:
            return False
        return True

    def references(self) -> list[str]:
        """Names of all images, without containerd's own names by digest."""
        return [
            line
            for line in self.ctr("images", "list", "--quiet").split()
            if not line.startswith(DIGEST_MARK)
        ]

    def has(self, reference: str, key: str) -> bool:
        """Whether an image is there and was made from the content with this key."""
        found = self.ctr(
            "images", "list", "--quiet", f'name=={reference},labels."{KEY_LABEL}"=={key}'
        )
        return reference in found.split()

    def add(self, reference: str, key: str, archive_data: bytes) -> None:
        """Import an OCI layout and remember what it was made from."""
        self.ctr("images", "import", "--no-unpack=false", "-", stdin=archive_data)
        self.ctr("images", "label", reference, f"{KEY_LABEL}={key}")
        self.remove_replaced()

    def remove_replaced(self) -> None:
        """Drop images that lost their name to a newer one; containerd keeps them by digest."""
        lines = self.ctr("images", "list").splitlines()[1:]
        targets = {name: digest for name, _, digest in (line.split()[:3] for line in lines)}
        named = {digest for name, digest in targets.items() if not name.startswith(DIGEST_MARK)}
        replaced = [name for name, digest in targets.items() if digest not in named]
        if replaced:
            self.ctr("images", "remove", *replaced)

    def add_program(self, reference: str, key: str, program: Path) -> None:
        """Make and import an image with one static program and nothing else."""
        layer = files_layer({program.name: program})
        config = ImageConfig(
            architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
            entrypoint=(f"/{program.name}",),
        )
        digest = digest_of(layer)
        self.add(
            reference, key, archive(reference, config, [Layer(digest, len(layer))], {digest: layer})
        )

    def purge_containers(self) -> None:
        """Forget every container and sandbox: their processes ended with the node that ran them."""
        for task in self.ctr("tasks", "list", "--quiet").split():
            with contextlib.suppress(CommandError):
                self.ctr("tasks", "delete", "--force", task)
        containers = self.ctr("containers", "list", "--quiet").split()
        if containers:
            self.ctr("containers", "delete", *containers)
        for line in self.ctr("sandboxes", "list").splitlines()[1:]:
            with contextlib.suppress(CommandError):
                self.ctr("sandboxes", "remove", "--force", line.split()[0])
