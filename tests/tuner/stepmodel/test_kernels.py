"""Step times from measured kernels."""

import pytest

from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.estimates import SPEEDS, STEP_SECONDS
from kvserving_tuner.sizing.gpus import MEMORY_MIB
from kvserving_tuner.stepmodel.kernels import has_kernels, measured_kernels, step_times
from tunerkit.models import LLAMA_8B

MODEL = {**LLAMA_8B, "vocab_size": 128_256}
WEIGHTS = 2 * 8.03e9
KV_BYTES = 131_072


def decode_seconds(gpu: str, sequences: int, devices: int = 1, dtype: str = "bfloat16") -> float:
    """A step of so many sequences with 2,000 tokens of context each."""
    times = step_times(gpu, MODEL, WEIGHTS, devices, dtype)
    size = KV_BYTES if dtype == "bfloat16" else KV_BYTES / 2
    read = sequences * 2000 * size
    return times.base_seconds + sequences * times.sequence_seconds + read * times.cache_byte_seconds


@pytest.mark.parametrize(("sequences", "reference"), [(32, 9.3), (64, 12.1), (128, 17.3)])
def test_a_decode_step_is_the_sum_of_its_kernels(sequences: int, reference: float) -> None:
    # The tuning reference, B.3, of the same tables, without what an engine does besides.
    found = 1000 * (decode_seconds("H100", sequences) - STEP_SECONDS)
    assert found == pytest.approx(reference, rel=0.08)


@pytest.mark.parametrize(("sequences", "reference"), [(32, 8.4), (64, 10.1), (128, 13.2)])
def test_8_bits_are_read_in_less_time(sequences: int, reference: float) -> None:
    found = 1000 * (decode_seconds("H100", sequences, dtype="fp8_e4m3") - STEP_SECONDS)
    assert found == pytest.approx(reference, rel=0.12)


def test_gpus_are_named_alike_everywhere() -> None:
    assert measured_kernels().keys() <= MEMORY_MIB.keys()
    assert has_kernels("h100")
    assert not has_kernels("T4")
    with pytest.raises(SimulationError, match="gpu: expected one of A100-80GB"):
        step_times("T4", MODEL, WEIGHTS)


@pytest.mark.parametrize("gpu", sorted(measured_kernels().keys() & SPEEDS.keys()))
def test_no_kernel_is_faster_than_its_gpu(gpu: str) -> None:
    kernels, speed = measured_kernels()[gpu], SPEEDS[gpu]
    assert kernels.weight_byte_seconds > 1 / speed.bandwidth
    assert min(kernels.cache_byte_seconds.values()) > 1 / speed.bandwidth
    assert kernels.large_operation_seconds > 1 / speed.operations
    assert kernels.prefill_operation_seconds > 1 / speed.operations


def test_more_devices_take_less_time_each_but_exchange() -> None:
    one, two, eight = (decode_seconds("H100", 64, devices) for devices in (1, 2, 8))
    assert one / 2 < two < one
    assert eight < two
    # A number of devices that nobody measured is as the next one that was.
    assert decode_seconds("H100", 64, 3) > eight


def test_a_gpu_that_was_measured_alone_has_a_rule_of_thumb() -> None:
    assert not measured_kernels()["L40S"].exchange_seconds
    assert decode_seconds("L40S", 64, 2) < decode_seconds("L40S", 64)


def test_a_configuration_that_says_too_little_is_refused() -> None:
    with pytest.raises(SimulationError, match="num_hidden_layers"):
        step_times("H100", {"hidden_size": 4096}, WEIGHTS)
