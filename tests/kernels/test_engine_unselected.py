"""An engine that does not select the plugin is one in whose environment it is not installed."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.full]

PROGRAM = Path(__file__).parent / "unselected" / "in_process.py"
PACKAGE = "kvserving_kernels"
ADAPTERS = f"{PACKAGE}.plugin.adapters"
ASKED = {
    "vllm.platforms.cpu.CpuPlatform.check_and_update_config",
    "vllm.platforms.cpu.CpuPlatform.get_attn_backend_cls",
}
"""What sees whether an engine has a setting of ours."""
Found = Mapping[str, Any]


def run(
    python: str, environment: Mapping[str, str], model: Path, how: str, plugins: str | None
) -> Found:
    """An engine whose `VLLM_PLUGINS` is this, or is not set."""
    variables = {**environment, **({} if plugins is None else {"VLLM_PLUGINS": plugins})}
    if plugins is None:
        variables.pop("VLLM_PLUGINS", None)
    ran = subprocess.run(
        [python, str(PROGRAM), str(model), how],
        env=variables, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    sys.stderr.write(ran.stderr[-4000:])
    assert ran.returncode == 0
    result: Found = json.loads(ran.stdout.splitlines()[-1])
    return result


def without(python: str, environment: Mapping[str, str], model: Path, plugins: str | None) -> Found:
    """An engine that cannot find the package."""
    found = run(python, environment, model, "absent", plugins)
    # Or the comparison would be one of an environment with itself.
    assert found["taken_away"] >= 2
    assert found["ours"] == []
    return found


@pytest.fixture(scope="module")
def absent(engine_python: str, tiny_model: Path, engine_environment: dict[str, str]) -> Found:
    """Without the package, and no plugins named."""
    return without(engine_python, engine_environment, tiny_model, None)


@pytest.fixture(scope="module")
def absent_with_others(
    engine_python: str, tiny_model: Path, engine_environment: dict[str, str]
) -> Found:
    """Without the package, and others named: vLLM then leaves out plugins of its own too."""
    return without(engine_python, engine_environment, tiny_model, "other")


@pytest.fixture(scope="module")
def others_named(engine_python: str, tiny_model: Path, engine_environment: dict[str, str]) -> Found:
    """An engine that names other plugins only."""
    return run(engine_python, engine_environment, tiny_model, "installed", "other")


@pytest.fixture(scope="module")
def none_named(engine_python: str, tiny_model: Path, engine_environment: dict[str, str]) -> Found:
    """An engine that names no plugins, so that vLLM loads all, and has no setting of ours."""
    return run(engine_python, engine_environment, tiny_model, "installed", None)


@pytest.mark.parametrize("how", ["others_named", "none_named"])
def test_it_answers_and_is_set_up_alike(
    absent: Found, how: str, request: pytest.FixtureRequest
) -> None:
    found: Found = request.getfixturevalue(how)
    assert found["answer"] == absent["answer"]
    assert found["setting"] == absent["setting"]
    assert found["variables"] == absent["variables"]


def test_where_others_are_named_nothing_of_ours_is_loaded_or_put_into_vllm(
    absent_with_others: Found, others_named: Found
) -> None:
    assert [name for name in others_named["ours"] if name.startswith(ADAPTERS)] == []
    assert others_named["functions"] == absent_with_others["functions"]


def test_where_none_are_named_vllm_only_asks_whether_there_is_a_setting(
    absent: Found, none_named: Found
) -> None:
    assert [name for name in none_named["ours"] if name.startswith(f"{ADAPTERS}.")] == []
    before, after = absent["functions"], none_named["functions"]
    assert {path for path in before if after.get(path, before[path]) != before[path]} == ASKED
    assert {path for path, origin in after.items() if origin.startswith(PACKAGE)} == ASKED
