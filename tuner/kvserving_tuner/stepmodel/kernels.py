"""Step times of a model on a GPU, from kernels that were measured on it.

`kernels.json` has a few constants for each GPU, fitted by `benchmarks/fit_kernels.py` to the tables
of AIConfigurator. What is not in those tables, scheduling and sampling, is a rule of thumb.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.estimates import EXCHANGE_SECONDS, SEQUENCE_SECONDS, STEP_SECONDS
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.sizing.families import language_model

ELEMENT_BYTES: Final = 2
PRODUCTS: Final = 4
"""Matrix products of a layer: of queries, keys and values; of the output; two of the MLP."""
EXCHANGES: Final = 2
"""Reductions over the devices in a layer."""
EIGHT_BITS: Final = "fp8"


@dataclass(frozen=True)
class Kernels:
    """Constants of one GPU, in seconds; `benchmarks/fit_kernels.py` says what each is."""

    kernel_seconds: float
    weight_byte_seconds: float
    small_operation_seconds: float
    large_operation_seconds: float
    attend_kernel_seconds: float
    attend_sequence_seconds: float
    prefill_operation_seconds: float
    cache_byte_seconds: Mapping[str, float]
    exchange_seconds: Mapping[str, float]
    exchange_byte_seconds: Mapping[str, float]


@cache
def measured_kernels() -> Mapping[str, Kernels]:
    """Constants by GPU, under the names of `sizing.gpus`."""
    text = files("kvserving_tuner.stepmodel").joinpath("kernels.json").read_text()
    names = Kernels.__dataclass_fields__
    gpus = json.loads(text)["gpus"]
    return {
        gpu: Kernels(**{name: value for name, value in found.items() if name in names})
        for gpu, found in gpus.items()
    }


def has_kernels(gpu: str) -> bool:
    """Whether kernels of a GPU were measured."""
    return gpu.lower() in {name.lower() for name in measured_kernels()}


def step_times(
    gpu: str,
    config: Mapping[str, Any],
    weights_bytes: float,
    devices: int = 1,
    dtype: str = "bfloat16",
) -> StepTimes:
    """Step times of a dense model with 16-bit weights, in tensor parallel on `devices` GPUs.

    Formats of 8 bits and fewer are read as fast as fp8, byte by byte. SimulationError names the
    GPUs that are known, and what a configuration lacks.
    """
    by_lower = {name.lower(): kernels for name, kernels in measured_kernels().items()}
    kernels = by_lower.get(gpu.lower())
    if kernels is None:
        raise SimulationError("gpu", f"one of {', '.join(measured_kernels())}", gpu)
    text = language_model(config)
    layers, hidden = _whole(text, "num_hidden_layers"), _whole(text, "hidden_size")
    width = hidden
    if isinstance(text.get("head_dim"), int):
        width = _whole(text, "num_attention_heads") * _whole(text, "head_dim")
    read = weights_bytes - _input_embeddings(text, hidden)
    # A multiplication and an addition for each weight of two bytes.
    operations = read / devices
    exchange, exchange_byte = _exchange(kernels, devices)
    fixed = PRODUCTS * kernels.kernel_seconds + kernels.attend_kernel_seconds
    per_row = EXCHANGES * layers * hidden * ELEMENT_BYTES * exchange_byte
    by_format = kernels.cache_byte_seconds
    cache_byte = by_format["bfloat16"]
    if dtype not in ("auto", "bfloat16", "float16", "float32"):
        cache_byte = by_format.get(EIGHT_BITS, cache_byte)
    return StepTimes(
        base_seconds=STEP_SECONDS
        + layers * (fixed + EXCHANGES * exchange)
        + read / devices * kernels.weight_byte_seconds,
        prefill_token_seconds=operations * kernels.large_operation_seconds + per_row,
        prefill_pair_seconds=4 * layers * width / devices * kernels.prefill_operation_seconds,
        sequence_seconds=SEQUENCE_SECONDS
        + operations * kernels.small_operation_seconds
        + layers * kernels.attend_sequence_seconds
        + per_row,
        cache_byte_seconds=cache_byte / devices,
    )


def _exchange(kernels: Kernels, devices: int) -> tuple[float, float]:
    """Seconds of a reduction and of each of its bytes, by the nearest number of devices above."""
    if devices == 1:
        return 0.0, 0.0
    measured = sorted(map(int, kernels.exchange_seconds))
    if not measured:
        return EXCHANGE_SECONDS / EXCHANGES, 0.0
    known = next((each for each in measured if each >= devices), measured[-1])
    return kernels.exchange_seconds[str(known)], kernels.exchange_byte_seconds[str(known)]


def _input_embeddings(text: Mapping[str, Any], hidden: int) -> int:
    """Bytes of weights of which a step reads a row for each token alone."""
    vocabulary = text.get("vocab_size")
    if text.get("tie_word_embeddings") is True or not isinstance(vocabulary, int):
        return 0
    return vocabulary * hidden * ELEMENT_BYTES


def _whole(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise SimulationError(name, "a whole number above 0", str(value))
