"""The engine image's Python on this machine, for tests that start engines themselves.

One installation of five gigabytes serves pods and tests alike. What is written into the image's
folders is gone when the process ends.
"""

import os
import shlex
from collections.abc import Sequence
from typing import NoReturn

from localcluster import images
from localcluster.builder import step_keys
from localcluster.errors import NotReadyError
from localcluster.layout import Layout
from localcluster.snapshots import SnapshotStore, layer_digest
from localcluster.store import ImageStore

VIEW = "kvserving-engine-python"
PYTHON = "/opt/kvserving/bin/python3"
SHARED_FOLDERS = ("/proc", "/dev", "/sys", "/tmp")  # noqa: S108  the host's own, on purpose


def replace_process(layout: Layout, store: ImageStore, arguments: Sequence[str]) -> NoReturn:
    """Become the engine image's Python; the process keeps its id, environment and /tmp."""
    recipe = images.recipe_of(images.ENGINE, layout)
    layers = [layer_digest(key) for key in step_keys(recipe, layout.repository)]
    snapshots = SnapshotStore(store)
    if not snapshots.exists(layers):
        raise NotReadyError("the engine image is not loaded: run `load engine` first")
    lower, root = layout.image_index / "engine-lower", layout.image_index / "engine-root"
    for folder in (lower, root):
        folder.mkdir(parents=True, exist_ok=True)
    script = mount_script(
        snapshots.view(VIEW, layers, lower), str(lower), str(root), str(layout.repository)
    )
    unshare = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", script, "sh"]
    os.execvp(unshare[0], [*unshare, *arguments])  # noqa: S606


def mount_script(mount_lower: str, lower: str, root: str, repository: str) -> str:
    """Shell script that puts the image together and enters it; its arguments go to Python."""
    quoted_root, shared = shlex.quote(root), [*SHARED_FOLDERS, repository]
    scratch = shlex.quote(f"{root}/scratch")
    options = f"lowerdir={shlex.quote(lower)},upperdir={scratch}/upper,workdir={scratch}/work"
    lines = [
        mount_lower,
        f"mount -t tmpfs engine {quoted_root}",
        f"mkdir -p {scratch}/upper {scratch}/work {scratch}/merged",
        f"merged={scratch}/merged",
        f'mount -t overlay engine -o {options} "$merged"',
    ]
    for folder in shared:
        target = f'"$merged"{shlex.quote(folder)}'
        lines += [f"mkdir -p {target}", f"mount --rbind {shlex.quote(folder)} {target}"]
    lines.append(f'exec chroot "$merged" {PYTHON} "$@"')
    return "\n".join(lines)
