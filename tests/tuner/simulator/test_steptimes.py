"""Constants of step times: from files, from measurements, from a data sheet."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.errors import ModelConfigError, SimulationError
from kvserving_tuner.simulator.decoding import steps_until
from kvserving_tuner.simulator.estimates import estimated
from kvserving_tuner.simulator.steptimes import MeasuredStep, StepTimes, fitted

TIMES = StepTimes(0.005, 2e-5, 3e-6, 4e-13, 1e-9, 0.002)
LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}


def test_constants_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    TIMES.save(path)
    assert StepTimes.load(path) == TIMES


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "step times"),
        ({"base_seconds": 1}, "cache_byte_seconds"),
        ({**TIMES.to_json(), "speed": 1}, "speed"),
        ({**TIMES.to_json(), "base_seconds": "1"}, "base_seconds"),
        ({**TIMES.to_json(), "base_seconds": 0}, "base_seconds"),
        ({**TIMES.to_json(), "sequence_seconds": -1}, "sequence_seconds"),
        ({**TIMES.to_json(), "sequence_seconds": float("inf")}, "sequence_seconds"),
        ({**TIMES.to_json(), "sequence_seconds": float("nan")}, "sequence_seconds"),
    ],
)
def test_a_file_with_other_things_is_refused(tmp_path: Path, document: Any, field: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SimulationError) as refused:
        StepTimes.load(path)
    assert refused.value.field == field


def test_no_file_and_no_json_are_said(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="No such file"):
        StepTimes.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SimulationError, match="a JSON document"):
        StepTimes.load(tmp_path / "bad.json")


def step(tokens: float, pairs: float, decoding: float, cache_bytes: float) -> MeasuredStep:
    seconds = (
        TIMES.base_seconds
        + TIMES.prefill_token_seconds * tokens
        + TIMES.prefill_pair_seconds * pairs
        + TIMES.sequence_seconds * decoding
        + TIMES.cache_byte_seconds * cache_bytes
    )
    return MeasuredStep(seconds, tokens, pairs, decoding, cache_bytes)


STEPS = [
    step(tokens, tokens * tokens / 2, decoding, decoding * context * 131072)
    for tokens in (0, 200, 2000, 8000)
    for decoding in (0, 8, 64)
    for context in (100, 4000)
]


def test_a_fit_finds_the_constants_that_made_the_steps() -> None:
    found = fitted(STEPS, intake_seconds=0.002)
    for name, value in TIMES.to_json().items():
        assert found.to_json()[name] == pytest.approx(value, rel=1e-6), name


def test_what_was_never_measured_or_would_be_negative_is_zero() -> None:
    decodes = [step(0, 0, decoding, 0) for decoding in (1, 8, 64)]
    found = fitted(decodes)
    assert found.prefill_token_seconds == found.cache_byte_seconds == 0
    falling = [MeasuredStep(0.010, 0), MeasuredStep(0.009, 100), MeasuredStep(0.008, 200)]
    assert fitted(falling).prefill_token_seconds == 0
    assert fitted(falling).base_seconds == pytest.approx(0.009, rel=0.05)


@pytest.mark.parametrize("steps", [[], [MeasuredStep(0.0)]])
def test_no_measurement_is_no_fit(steps: list[MeasuredStep]) -> None:
    with pytest.raises(SimulationError):
        fitted(steps)


@pytest.mark.parametrize(
    ("sequences", "bytes_per_token", "milliseconds"),
    [
        (32, 131072, 9.3),
        (64, 131072, 12.1),
        (128, 131072, 17.3),
        (32, 65536, 8.4),
        (64, 65536, 10.1),
    ],
)
def test_estimates_are_near_what_kernel_tables_add_up_to(
    sequences: int, bytes_per_token: int, milliseconds: float
) -> None:
    """Sums of measured kernels for Llama 3.1 8B on one H100 at 2,000 tokens of context."""
    times = estimated("H100", LLAMA_8B, 16.06e9)
    seconds = times.base_seconds + sequences * times.sequence_seconds
    seconds += sequences * 2000 * bytes_per_token * times.cache_byte_seconds
    assert 1000 * seconds == pytest.approx(milliseconds, rel=0.07)


def test_estimates_need_a_known_gpu_and_a_whole_configuration() -> None:
    with pytest.raises(SimulationError, match="one of A10"):
        estimated("H1", LLAMA_8B, 16e9)
    with pytest.raises(ModelConfigError, match="num_hidden_layers"):
        estimated("h100", {"hidden_size": 4096}, 16e9)
    one, eight = (estimated("h100", LLAMA_8B, 16e9, devices) for devices in (1, 8))
    assert eight.cache_byte_seconds == pytest.approx(one.cache_byte_seconds / 8)
    assert eight.base_seconds > one.base_seconds / 8


@given(st.integers(1, 10**15), st.integers(1, 10**12), st.integers(0, 10**9))
def test_steps_until_is_the_fewest_that_last_so_long(wait: int, first: int, growth: int) -> None:
    def duration(steps: int) -> int:
        return steps * first + growth * (steps * (steps - 1) // 2)

    steps = steps_until(wait, first, growth)
    assert duration(steps) >= wait > duration(steps - 1)
