"""Runs the suite of the KV operations in the engine's Python, which has torch.

Its pytest is the one that runs this test: pytest is pure Python, so its folder is put behind the
engine's own packages. The CPU engine has no Triton: where it is installed, the same files run its
kernels with `TRITON_INTERPRET=1` and `-k triton`.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "kernels" / "operations"
PROGRAM = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_operations_conform(engine_python: str) -> None:
    program = f"import sys; sys.path.append({str(Path(pytest.__file__).parents[1])!r}); {PROGRAM}"
    command = [
        engine_python, "-c", program, *map(str, sorted(SUITE.glob("check_*.py"))),
        "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "--import-mode=importlib",
        "-p", "no:cacheprovider", "-q", "-k", "not triton", "--durations=5",
    ]  # fmt: skip
    environment = {
        **os.environ,
        # Before the package that the engine's environment has installed.
        "PYTHONPATH": f"{ROOT / 'kernels'}:{ROOT / 'hack'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout
