"""Cached steps: what counts as done, and what survives a kill in the middle."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localcluster.cache import content_key, ensure, step_folder, tree_key


def test_a_step_is_built_once(tmp_path: Path) -> None:
    folder = step_folder(tmp_path, "thing", "0123")
    calls: list[Path] = []

    def build(unfinished: Path) -> None:
        calls.append(unfinished)
        (unfinished / "program").write_text("ready")

    assert ensure(folder, build)
    assert not ensure(folder, build)
    assert len(calls) == 1
    assert (folder / "program").read_text() == "ready"


def test_a_failed_step_does_not_count_and_leaves_nothing_for_the_next_try(tmp_path: Path) -> None:
    folder = tmp_path / "bin" / "thing-0123"

    def fail(unfinished: Path) -> None:
        (unfinished / "half").write_text("x")
        raise RuntimeError("compiler died")

    with pytest.raises(RuntimeError, match="compiler died"):
        ensure(folder, fail)
    assert not folder.exists()
    assert ensure(folder, lambda unfinished: (unfinished / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert [path.name for path in folder.parent.iterdir()] == ["thing-0123"]


def test_a_killed_step_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "thing-0123"
    script = (
        "import sys, time; from pathlib import Path; from localcluster.cache import ensure\n"
        "def build(unfinished):\n"
        "    (unfinished / 'half').touch(); print('building', flush=True); time.sleep(60)\n"
        f"ensure(Path({str(folder)!r}), build)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "hack")},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        process.send_signal(signal.SIGKILL)
    assert not folder.exists()
    begin = time.monotonic()
    assert ensure(folder, lambda unfinished: (unfinished / "whole").touch())
    assert time.monotonic() - begin < 30
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_keys_know_the_borders_between_their_parts() -> None:
    assert content_key(["ab", "c"]) != content_key(["a", "bc"])
    assert content_key(["a"]) == content_key([b"a"])


def test_a_tree_key_follows_names_contents_and_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("1")
    keys = [tree_key(tmp_path, [source])]
    (source / "a.py").write_text("2")
    keys.append(tree_key(tmp_path, [source]))
    (source / "a.py").chmod(0o755)
    keys.append(tree_key(tmp_path, [source]))
    (source / "a.py").rename(source / "b.py")
    keys.append(tree_key(tmp_path, [source]))
    assert len(set(keys)) == len(keys)

    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "b.cpython-311.pyc").write_bytes(b"x")
    assert tree_key(tmp_path, [source]) == keys[-1]
