"""Kernels that come with an image; run by test_operations.py where torch is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvserving_kernels.ops.precompile import MACHINE_FILE, machine
from kvserving_kernels.plugin.adapters.v0_32.warming import take_over

PROGRAM = """
import os, sys
from pathlib import Path
os.environ["NUMBA_CACHE_DIR"] = sys.argv[2]
from kvserving_kernels.plugin.adapters.v0_32.warming import take_over
assert take_over(Path(sys.argv[1]), Path(sys.argv[2]))
from kvserving_kernels.ops.numba_attend import attend_kernel
from kvserving_kernels.ops.numba_store import store_kernel
for kernel in (attend_kernel, store_kernel):
    for together in (False, True):
        assert kernel(together).stats.cache_hits, (kernel, together)
"""


def shipped(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / MACHINE_FILE).write_text(text)
    (folder / "kernel.nbc").write_text("code")
    return folder


def test_kernels_for_this_processor_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "own").write_text("kept")
    assert take_over(shipped(tmp_path / "image", machine()), tmp_path / "cache")
    assert (tmp_path / "cache" / "kernel.nbc").read_text() == "code"
    assert (tmp_path / "cache" / "own").read_text() == "kept"


def test_kernels_for_another_processor_are_left(tmp_path: Path) -> None:
    assert not take_over(shipped(tmp_path / "image", "numba 0, pentium"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_image_without_kernels_is_no_fault(tmp_path: Path) -> None:
    assert not take_over(tmp_path / "none", tmp_path / "cache")


def test_kernels_of_the_image_need_no_compiler(tmp_path: Path) -> None:
    folder = os.environ.get("KVSERVING_PRECOMPILED", "/opt/kvserving/kernels")
    if not Path(folder).exists():
        pytest.fail(f"{folder}: the engine image has no kernels; run `make up`")
    # The package that the image has installed, not the one of this checkout.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, folder, str(tmp_path / "cache")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
