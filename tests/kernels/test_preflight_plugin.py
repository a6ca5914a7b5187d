"""Preflight on the plugin's settings and on parallelism, which a GPU's pod cannot be asked."""

from typing import Any

import pytest

from kvserving_kernels.preflight.finding import Reason
from kvserving_kernels.preflight.host import Host, parse_memory_nodes
from preflightkit import CPU, GPU, LLAMA, found, plugin

INT4 = plugin(kv_cache_dtype="int4")
POLICY = {"policy": "StreamingLLM", "window_tokens": 256}
EVICT = plugin(eviction=POLICY)
EVICTION = "kvserving.eviction"
DTYPE = "kvserving.kv_cache_dtype"


def _window(tokens: int, sinks: int = 4) -> str:
    return plugin(eviction={**POLICY, "window_tokens": tokens, "sink_tokens": sinks})


@pytest.mark.parametrize("host", [CPU, GPU])
@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        (plugin(eviction={"policy": "H2O"}), f"{EVICTION}.policy", "not available yet"),
        (plugin(eviction={"policy": "SnapKV"}), f"{EVICTION}.policy", "not available yet"),
        (plugin(eviction={"policy": "Nope"}), f"{EVICTION}.policy", '"Nope"'),
        (plugin(eviction={"policy": "StreamingLLM"}), f"{EVICTION}.window_tokens", "null"),
        (plugin(kv_cache_dtype="nuq4"), DTYPE, "nuq4"),
        (plugin(unheard_of=1), "kvserving.unheard_of", "no field but"),
    ],
)
def test_settings_that_the_plugin_does_not_take_are_refused(
    settings: str, field: str, text: str, host: Host
) -> None:
    finding = found(f"m {settings}", host)
    assert finding is not None
    assert finding.field == field
    assert text in finding.message


@pytest.mark.parametrize(
    ("settings", "field", "reason"),
    [
        (INT4, DTYPE, Reason.KV_DTYPE_UNSUPPORTED),
        (EVICT, EVICTION, Reason.EVICTION_UNSUPPORTED),
    ],
)
@pytest.mark.parametrize(
    ("arguments", "extra", "text"),
    [
        ("", {"kv_lora_rank": 512, "model_type": "deepseek_v3"}, "MLA"),
        ("", {"sliding_window": 512}, "sliding-window"),
        (
            "",
            {"sliding_window": 512, "use_sliding_window": True, "model_type": "qwen2"},
            "sliding-window",
        ),
        ('--speculative-config={"method":"ngram"}', {}, "speculative"),
        ("--spec-method=ngram", {}, "speculative"),
        ("--kv-transfer-config={}", {}, "--kv-transfer-config"),
        ("--kv-transfer-config.kv_connector=x", {}, "--kv-transfer-config"),
        ("--kv-offloading-size 4", {}, "--kv-offloading-size"),
        ("--kv_offloading_size=4", {}, "--kv-offloading-size"),
        ("-tp 4 --decode-context-parallel-size 2", {}, "context parallelism"),
        ("--kv-cache-dtype-skip-layers 0 1", {}, "--kv-cache-dtype-skip-layers"),
        ("", {"attention_chunk_size": 8192}, "full attention in every layer"),
        ("", {"is_encoder_decoder": True}, "full attention in every layer"),
    ],
)
def test_what_needs_vllms_own_cache_is_refused_before_any_pod(
    settings: str, field: str, reason: Reason, arguments: str, extra: dict[str, Any], text: str
) -> None:
    config = {**LLAMA, **extra}
    finding = found(f"m {settings} {arguments}", GPU, config)
    assert finding is not None
    assert (finding.field, finding.reason) == (field, reason)
    assert text in finding.message
    # Without the plugin's settings it is vLLM's business.
    assert found(f"m {arguments}", GPU, config) is None


