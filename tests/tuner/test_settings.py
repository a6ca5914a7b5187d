"""Settings that make no sense are refused with the field's name."""

import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from kvserving_tuner import settings
from kvserving_tuner.rules import Guardrails, LadderRules, RegimeRules
from kvserving_tuner.settings import Bounds, Slo, Thresholds, TuningSettings, Windows


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        (Bounds, {"minimum": 0}, "minimum"),
        (Bounds, {"minimum": 8, "maximum": 4}, "maximum: expected at least minimum"),
        (Windows, {"storm_seconds": 90}, "full_seconds: expected at least storm_seconds"),
        (Windows, {"minimum_scrapes": 1}, "minimum_scrapes"),
        (Slo, {"percentile": 101}, "percentile"),
        (Slo, {"ttft_ms": -1}, "ttft_ms"),
        (Thresholds, {"storm_kv_usage": 1.5}, "storm_kv_usage"),
        (TuningSettings, {"mode": "Always"}, "mode"),
        (TuningSettings, {"modus": "Auto"}, "modus"),
    ],
)
def test_nonsense_is_refused(model: type[BaseModel], values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        model.model_validate(values)


def test_the_defaults_are_those_people_are_told() -> None:
    default = TuningSettings()
    assert default.mode is settings.Mode.OFF
    cooldowns = default.cooldowns
    assert (cooldowns.live_seconds, cooldowns.dtype_seconds) == (60, 600)
    assert cooldowns.restart_seconds == 1800
    assert default.windows.storm_seconds <= 20
    assert default.windows.minimum_scrapes == 3


def test_every_threshold_says_why() -> None:
    groups = (
        Thresholds, settings.CapRules, Windows, settings.Cooldowns, LadderRules, Guardrails,
        RegimeRules,
    )  # fmt: skip
    for model in groups:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_the_package_runs_without_torch_pandas_and_kubernetes() -> None:
    code = (
        "import sys, kvserving_tuner.cli, kvserving_tuner.sources.prometheus;"
        "import kvserving_tuner.commands.plan, kvserving_tuner.commands.watch;"
        "import kvserving_tuner.commands.tune, kvserving_tuner.commands.replay;"
        "print([m for m in ('torch', 'pandas', 'kubernetes', 'kopf', 'vllm') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
