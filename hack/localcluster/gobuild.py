"""Builds the cluster's programs from Go modules, each module one cached step."""

import os
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.cache import content_key, ensure, step_folder
from localcluster.errors import CommandError, MissingPackagesError
from localcluster.layout import Layout
from localcluster.progress import Progress
from localcluster.shell import run, tail
from localcluster.versions import GO_MODULES, GoModule

HEARTBEAT_SECONDS = 20.0
PAUSE_FLAGS = ("-Os", "-static", "-s")


def module_key(module: GoModule, folder: Path, machine: str) -> str:
    """Key of a module's programs: import paths, flags, files beside go.mod, and the processor."""
    sources = [path.read_bytes() for path in sorted(folder.iterdir())]
    return content_key(
        [machine, str(module.cgo), *module.flags, *map(str, module.packages), *sources]
    )


def module_folder(layout: Layout, module: GoModule) -> Path:
    """Where the programs of a module are or will be."""
    key = module_key(module, layout.go_modules / module.name, platform.machine())
    return step_folder(layout.binaries, module.name, key)


def pause_folder(layout: Layout) -> Path:
    """Where the pause program is or will be."""
    source = layout.go_modules.parent / "pause" / "pause.c"
    key = content_key([platform.machine(), *PAUSE_FLAGS, source.read_bytes()])
    return step_folder(layout.binaries, "pause", key)


def programs(layout: Layout) -> dict[str, Path]:
    """Path of every program by name, built or not."""
    found = {
        name: module_folder(layout, module) / name
        for module in GO_MODULES
        for name, _ in module.packages
    }
    return {**found, "pause": pause_folder(layout) / "pause"}


def build_programs(layout: Layout, progress: Progress) -> None:
    """Build whatever the cache lacks, smallest first."""
    source = layout.go_modules.parent / "pause" / "pause.c"
    ensure(
        pause_folder(layout),
        lambda folder: _discard(
            run(["gcc", *PAUSE_FLAGS, "-o", str(folder / "pause"), str(source)])
        ),
    )
    build_modules(layout, GO_MODULES, progress)


def build_modules(layout: Layout, modules: Sequence[GoModule], progress: Progress) -> None:
    """Build the modules that the cache lacks."""
    missing = [module for module in modules if not module_folder(layout, module).exists()]
    if missing and shutil.which("go") is None:
        raise MissingPackagesError(
            f"Go 1.26 or newer is needed to build {missing[0].name}, and no `go` is on the path"
        )
    for number, module in enumerate(missing, 1):
        with progress.step(f"build {module.name} from Go modules ({number} of {len(missing)})"):
            target = module_folder(layout, module)
            ensure(target, lambda folder, module=module: _build(layout, module, folder, progress))  # type: ignore[misc]


def _build(layout: Layout, module: GoModule, folder: Path, progress: Progress) -> None:
    env = {**os.environ, "CGO_ENABLED": "1" if module.cgo else "0"}
    for names in _invocations(module):
        output = folder / names[0][0] if len(names) == 1 else folder
        argv = [
            "go",
            "build",
            "-v",
            *module.flags,
            "-o",
            f"{output}{'' if len(names) == 1 else '/'}",
        ]
        _watch(
            [*argv, *(path for _, path in names)],
            layout.go_modules / module.name,
            env,
            module.name,
            progress,
        )


def _invocations(module: GoModule) -> list[tuple[tuple[str, str], ...]]:
    """One `go build` for all programs where their names end their import paths."""
    if all(path.rpartition("/")[2] == name for name, path in module.packages):
        return [module.packages]
    return [(pair,) for pair in module.packages]


def _watch(
    argv: list[str], cwd: Path, env: Mapping[str, str], name: str, progress: Progress
) -> None:
    """Run a build and say now and then how many packages are through."""
    process = subprocess.Popen(
        argv, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    stream = process.stderr
    if stream is None:
        raise CommandError(f"{argv[0]}: no error output to read")
    reader = threading.Thread(target=lambda: lines.extend(stream), daemon=True)
    reader.start()
    last = time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        if time.monotonic() - last >= HEARTBEAT_SECONDS:
            last = time.monotonic()
            compiled = [line.strip() for line in list(lines) if not line.startswith("go: ")]
            latest = f", last {compiled[-1]}" if compiled else " so far"
            progress.say(f"  {name}: {len(compiled)} packages compiled{latest}")
    reader.join()
    if process.returncode != 0:
        raise CommandError(
            f"{' '.join(argv)}: exit status {process.returncode}\n{tail(''.join(lines))}"
        )


def _discard(_: str) -> None:
    """Turn a command's output into nothing."""
