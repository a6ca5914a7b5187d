"""Memory for one request: what vLLM demands after it has loaded the weights, asked before."""

import json
import re
from typing import Any

import pytest

from kvserving_kernels.eviction import StreamingLLM
from kvserving_kernels.formats import LAYOUTS, layout_of
from kvserving_kernels.preflight.finding import Reason
from kvserving_kernels.preflight.host import Host
from kvserving_tuner.sizing.memory import Layout, device_bytes
from kvserving_tuner.sizing.shape import read_shape
from preflightkit import CPU, GPU, LLAMA, TOKEN_BYTES, found, plugin

FLAG = "--kv-cache-memory-bytes"
INT4_BYTES = layout_of("int4").page(128, 32).record_bytes * 2 * 4
"""Bytes of a block of 128 tokens."""


@pytest.mark.parametrize(
    ("arguments", "host", "needed"),
    [
        # One block more than the request's own: vLLM keeps one back.
        ("--max-model-len 1024", CPU, (8 + 1) * 128 * TOKEN_BYTES),
        # In whole blocks.
        ("--max-model-len 1025", CPU, (9 + 1) * 128 * TOKEN_BYTES),
        ("--max-model-len 1025 --block-size 32", CPU, (33 + 1) * 32 * TOKEN_BYTES),
        ("--max-model-len 1024 --block-size 16", GPU, (64 + 1) * 16 * TOKEN_BYTES),
        # A GPU's engine is told no block size: the smallest that it may choose.
        ("--max-model-len 1024", GPU, (64 + 1) * 16 * TOKEN_BYTES),
        # The model's own length.
        ("", CPU, (32 + 1) * 128 * TOKEN_BYTES),
        ("--dtype float32 --max-model-len 1024", CPU, 2 * (8 + 1) * 128 * TOKEN_BYTES),
        ("--dtype half --max-model-len 1024", CPU, (8 + 1) * 128 * TOKEN_BYTES),
        (
            "--kv-cache-dtype bfloat16 --max-model-len 1024",
            CPU,
            (8 + 1) * 128 * TOKEN_BYTES,
        ),
        ("--kv-cache-dtype fp8 --max-model-len 1024", GPU, (64 + 1) * 16 * TOKEN_BYTES // 2),
        # A format of our own, with the engine's block size and with one asked for.
        (plugin(kv_cache_dtype="int4") + " --max-model-len 1024", CPU, (8 + 1) * INT4_BYTES),
        (
            plugin(kv_cache_dtype="int4") + " --max-model-len 1024 --block-size 128",
            GPU,
            (8 + 1) * INT4_BYTES,
        ),
        # Two KV heads on two ranks, on four as copies; four layers on two stages, on three.
        ("--max-model-len 1024 -tp 2", CPU, (8 + 1) * 128 * TOKEN_BYTES // 2),
        ("--max-model-len 1024 --tensor-parallel-size=4", CPU, (8 + 1) * 128 * TOKEN_BYTES // 2),
        ("--max-model-len 1024 -pp 2", CPU, (8 + 1) * 128 * TOKEN_BYTES // 2),
        ("--max-model-len 1024 -pp 3", CPU, (8 + 1) * 128 * TOKEN_BYTES // 2),
        ("--max-model-len 1024 -dp 2", CPU, (8 + 1) * 128 * TOKEN_BYTES),
    ],
)
def test_a_byte_too_few_is_refused_and_what_is_said_to_work_works(
    arguments: str, host: Host, needed: int
) -> None:
    assert found(f"m {arguments} {FLAG} {needed}", host) is None
    finding = found(f"m {arguments} {FLAG} {needed - 1}", host)
    assert finding is not None
    assert (finding.field, finding.reason) == (FLAG, Reason.KV_MEMORY_TOO_SMALL)
    assert f"{needed} bytes" in finding.message
    # The other way out is as good.
    fitting = re.search(r"lower --max-model-len to (?:at most )?(\d+)", finding.message)
    assert fitting is not None
    shorter = f"m {arguments} {FLAG} {needed - 1} --max-model-len "
    assert found(shorter + fitting[1], host) is None
    assert found(shorter + str(int(fitting[1]) + 1), host) is not None


@pytest.mark.parametrize("dtype", sorted(LAYOUTS))
@pytest.mark.parametrize("block", [64, 128])
def test_every_format_of_our_own_is_counted_by_its_own_pages(dtype: str, block: int) -> None:
    blocks = -(-1000 // block) + 1
    needed = blocks * layout_of(dtype).page(block, 32).record_bytes * 2 * 4
    for host in (CPU, GPU):
        arguments = f"m {plugin(kv_cache_dtype=dtype)} --block-size {block} --max-model-len 1000"
        assert found(f"{arguments} {FLAG} {needed}", host) is None
        assert found(f"{arguments} {FLAG} {needed - 1}", host) is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3", *sorted(LAYOUTS)])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("length", [64, 1000, 4096])
def test_what_is_demanded_is_what_the_plan_computes_and_one_block(
    dtype: str, tensor: int, length: int
) -> None:
    layout = Layout(dtype, block_size=64, tensor_parallel=tensor)
    planned = device_bytes(read_shape(LLAMA), layout, length)
    block = device_bytes(read_shape(LLAMA), layout, 64)
    setting = f"--kv-cache-dtype {dtype}" if dtype not in LAYOUTS else plugin(kv_cache_dtype=dtype)
    arguments = f"m {setting} --block-size 64 -tp {tensor} --max-model-len {length} {FLAG}"
    assert found(f"{arguments} {planned + block}", GPU) is None
    assert found(f"{arguments} {planned + block - 1}", GPU) is not None


def test_memory_for_no_length_at_all_says_so() -> None:
    finding = found(f"m {FLAG} {128 * TOKEN_BYTES}")
    assert finding is not None
    assert "no --max-model-len would fit" in finding.message


def test_on_a_cpu_the_variable_takes_the_flags_place() -> None:
    arguments = f"m --max-model-len 1024 {FLAG}"
    space = Host("CPU", "0.32.0", None, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert found(f"{arguments} 1", space) is None
    huge = {**LLAMA, "num_hidden_layers": 4096, "head_dim": 256}
    finding = found(f"{arguments} {1 << 60}", space, huge)
    assert finding is not None
    assert finding.field == "VLLM_CPU_KVCACHE_SPACE"
    # 9 blocks of 128 tokens of 8 MiB are 9 GiB.
    assert "(1 GiB)" in finding.message
    assert "expected 9 GiB" in finding.message
    gpu = Host("NVIDIA", "0.32.0", None, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert found(f"{arguments} 1", gpu) is not None


@pytest.mark.parametrize("value", ["0.5", "4GiB", "-1"])
def test_the_variable_takes_whole_gibibytes(value: str) -> None:
    finding = found("m", Host("CPU", "0.32.0", None, {"VLLM_CPU_KVCACHE_SPACE": value}))
    assert finding is not None
    assert (finding.field, finding.reason) == (
        "VLLM_CPU_KVCACHE_SPACE",
        Reason.ENVIRONMENT_INVALID,
    )
    assert repr(value) in finding.message


def test_blocks_that_are_given_take_the_memorys_place() -> None:
    arguments = f"m --max-model-len 1024 {FLAG} 1 --num-gpu-blocks-override"
    assert found(f"{arguments} 9") is None
    finding = found(f"{arguments}=8")
    assert finding is not None
    assert finding.field == "--num-gpu-blocks-override"
    assert "(8)" in finding.message
    assert "expected 9 for" in finding.message


POLICY = {"policy": "StreamingLLM", "window_tokens": 256}
# The sinks' block and five more: 256 tokens of window, 256 of one step; and the one kept back.
PEAK = 6 + 1


@pytest.mark.parametrize(
    ("blocks", "step", "refused"),
    [
        (PEAK, "--max-num-batched-tokens 256", False),
        (PEAK - 1, "--max-num-batched-tokens 256", True),
        # The engine's own: 2048 tokens, more than the whole context.
        (9, "", False),
        (8, "", True),
        # Or as many as all sequences have.
        (8, "--max-num-seqs 1 --max-model-len 896", False),
        (7, "--max-num-seqs 1 --max-model-len 896", True),
    ],
)
def test_with_eviction_a_request_needs_its_peak_and_not_its_length(
    blocks: int, step: str, refused: bool
) -> None:
    arguments = f"m --max-model-len 1024 {FLAG} {blocks * 128 * TOKEN_BYTES} {step}"
    assert (found(f"{arguments} {plugin(eviction=POLICY)}") is not None) is refused


def test_the_peak_is_what_the_scheduler_admits_by() -> None:
    assert StreamingLLM(4, 256).peak_blocks(1024, 256, 128) + 1 == PEAK


def test_a_format_and_eviction_count_together() -> None:
    both = plugin(kv_cache_dtype="int4", eviction=POLICY)
    arguments = f"m --max-model-len 1024 --max-num-batched-tokens 256 {both} {FLAG}"
    assert found(f"{arguments} {PEAK * INT4_BYTES}") is None
    assert found(f"{arguments} {PEAK * INT4_BYTES - 1}") is not None


@pytest.mark.parametrize(
    "extra",
    [
        {"sliding_window": 512},
        {"layer_types": ["sliding_attention"] * 4},
        {"layer_types": ["full_attention"]},
        {"kv_lora_rank": 64},
        {"num_kv_shared_layers": 2},
        {"layers_block_type": ["mamba", "attention"]},
        {"text_config": {"hidden_size": 1}},
        # Encoders have no cache.
        {"architectures": ["BertModel"]},
        # The model says itself how its cache is kept.
        {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}},
        {"quantization_config": {"quant_method": "modelopt"}},
    ],
)
def test_a_structure_that_is_not_understood_is_not_judged(extra: dict[str, Any]) -> None:
    assert found(f"m {FLAG} 1 --max-model-len 64", CPU, {**LLAMA, **extra}) is None


@pytest.mark.parametrize(
    "arguments",
    [
        "--max-model-len auto",
        "--max-model-len 8k",
        "--kv-cache-dtype nvfp4",
        "--decode-context-parallel-size 2 -tp 2",
        '--hf-overrides={"num_hidden_layers":1}',
    ],
)
def test_what_the_engine_resolves_itself_is_not_judged(arguments: str) -> None:
    assert found(f"m {FLAG} 1 {arguments}", GPU) is None


@pytest.mark.parametrize(
    ("extra", "layers"),
    [
        # Models with the same layers said in other ways.
        ({"layer_types": ["full_attention"] * 4}, 4),
        ({"sliding_window": None}, 4),
        ({"sliding_window": 4096, "use_sliding_window": False}, 4),
        ({"sliding_window": 4096, "model_type": "qwen2"}, 4),
        ({"torch_dtype": "float32"}, 4),
        ({"torch_dtype": None, "dtype": "bfloat16"}, 4),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4),
        # Of mixed ones, the layers that surely keep all tokens.
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 512}, 2),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 1),
    ],
)
def test_layers_that_surely_keep_every_token_are_counted(
    extra: dict[str, Any], layers: int
) -> None:
    needed = (32 + 1) * 128 * TOKEN_BYTES * layers // 4
    config = {**LLAMA, **extra}
    assert found(f"m {FLAG} {needed}", CPU, config) is None
    finding = found(f"m {FLAG} {needed - 1}", CPU, config)
    assert finding is not None
    # A bound that the engine may exceed is not said to be all that it takes.
    assert ("at least" in finding.message) is (layers < 4)


def test_a_multimodal_models_language_part_is_counted() -> None:
    nested = {
        "architectures": ["XForConditionalGeneration"],
        "text_config": {**LLAMA, "architectures": None},
    }
    needed = (32 + 1) * 128 * TOKEN_BYTES
    assert found(f"m {FLAG} {needed}", CPU, nested) is None
    assert found(f"m {FLAG} {needed - 1}", CPU, nested) is not None


def test_settings_that_are_no_json_are_left_to_vllm() -> None:
    assert found("m --additional-config={") is None
    assert found(f"m --additional-config={json.dumps([])}") is None
