"""The command line where what its commands need is not installed."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys

sys.modules[{module!r}] = None
from kvserving_tuner.cli import main

sys.exit(main(["plan", "--help"]))
"""


@pytest.mark.parametrize("module", ["rich.console", "rich", "pydantic", "httpx"])
def test_a_missing_extra_is_named_without_a_traceback(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(module=module)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert module in ran.stderr
    assert "kvserving[tuner]" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_with_the_extra_a_command_tells_its_options() -> None:
    program = "import sys; from kvserving_tuner.cli import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run(
        [sys.executable, "-c", program, "plan", "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "usage: kvserving plan" in ran.stdout