@pytest.mark.parametrize(
    ("arguments", "extra", "environment"),
    [
        # Models that look like it, and keep plain keys and values.
        ("", {"kv_lora_rank": 256, "model_type": "minicpm3"}, {}),
        ("", {"kv_lora_rank": 512, "model_type": "deepseek_v2"}, {"VLLM_MLA_DISABLE": "1"}),
        ("", {"sliding_window": 4096, "use_sliding_window": False}, {}),
        ("--disable-sliding-window", {"sliding_window": 512}, {}),
    ],
)
def test_what_only_looks_like_it_is_not_refused(
    arguments: str, extra: dict[str, Any], environment: dict[str, str]
) -> None:
    host = Host("NVIDIA", "0.32.0", None, environment)
    assert found(f"m {INT4} {arguments}", host, {**LLAMA, **extra}) is None


@pytest.mark.parametrize(
    ("settings", "backend", "host", "refused"),
    [
        (EVICT, "TRITON_ATTN", GPU, True),
        (EVICT, "FLASHINFER", GPU, True),
        (EVICT, "FLASH_ATTN", GPU, False),
        (EVICT, "flash_attn", GPU, False),
        (EVICT, "auto", GPU, False),
        # Formats of our own have kernels of our own; CPUs have one backend.
        (plugin(kv_cache_dtype="int4", eviction=POLICY), "TRITON_ATTN", GPU, False),
        (EVICT, "TRITON_ATTN", CPU, False),
    ],
)
def test_eviction_needs_a_backend_that_can(
    settings: str, backend: str, host: Host, refused: bool
) -> None:
    finding = found(f"m {settings} --attention-backend={backend}", host)
    assert (finding is not None) is refused
    if finding is not None:
        assert finding.field == EVICTION
        assert "CPU_ATTN, FLASH_ATTN" in finding.message
        assert backend in finding.message


@pytest.mark.parametrize(
    ("arguments", "host", "field"),
    [
        (_window(127), CPU, "window_tokens"),
        (_window(128), CPU, None),
        (f"{_window(63)} --block-size 64", GPU, "window_tokens"),
        (f"{_window(64)} --block-size 64", GPU, None),
        # The least block that a GPU's engine may choose, which may be larger.
        (_window(15), GPU, "window_tokens"),
        (_window(16), GPU, None),
        (f"{_window(1025)} --max-model-len 1024", CPU, "window_tokens"),
        (f"{_window(1024)} --max-model-len 1024", CPU, None),
        (f"{_window(1025)} --max-model-len 1024 --block-size 64", GPU, "window_tokens"),
        # The model's own length.
        (_window(4097), CPU, "window_tokens"),
        (_window(4096), CPU, None),
        (f"{_window(512, sinks=1025)} --max-model-len 1024", CPU, "sink_tokens"),
    ],
)
def test_sinks_and_window_lie_between_block_and_context(
    arguments: str, host: Host, field: str | None
) -> None:
    finding = found(f"m {arguments}", host)
    assert (None if finding is None else finding.field) == (field and f"{EVICTION}.{field}")


def test_a_window_smaller_than_a_block_of_the_format_is_refused() -> None:
    both = {**POLICY, "window_tokens": 16}
    assert found(f"m {plugin(kv_cache_dtype='int4', eviction=both)}", GPU) is not None
    assert found(f"m {plugin(kv_cache_dtype='int8', eviction=both)}", GPU) is None


TENSOR, PIPELINE = "--tensor-parallel-size", "--pipeline-parallel-size"


