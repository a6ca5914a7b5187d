"""Files that are written from the models and checked for drift."""

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from kvserving_operator.api.errors import DriftError

_log = logging.getLogger(__name__)


def write(files: Mapping[Path, str], root: Path) -> None:
    """Write every file below a checkout."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def drifted(files: Mapping[Path, str], root: Path) -> list[Path]:
    """Give the files that are absent or differ from what the models say."""
    return [path for path, text in files.items() if _read(root / path) != text]


def check(files: Mapping[Path, str], root: Path) -> None:
    """Raise DriftError that names every file to be written again."""
    stale = drifted(files, root)
    if stale:
        names = ", ".join(map(str, stale))
        raise DriftError(f"generated files differ from the models, run --write: {names}")


def run(what: str, files: Callable[[], Mapping[Path, str]]) -> int:
    """Give a command its `--write` and `--check`."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=f"Generate {what} from the models.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="fail when a file differs")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="checkout (default: here)")
    arguments = parser.parse_args()
    generated = files()
    if arguments.write:
        write(generated, arguments.root)
        return 0
    try:
        check(generated, arguments.root)
    except DriftError as error:
        _log.error("%s", error)
        return 1
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
