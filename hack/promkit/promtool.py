"""Prometheus' promtool as a test needs it."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

BINARY = os.environ.get("KVSERVING_PROMTOOL") or shutil.which("promtool")

Rules = Mapping[str, Any]
"""A rule file, or the spec of a PrometheusRule, which is the same."""


def promtool(*arguments: str) -> str:
    """Run it, and fail the test with what it says where it finds a fault."""
    if BINARY is None:
        pytest.fail("no promtool: set KVSERVING_PROMTOOL or put it on PATH")
    command = [BINARY, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    if done.returncode:
        pytest.fail(f"promtool {arguments[0]} {arguments[1]}: {said[-4000:]}")
    return said


def check_rules(folder: Path, rules: Rules) -> str:
    """Have a rule file checked; what promtool says of a good one."""
    return promtool("check", "rules", "--lint=all", "--lint-fatal", str(_rule_file(folder, rules)))


def check_config(folder: Path, config: str) -> None:
    """Have a server's configuration checked."""
    path = folder / "prometheus.yaml"
    path.write_text(config)
    promtool("check", "config", "--syntax-only", str(path))


def run_tests(folder: Path, rules: Rules, tests: Sequence[Mapping[str, Any]]) -> None:
    """Run unit tests of rules, each as promtool's test files have it."""
    document = {
        "rule_files": [str(_rule_file(folder, rules))],
        "evaluation_interval": "1m",
        "tests": list(tests),
    }
    path = folder / "tests.yaml"
    path.write_text(yaml.safe_dump(document, width=100_000))
    promtool("test", "rules", str(path))


def _rule_file(folder: Path, rules: Rules) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(dict(rules), width=100_000))
    return path
