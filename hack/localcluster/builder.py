"""Runs a Dockerfile's steps on containerd's snapshots, each step with a layer, each layer cached.

No image is pulled or pushed and no layer is written twice. What a step may see of this machine to
reach its package index (proxies, certificates, settings of pip, uv and apt) is mounted or set for the
step alone, so none of it stays in the image.
"""

import json
import os
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from localcluster.cache import content_key, tree_key
from localcluster.dockerfile import Recipe, Step
from localcluster.errors import DockerfileError
from localcluster.hostsettings import HostSettings
from localcluster.oci import ARCHITECTURES, ImageConfig, Layer, archive
from localcluster.progress import Progress
from localcluster.shell import run
from localcluster.snapshots import SnapshotStore
from localcluster.store import ImageStore

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
BASE_SUITE = "bookworm"
BASE_PACKAGES = "ca-certificates"
CONTAINER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Without these no program and no package manager works inside a root folder.
SYSTEM_MOUNTS = (
    'mount -t proc proc "$root/proc"',
    'mount --rbind /dev "$root/dev"',
    'mount -t tmpfs build-run "$root/run"',
)


class ImageBuilder:
    """Builds images for the architecture of this machine."""

    def __init__(
        self, store: ImageStore, folder: Path, settings: HostSettings, progress: Progress
    ) -> None:
        self._store = store
        self._snapshots = SnapshotStore(store)
        self._folder = folder
        self._settings = settings
        self._progress = progress

    def build(self, reference: str, key: str, recipe: Recipe, context: Path) -> None:
        """Make an image and give it a name in containerd's store."""
        layers = [self._base(recipe.base)]
        key_so_far = layers[0].digest
        for number, step in enumerate(recipe.steps, 1):
            key_so_far = step_key(key_so_far, step, context)
            title = f"{reference}: step {number} of {len(recipe.steps)}, {step.keyword} {step.text}"
            layers.append(self._layer(title[:110], key_so_far, step, layers, context))
        self._store.add(reference, key, archive(reference, image_config(recipe), layers, {}))
        self._snapshots.release(layers)

    def _layer(
        self, title: str, key: str, step: Step, parents: Sequence[Layer], context: Path
    ) -> Layer:
        known = self._recall(key)
        if known and self._snapshots.exists([*parents, known]):
            return known
        with self._progress.step(title):
            root, record = self._folder / "root", self._folder / f"{key}.json"
            root.mkdir(parents=True, exist_ok=True)
            mount = self._snapshots.open(key, parents, root)
            script = run_script(step) if step.keyword == "RUN" else copy_script(step)
            self._enter(f"{mount}\n{script}", root, context, step)
            layer = self._snapshots.close(key, parents)
            record.write_text(json.dumps(asdict(layer)))
        return layer

    def _base(self, reference: str) -> Layer:
        """The base image, made from Debian's packages: no registry is needed for it."""
        if reference != BASE_IMAGE:
            raise DockerfileError(f"FROM {reference}: only {BASE_IMAGE} can be made here")
        key = content_key([BASE_SUITE, BASE_PACKAGES, base_script("", "")])
        known = self._recall(key)
        if known and self._snapshots.exists([known]):
            return known
        with self._progress.step(f"make the base image {reference} from Debian's packages"):
            root = self._folder / "root"
            root.mkdir(parents=True, exist_ok=True)
            mount = self._snapshots.open(key, [], root)
            script = base_script(str(root), self._settings.apt_sources(BASE_SUITE))
            self._enter(f"{mount}\n{script}", root, root, None)
            layer = self._snapshots.close(key, [])
            (self._folder / f"{key}.json").write_text(json.dumps(asdict(layer)))
        return layer

    def _recall(self, key: str) -> Layer | None:
        try:
            return Layer(**json.loads((self._folder / f"{key}.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _enter(self, script: str, root: Path, context: Path, step: Step | None) -> None:
        """Run a script in mount and process namespaces that end with it, and it with this tool."""
        env = {
            "PATH": CONTAINER_PATH,
            "HOME": "/root",
            **self._settings.environment,
            **(dict(step.env) if step else {}),
            "root": str(root),
            "context": str(context),
            "settings": self._settings.mount_script(),
        }
        namespaces = "--mount --propagation private --pid --fork --kill-child --mount-proc"
        run(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces.split()]
            + ["/bin/sh", "-euc", script],
            env=env,
        )


def step_key(parent: str, step: Step, context: Path) -> str:
    """Key of a step's layer: everything that decides what comes out of it."""
    sources = [mount.source for mount in step.mounts] + list(step.sources)
    contents = [tree_key(context, [context / source]) for source in sources]
    return content_key([parent, json.dumps(asdict(step), sort_keys=True), *contents])


def run_script(step: Step) -> str:
    """Shell script of a RUN step: the mounts, the command, and no trace of the mount points."""
    lines = [*SYSTEM_MOUNTS, 'eval "$settings"']
    for mount in step.mounts:
        target = f'"$root"{shlex.quote(mount.target)}'
        source = f'"$context"/{shlex.quote(mount.source)}'
        lines += [
            f"if [ -d {source} ]; then mkdir -p {target}; else touch {target}; fi",
            f"mount --bind -o ro {source} {target}",
        ]
    inside = f"cd {shlex.quote(step.working_folder)} && {step.text}"
    user = f"--userspec={shlex.quote(step.user)} " if step.user else ""
    lines.append(f'chroot {user}"$root" /bin/sh -euc {shlex.quote(inside)} >&2')
    for mount in step.mounts:
        target = f'"$root"{shlex.quote(mount.target)}'
        lines.append(f"umount {target}; rmdir {target} 2>/dev/null || rm -f {target}")
    return "\n".join([*lines, 'eval "$cleanup"'])


def copy_script(step: Step) -> str:
    """Shell script of a COPY step; what is copied belongs to root, as in every image builder."""
    destination = os.path.join(step.working_folder, step.text)
    target = f'"$root"{shlex.quote(destination)}'
    folder = destination.endswith("/") or len(step.sources) > 1
    lines = [f"mkdir -p {target}" if folder else f'mkdir -p "$(dirname {target})"']
    for source in step.sources:
        path = f'"$context"/{shlex.quote(source)}'
        lines += [
            f"if [ -d {path} ]; then mkdir -p {target}; cp -R {path}/. {target};"
            f" else cp {path} {target}; fi"
        ]
    lines.append(f"chown -R 0:0 {target}")
    for option in step.options:
        lines.append(f"chmod -R {shlex.quote(option.removeprefix('--chmod='))} {target}")
    return "\n".join(lines)


def base_script(root: str, sources: str) -> str:
    """Shell script that fills a root folder with Debian, without settings of this machine."""
    clean = (
        'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* '
        '"$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap '
        '"$1"/etc/resolv.conf "$1"/etc/hostname "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* '
        '"$1"/var/log/*.log "$1"/var/log/apt "$1"/usr/share/doc/* "$1"/usr/share/man/* '
        '"$1"/usr/share/locale/*'
    )
    return (
        f"mmdebstrap --quiet --variant=minbase --include={BASE_PACKAGES}"
        f" --dpkgopt=force-unsafe-io --customize-hook={shlex.quote(clean)}"
        f" --skip=check/empty,check/qemu --format=directory {BASE_SUITE}"
        f" {shlex.quote(root)} {sources} >&2"
    )


def image_config(recipe: Recipe) -> ImageConfig:
    """What the finished image says about itself."""
    env: Mapping[str, str] = {"PATH": CONTAINER_PATH, **recipe.env}
    return ImageConfig(
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        user=recipe.user,
        env=tuple(f"{name}={value}" for name, value in env.items()),
        entrypoint=recipe.entrypoint,
        command=recipe.command,
        working_folder=recipe.working_folder,
        labels=recipe.labels,
    )


def remove_records(folder: Path) -> None:
    """Forget every cached step."""
    shutil.rmtree(folder, ignore_errors=True)
