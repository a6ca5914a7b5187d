"""A support bundle as one file."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from kvserving_kubectl.errors import UsageError

FILE_MODE = 0o600


def write(path: Path, folder: str, files: Mapping[str, str], at: float) -> int:
    """Write a tar.gz with these files in one folder; its size in bytes.

    Nobody but its owner may read it. Raises UsageError where it cannot be written, or is there.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in sorted(files):
            data = files[name].encode("utf-8", errors="replace")
            entry = tarfile.TarInfo(f"{folder}/{_safe(name)}")
            entry.size, entry.mtime, entry.mode = len(data), int(at), FILE_MODE
            archive.addfile(entry, io.BytesIO(data))
    try:
        with path.open("xb") as file:
            path.chmod(FILE_MODE)
            return file.write(packed.getvalue())
    except OSError as error:
        raise UsageError(f"--file: {path}: cannot be written: {error.strerror}") from None


def _safe(name: str) -> str:
    """A path that stays inside the folder, whatever an object is called."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)
