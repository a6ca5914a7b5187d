"""Runs the suite of the KV operations in the engine's Python, which has torch.

Its pytest is the one that runs this test: pytest is pure Python, so its folder is put behind the
engine's own packages. Triton, which the CPU engine lacks, comes from there too, and runs the GPU's
kernels in its interpreter.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "kernels" / "operations"
PROGRAM = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"


INTERPRETED = {"TRITON_INTERPRET": "1"}


# The interpreter takes half a minute and more for many a decode step, and for many a chunk.
@pytest.mark.parametrize(
    ("kernels", "variables"),
    [
        pytest.param("not triton", {}, id="cpu"),
        pytest.param(
            "triton and not triton_decode and not triton_prefill", INTERPRETED, id="triton"
        ),
        pytest.param(
            "triton_decode and (edges and int4 or a_plan)", INTERPRETED, id="triton-decode"
        ),
        pytest.param(
            "triton_prefill and (edge_in and (int8 or had) or rows_that or before or shared)",
            INTERPRETED,
            id="triton-prefill",
        ),
        pytest.param("triton_decode", INTERPRETED, id="all-of-it", marks=pytest.mark.full),
        pytest.param("triton_prefill", INTERPRETED, id="all-of-prefill", marks=pytest.mark.full),
    ],
)
def test_operations_conform(engine_python: str, kernels: str, variables: dict[str, str]) -> None:
    program = f"import sys; sys.path.append({str(Path(pytest.__file__).parents[1])!r}); {PROGRAM}"
    command = [
        engine_python, "-c", program, *map(str, sorted(SUITE.glob("check_*.py"))),
        "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "--import-mode=importlib",
        "-p", "no:cacheprovider", "-q", "-k", kernels, "--durations=5",
    ]  # fmt: skip
    environment = {
        **os.environ,
        **variables,
        # Before the package that the engine's environment has installed.
        "PYTHONPATH": f"{ROOT / 'kernels'}:{ROOT / 'hack'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout
    assert " passed" in ran.stdout
