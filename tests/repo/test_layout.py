"""The repository's own rules: layouts that would break Python, modules that grew too long."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / line for line in output.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("folder", ["kubectl", "operator", "tuner", "kernels"])
def test_no_package_shadows_the_standard_library(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_packages_among_the_tests() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_module_is_named_like_a_standard_module_at_a_package_root() -> None:
    roots = [
        ROOT / "kubectl/kvserving_kubectl",
        ROOT / "operator/kvserving_operator",
        ROOT / "tuner/kvserving_tuner",
        ROOT / "kernels/kvserving_kernels",
    ]
    names = {path.stem for root in roots for path in root.glob("*.py")}
    assert set() == names & sys.stdlib_module_names


def test_what_the_kernels_package_logs_is_shown_by_an_engine() -> None:
    """Of loggers that are not below its own, vLLM shows nothing less than warnings."""
    names = {
        (path.relative_to(ROOT).as_posix(), given)
        for path in (ROOT / "kernels/kvserving_kernels").rglob("*.py")
        for given in re.findall(r"getLogger\((.*?)\)", path.read_text())
    }
    assert names
    assert {found for found in names if found[1] != '"vllm.kvserving"'} == set()


def test_makefile_stays_small_and_explains_itself() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    phony = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    assert len(phony) <= 10
    for target in phony:
        assert any(line.startswith(f"{target}:") and "## " in line for line in lines), target


def test_modules_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked_files()
        if path.suffix == ".py" and path.parts[len(ROOT.parts)] != "tests"
        for count in [len(path.read_text().splitlines())]
        if count > 400
    }
    assert long == {}
