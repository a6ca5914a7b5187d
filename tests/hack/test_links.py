"""Links that somebody else, such as the kernel, removes at the same time."""

from pathlib import Path

import pytest

from localcluster.errors import CommandError
from localcluster.links import remove_link

PROGRAM = """#!/bin/sh
echo "$@" >>{log}
case "$2" in
  delete) {delete} ;;
  show) {show} ;;
esac
"""


def with_ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delete: str, show: str) -> Path:
    """Put a program `ip` first on the path that answers as given; the log of its calls."""
    log, program = tmp_path / "log", tmp_path / "ip"
    program.write_text(PROGRAM.format(log=log, delete=delete, show=show))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return log


def test_a_link_that_is_there_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = with_ip(tmp_path, monkeypatch, "exit 0", "exit 0")
    remove_link("kvserving0")
    assert log.read_text() == "link delete kvserving0\n"


def test_a_link_that_vanishes_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ip(tmp_path, monkeypatch, "echo 'Cannot find device' >&2; exit 1", "exit 1")
    remove_link("kvserving0")


def test_a_link_that_stays_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_ip(tmp_path, monkeypatch, "echo 'Operation not permitted' >&2; exit 2", "exit 0")
    with pytest.raises(CommandError, match="Operation not permitted"):
        remove_link("kvserving0")
