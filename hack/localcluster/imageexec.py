"""A program of a loaded image as a process of this machine, for tests that start such programs.

One installation of five gigabytes serves pods and tests alike. What is written into the image's
folders is gone when the process ends.
"""

import os
import shlex
from collections.abc import Sequence
from typing import NoReturn

from localcluster import images
from localcluster.builder import CONTAINER_PATH, step_keys
from localcluster.errors import NotReadyError
from localcluster.layout import Layout
from localcluster.snapshots import SnapshotStore, layer_digest
from localcluster.store import ImageStore

SHARED_FOLDERS = ("/proc", "/dev", "/sys", "/tmp")  # noqa: S108  the host's own, on purpose


def replace_process(layout: Layout, store: ImageStore, name: str, argv: Sequence[str]) -> NoReturn:
    """Become a program of an image; the process keeps its id, its environment and /tmp."""
    (image,) = images.chosen_images([name])
    recipe = images.recipe_of(image, layout)
    layers = [layer_digest(key) for key in step_keys(recipe, layout.repository)]
    snapshots = SnapshotStore(store)
    if not snapshots.exists(layers):
        raise NotReadyError(f"the image {name} is not loaded: run `load {name}` first")
    lower, root = layout.image_index / f"{name}-lower", layout.image_index / f"{name}-root"
    for folder in (lower, root):
        folder.mkdir(parents=True, exist_ok=True)
    mount = snapshots.view(layers, lower)
    script = enter_script(mount, str(lower), str(root), str(layout.repository))
    environment = {**os.environ, "PATH": recipe.env.get("PATH", CONTAINER_PATH)}
    unshare = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", script, "sh"]
    os.execvpe(unshare[0], [*unshare, *argv], environment)  # noqa: S606


def enter_script(mount_lower: str, lower: str, root: str, repository: str) -> str:
    """Shell script that puts an image together and runs its own arguments inside."""
    merged = f"{root}/merged"
    options = f"lowerdir={lower},upperdir={root}/upper,workdir={root}/work"
    lines = [
        mount_lower,
        f"mount -t tmpfs image {shlex.quote(root)}",
        *(f"mkdir {shlex.quote(f'{root}/{part}')}" for part in ("upper", "work", "merged")),
        f"mount -t overlay image -o {shlex.quote(options)} {shlex.quote(merged)}",
    ]
    for folder in (*SHARED_FOLDERS, repository):
        target = shlex.quote(merged + folder)
        lines += [f"mkdir -p {target}", f"mount --rbind {shlex.quote(folder)} {target}"]
    lines.append(f'exec chroot {shlex.quote(merged)} "$@"')
    return "\n".join(lines)