@pytest.mark.parametrize(
    ("arguments", "extra", "field"),
    [
        (f"{TENSOR} 2", {}, None),
        # Copies of two KV heads on four and eight ranks.
        (f"{TENSOR} 4", {}, None),
        (f"{TENSOR}=8", {}, None),
        ("-tp 3", {}, TENSOR),
        ("-tp 16", {}, TENSOR),
        # The heads can be divided by 4, ten KV heads cannot.
        (f"{TENSOR} 4", {"num_attention_heads": 40, "num_key_value_heads": 10}, TENSOR),
        (f"{TENSOR} 5", {"num_attention_heads": 40, "num_key_value_heads": 10}, None),
        (f"{TENSOR} 3", {"num_attention_heads": 12, "num_key_value_heads": 2}, TENSOR),
        # Latent attention has no KV heads to divide.
        (
            f"{TENSOR} 4",
            {"num_attention_heads": 40, "num_key_value_heads": 10, "kv_lora_rank": 512},
            None,
        ),
        (f"{PIPELINE} 4", {}, None),
        (f"{PIPELINE} 5", {}, PIPELINE),
    ],
)
def test_parts_that_the_model_cannot_be_divided_into_are_refused(
    arguments: str, extra: dict[str, Any], field: str | None
) -> None:
    finding = found(f"m {arguments}", GPU, {**LLAMA, **extra})
    assert (None if finding is None else finding.field) == field


def test_the_parts_that_would_do_are_named() -> None:
    extra = {"num_attention_heads": 40, "num_key_value_heads": 10}
    finding = found(f"m {TENSOR} 4", GPU, {**LLAMA, **extra})
    assert finding is not None
    assert "one of 1, 2, 5, 10, got 4" in finding.message
    for size in (1, 2, 5, 10):
        assert found(f"m {TENSOR} {size}", GPU, {**LLAMA, **extra}) is None


@pytest.mark.parametrize(
    ("arguments", "gpus", "field"),
    [
        ("", "1", None),
        ("-tp 2", "1", TENSOR),
        ("-tp 2 -pp 2", "4", None),
        ("--data-parallel-size 2", "1", "--data-parallel-size"),
        ("--data-parallel-size 2", "2", None),
        # Nobody says how many there are.
        ("-tp 2", "", None),
    ],
)
def test_more_ranks_than_gpus_are_refused(arguments: str, gpus: str, field: str | None) -> None:
    environment = {"KVSERVING_GPUS": gpus}
    finding = found(f"m {arguments}", Host("NVIDIA", "0.32.0", None, environment), LLAMA)
    assert (None if finding is None else finding.field) == field
    # An engine for CPUs does not look at GPUs.
    assert found(f"m {arguments}", Host("CPU", "0.32.0", None, environment), LLAMA) is None


@pytest.mark.parametrize(
    ("arguments", "nodes", "environment", "field"),
    [
        ("-tp 2", 2, {}, None),
        ("-tp 2", 1, {}, TENSOR),
        ("-pp 2", 1, {}, PIPELINE),
        ("-tp 2 -pp 2", 2, {}, TENSOR),
        ("-tp 2", None, {}, None),
        ("-tp 2", 1, {"VLLM_CPU_OMP_THREADS_BIND": "auto"}, TENSOR),
        ("-tp 2", 1, {"VLLM_CPU_OMP_THREADS_BIND": "0-3|4-7"}, None),
        ("-tp 2", 1, {"VLLM_CPU_SIM_MULTI_NUMA": "1"}, None),
    ],
)
def test_a_cpus_workers_need_a_memory_node_each(
    arguments: str, nodes: int | None, environment: dict[str, str], field: str | None
) -> None:
    host = Host("CPU", "0.32.0", frozenset({"avx2"}), environment, nodes)
    finding = found(f"m {arguments}", host)
    assert (None if finding is None else finding.field) == field


@pytest.mark.parametrize(
    ("text", "nodes"), [("0", 1), ("0-1", 2), ("0,2-3", 3), ("0-3,8-11", 8), ("none", None)]
)
def test_memory_nodes_are_counted(text: str, nodes: int | None) -> None:
    status = f"Mems_allowed:\t00000001\nMems_allowed_list:\t{text}\nThreads:\t1\n"
    assert parse_memory_nodes(status) == nodes
