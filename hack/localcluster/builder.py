"""Runs a Dockerfile's steps on containerd's snapshots, each step with a layer, each layer cached.

No image is pulled or pushed, and no layer is written twice. What a step may see of this machine to
reach its package index (proxies, certificates, settings of pip, uv and apt) is mounted or set for
the step alone, so none of it stays in the image.
"""

import json
import os
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from localcluster.cache import content_key, tree_key
from localcluster.dockerfile import Recipe, Step
from localcluster.errors import DockerfileError, NotReadyError
from localcluster.hostsettings import CLEANUP_SCRIPT, HostSettings
from localcluster.oci import ARCHITECTURES, ImageConfig, Layer, archive
from localcluster.progress import Progress
from localcluster.shell import run
from localcluster.snapshots import SnapshotStore, layer_digest
from localcluster.store import ImageStore

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
BASE_SUITE = "bookworm"
BASE_PACKAGES = "ca-certificates"
TITLE_LENGTH = 100
SCRATCH = "run-on-image"
CONTAINER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# As in the official slim image: no waiting for the disk, no documentation.
DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
DPKG_SETTINGS = "".join(f"{option}\\n" for option in DPKG_OPTIONS)
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

    def build(self, reference: str, recipe: Recipe, context: Path) -> bool:
        """Make an image and name it in containerd's store, unless it is there; True when made."""
        if recipe.base != BASE_IMAGE:
            raise DockerfileError(f"FROM {recipe.base}: only {BASE_IMAGE} can be made here")
        keys = step_keys(recipe, context)
        layers = [layer_digest(key) for key in keys]
        image_key = content_key([keys[-1], repr(image_config(recipe))])
        if self._store.has(reference, image_key) and self._snapshots.exists(layers):
            return False
        for number, key in enumerate(keys):
            if not self._snapshots.exists(layers[: number + 1]):
                self._make_layer(reference, recipe, number, key, layers[: number + 1], context)
        image = archive(reference, image_config(recipe), [Layer(name, 0) for name in layers], {})
        self._store.add(reference, image_key, image)
        return True

    def tidy(self, recipes: Iterable[Recipe], context: Path) -> None:
        """Let go of layers that neither an image nor one of these recipes has."""
        stacks = ([layer_digest(key) for key in step_keys(one, context)] for one in recipes)
        self._snapshots.release(stacks)

    def run_on(self, recipe: Recipe, context: Path, step: Step, output: Path) -> None:
        """Run a step on a finished image and keep only what it writes to /run/output."""
        layers = [layer_digest(key) for key in step_keys(recipe, context)]
        if not self._snapshots.exists(layers):
            raise NotReadyError("the engine image is not loaded: run `load engine` first")
        mount = self._snapshots.open(SCRATCH, layers, self._root())
        source = shlex.quote(str(output))
        bind = f'mkdir "$root/run/output"; mount --bind {source} "$root/run/output"'
        script = run_script(step, f"{self._settings.mount_script(BASE_SUITE)}\n{bind}")
        env = {**self._settings.environment, **recipe.env, **dict(step.env)}
        self._enter(step.text, [mount, script], context, env)
        self._snapshots.discard(SCRATCH)

    def _make_layer(
        self,
        reference: str,
        recipe: Recipe,
        number: int,
        key: str,
        layers: Sequence[str],
        context: Path,
    ) -> None:
        """Make the last of these layers: the base, number 0, or what a step adds to it."""
        env: Mapping[str, str] = {}
        if number == 0:
            title = f"{recipe.base} from Debian's packages"
            sources = self._settings.apt_sources(BASE_SUITE)
            script = base_script(str(self._root()), sources)
        else:
            step = recipe.steps[number - 1]
            title = f"{reference}, step {number} of {len(recipe.steps)}: {step.keyword} {step.text}"
            if step.keyword == "RUN":
                script = run_script(step, self._settings.mount_script(BASE_SUITE))
                env = {**self._settings.environment, **dict(step.env)}
            else:
                script = copy_script(step)
        with self._progress.step(title[:TITLE_LENGTH]):
            mount = self._snapshots.open(key, layers[:-1], self._root())
            self._enter(title, [mount, script], context, env)
            self._snapshots.close(key, layers)

    def _root(self) -> Path:
        """Where layers are mounted, in a mount namespace of each step's own."""
        root = self._folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        return root

    def _enter(
        self,
        title: str,
        scripts: Sequence[str],
        context: Path,
        env: Mapping[str, str],
    ) -> None:
        """Run scripts in namespaces that end with them; and they end with this tool."""
        places = f"root={shlex.quote(str(self._root()))}; context={shlex.quote(str(context))}"
        namespaces = "--mount --propagation private --pid --fork --kill-child --mount-proc"
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces.split(), "/bin/sh", "-euc"]
        full = {"PATH": CONTAINER_PATH, "HOME": "/root", **env}
        run([*argv, "\n".join([places, *scripts])], env=full, name=title)


def step_keys(recipe: Recipe, context: Path) -> list[str]:
    """Key of the base and of each step: everything that decides what comes out of it."""
    keys = [content_key([recipe.base, BASE_SUITE, base_script("", ())])]
    for step in recipe.steps:
        sources = [*(mount.source for mount in step.mounts), *step.sources]
        contents = [tree_key(context, [context / source]) for source in sources]
        keys.append(content_key([keys[-1], json.dumps(asdict(step), sort_keys=True), *contents]))
    return keys


def run_script(step: Step, lend_settings: str) -> str:
    """Shell script of a RUN step: the mounts, the command, and no trace of the mount points."""
    lines = [*SYSTEM_MOUNTS, lend_settings]
    for mount in step.mounts:
        target = f'"$root"{shlex.quote(mount.target)}'
        source = f'"$context"/{shlex.quote(mount.source)}'
        lines += [
            f'mkdir -p "$(dirname {target})"',
            f"if [ -d {source} ]; then mkdir -p {target}; else : > {target}; fi",
            f"mount --bind -o ro {source} {target}",
        ]
    inside = f"cd {shlex.quote(step.working_folder)} && {step.text}"
    user = f"--userspec={shlex.quote(step.user)} " if step.user else ""
    lines.append(f'chroot {user}"$root" /bin/sh -euc {shlex.quote(inside)} >&2')
    for mount in step.mounts:
        target = f'"$root"{shlex.quote(mount.target)}'
        lines.append(f"umount {target}; rmdir {target} 2>/dev/null || rm -f {target}")
    return "\n".join([*lines, CLEANUP_SCRIPT])


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


def base_script(root: str, sources: Sequence[str]) -> str:
    """Shell script that fills a root folder with Debian, without settings of this machine."""
    clean = (
        'cd "$1"; rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/resolv.conf etc/hostname'
        " etc/apt/apt.conf.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/99mmdebstrap var/lib/apt/lists/*"
        " var/cache/apt/* var/log/*.log var/log/apt"
        f"; printf '{DPKG_SETTINGS}' > etc/dpkg/dpkg.cfg.d/docker"
    )
    options = " ".join(f"--dpkgopt={option!r}" for option in DPKG_OPTIONS)
    return (
        f"mmdebstrap --quiet --variant=minbase --include={BASE_PACKAGES}"
        f" {options} --customize-hook={shlex.quote(clean)}"
        f" --skip=check/empty,check/qemu --format=directory {BASE_SUITE}"
        f" {shlex.quote(root)} {shlex.join(sources)} >&2"
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
