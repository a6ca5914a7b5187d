"""Finished work, kept by key: a step is done when its folder exists, and that appears at once."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

KEY_LENGTH = 16


def content_key(parts: Iterable[str | bytes]) -> str:
    """Short key over an ordered list of texts, whose borders count too."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:KEY_LENGTH]


def tree_key(root: Path, paths: Iterable[Path]) -> str:
    """Key over files and folders below a root: names, whether executable, and contents."""
    parts: list[str | bytes] = []
    for file in sorted(_files(paths)):
        executable = bool(file.stat().st_mode & 0o111)
        parts += [str(file.relative_to(root)), str(executable), file.read_bytes()]
    return content_key(parts)


def step_folder(base: Path, name: str, key: str) -> Path:
    """Where the result of a step lies."""
    return base / f"{name}-{key}"


def ensure(folder: Path, build: Callable[[Path], None]) -> bool:
    """Build a folder unless it is there; True when it was built.

    The work happens in a neighbor folder that is renamed at the end, so a killed build never counts
    as done. Callers hold the tool's lock, so what an earlier run left half-done may be removed.
    """
    if folder.exists():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    build(unfinished)
    os.rename(unfinished, folder)
    return True


def drop_others(keep: Path, name: str) -> None:
    """Remove results of the same step under other keys, half-done ones included."""
    for folder in keep.parent.iterdir():
        stem = folder.name.removeprefix(".").removesuffix(".unfinished")
        if (
            folder != keep
            and stem.rpartition("-")[0] == name
            and len(stem) == len(name) + 1 + KEY_LENGTH
        ):
            shutil.rmtree(folder, ignore_errors=True)


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            for inner, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if name != "__pycache__")
                yield from (Path(inner) / name for name in names if not name.endswith(".pyc"))
        else:
            yield path
