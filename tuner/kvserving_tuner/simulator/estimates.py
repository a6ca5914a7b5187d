"""Step times nobody has measured: what a GPU's bandwidth and speed allow, with rules of thumb.

A step reads all weights once and the context of each decoding sequence; a prompt's tokens cost
arithmetic. For Llama 3.1 8B on one H100 at 2,000 tokens of context this gives 9.4, 12.4 and 18.2 ms
with 32, 64 and 128 sequences; the kernel times of AIConfigurator's tables add up to 9.3, 12.1 and
17.3 ms. Measured constants, where there are some, are better.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvserving_tuner.errors import ModelConfigError, SimulationError
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.sizing.families import NESTED

BANDWIDTH_SHARE: Final = 0.9
"""Of the memory bandwidth, in kernels that only read."""
ARITHMETIC_SHARE: Final = 0.6
"""Of the dense 16-bit rate, in the products of a prefill."""
STEP_SECONDS: Final = 0.0012
"""Scheduling, launching and sampling that overlap with nothing."""
SEQUENCE_SECONDS: Final = 4e-6
"""The same for each sequence."""
EXCHANGE_SECONDS: Final = 30e-6
"""Two reductions over the devices in each layer."""


@dataclass(frozen=True)
class Speed:
    """A GPU's data sheet: bytes of memory and dense 16-bit operations per second."""

    bandwidth: float
    operations: float


SPEEDS: Final[Mapping[str, Speed]] = {
    "A10": Speed(600e9, 125e12),
    "A100-40GB": Speed(1555e9, 312e12),
    "A100-80GB": Speed(2039e9, 312e12),
    "H100": Speed(3350e9, 989e12),
    "H200": Speed(4800e9, 989e12),
    "L4": Speed(300e9, 121e12),
    "L40S": Speed(864e9, 362e12),
}


def estimated(
    gpu: str, config: Mapping[str, Any], weights_bytes: float, devices: int = 1
) -> StepTimes:
    """Step times of a model with 16-bit weights on `devices` GPUs in tensor parallel.

    SimulationError names the GPUs that are known, ModelConfigError what a configuration lacks.
    """
    by_lower = {name.lower(): speed for name, speed in SPEEDS.items()}
    speed = by_lower.get(gpu.lower())
    if speed is None:
        raise SimulationError("gpu", f"one of {', '.join(SPEEDS)}", gpu)
    text = next((config[name] for name in NESTED if isinstance(config.get(name), Mapping)), config)
    layers = _whole(text, "num_hidden_layers")
    width = _whole(text, "hidden_size")
    if isinstance(text.get("head_dim"), int):
        width = _whole(text, "num_attention_heads") * _whole(text, "head_dim")
    reading = speed.bandwidth * BANDWIDTH_SHARE * devices
    computing = speed.operations * ARITHMETIC_SHARE * devices
    exchange = EXCHANGE_SECONDS * layers if devices > 1 else 0.0
    return StepTimes(
        base_seconds=weights_bytes / reading + STEP_SECONDS + exchange,
        # One multiplication and one addition for each weight, which has two bytes.
        prefill_token_seconds=weights_bytes / computing,
        prefill_pair_seconds=4 * layers * width / computing,
        sequence_seconds=SEQUENCE_SECONDS,
        cache_byte_seconds=1 / reading,
    )


def _whole(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ModelConfigError(name, "a whole number above 0", str(value))
