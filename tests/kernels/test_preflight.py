"""Preflight: what speaks against a start is named by flag, on one line, before vLLM is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvserving_kernels.preflight import __main__ as preflight
from kvserving_kernels.preflight.arguments import read_settings, strip_command
from kvserving_kernels.preflight.checks import Host, check
from kvserving_kernels.preflight.engine import parser_finding, refusal
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.model import ModelConfig, parse_config, read_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "head_dim": 32,
}
CPU = Host("CPU", "0.32.0", frozenset({"avx2"}), {})
GPU = Host("NVIDIA", "0.32.0", None, {})


def _check(arguments: str, host: Host = CPU, config: Mapping[str, Any] = LLAMA) -> Finding | None:
    return check(read_settings(arguments.split()), host, parse_config(config))


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        ("/models/x --max-num-seqs 8", "/models/x"),
        ("--max-num-seqs 8 --model /models/x", "/models/x"),
        ("--model=/models/x", "/models/x"),
        ("--max-num-seqs 8", None),
    ],
)
def test_the_model_is_positional_or_a_flag(arguments: str, model: str | None) -> None:
    assert read_settings(arguments.split()).model == model


@pytest.mark.parametrize(
    "arguments",
    ["m --kv-cache-dtype fp8_e4m3", "m --kv-cache-dtype=fp8_e4m3", "m --kv_cache_dtype=fp8_e4m3"],
)
def test_a_flag_is_found_in_each_of_its_spellings(arguments: str) -> None:
    assert read_settings(arguments.split()).kv_cache_dtype == "fp8_e4m3"


def test_the_last_mention_of_a_flag_counts() -> None:
    arguments = ["m", "--kv-cache-dtype=fp8_e4m3", "--kv-cache-dtype", "auto"]
    assert read_settings(arguments).kv_cache_dtype == "auto"


@pytest.mark.parametrize("prefix", ["", "-- ", "vllm serve ", "-- vllm serve ", "serve "])
def test_a_whole_command_line_may_be_given(prefix: str) -> None:
    assert strip_command(f"{prefix}m --flag".split()) == ["m", "--flag"]


@pytest.mark.parametrize(
    ("arguments", "host", "field", "reason"),
    [
        ("m --kv-cache-dtype fp8_e4m3", CPU, "--kv-cache-dtype", Reason.KV_DTYPE_UNSUPPORTED),
        ("m --kv-cache-dtype fp8", CPU, "--kv-cache-dtype", Reason.KV_DTYPE_UNSUPPORTED),
        ("m --kv-cache-dtype nvfp4", CPU, "--kv-cache-dtype", Reason.KV_DTYPE_UNSUPPORTED),
        ("m --kv-cache-dtype nuq4", GPU, "--kv-cache-dtype", Reason.KV_DTYPE_UNSUPPORTED),
        ("m --kv-cache-dtype float16", CPU, "--kv-cache-dtype", Reason.KV_DTYPE_UNSUPPORTED),
        (
            "m --dtype float32 --kv-cache-dtype bfloat16",
            CPU,
            "--kv-cache-dtype",
            Reason.KV_DTYPE_UNSUPPORTED,
        ),
        (
            "m --max-num-seqs 64 --max-num-batched-tokens 32",
            GPU,
            "--max-num-batched-tokens",
            Reason.BATCHED_TOKENS_TOO_FEW,
        ),
        ("m --block-size 16", CPU, "--block-size", Reason.BLOCK_SIZE_UNSUPPORTED),
        ("m --block-size 0", CPU, "--block-size", Reason.BLOCK_SIZE_UNSUPPORTED),
        ("m --max-model-len 4097", GPU, "--max-model-len", Reason.MODEL_LENGTH_TOO_LONG),
        (
            "m --max-model-len 1024 --kv-cache-memory-bytes 1048575",
            CPU,
            "--kv-cache-memory-bytes",
            Reason.KV_MEMORY_TOO_SMALL,
        ),
    ],
)
def test_what_speaks_against_a_start_is_named(
    arguments: str, host: Host, field: str, reason: Reason
) -> None:
    found = _check(arguments, host)
    assert found is not None
    assert (found.field, found.reason) == (field, reason)


@pytest.mark.parametrize(
    ("arguments", "host"),
    [
        ("m", CPU),
        ("m --kv-cache-dtype bfloat16", CPU),
        ("m --dtype float16 --kv-cache-dtype float16", CPU),
        ("m --dtype half --kv-cache-dtype float16", CPU),
        ("m --kv-cache-dtype fp8_e4m3", GPU),
        ("m --kv-cache-dtype nvfp4", GPU),
        ("m --block-size 32", CPU),
        ("m --block-size 16", GPU),
        ("m --max-num-seqs 32 --max-num-batched-tokens 32", CPU),
        ("m --max-model-len 4096", CPU),
        ("m --max-model-len 8k --kv-cache-memory-bytes 1G", CPU),
        ("m --max-model-len 1024 --kv-cache-memory-bytes 1048576", CPU),
        ("m --max-model-len 1024 --kv-cache-memory-bytes 9999 --tensor-parallel-size 2", CPU),
        (
            "m --max-model-len 4097",
            Host("CPU", "0.32.0", None, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
        ),
    ],
)
def test_arguments_that_work_are_not_refused(arguments: str, host: Host) -> None:
    assert _check(arguments, host) is None


def test_fp8_on_a_capable_cpu_still_needs_a_fitting_head_size() -> None:
    host = Host("CPU", "0.32.0", frozenset({"amx_tile"}), {})
    assert _check("m --kv-cache-dtype fp8_e4m3", host) is None
    found = _check("m --kv-cache-dtype fp8_e4m3", host, {**LLAMA, "head_dim": 80})
    assert found is not None
    assert "head size divisible by 32, and the model's is 80" in found.message


@pytest.mark.parametrize(
    "extra",
    [
        {"sliding_window": 512},
        {"layer_types": ["full_attention"]},
        {"kv_lora_rank": 64},
        {"text_config": {"hidden_size": 1}},
    ],
)
def test_kv_memory_is_not_judged_where_layers_differ_in_kind(extra: dict[str, Any]) -> None:
    assert _check("m --kv-cache-memory-bytes 1 --max-model-len 64", CPU, {**LLAMA, **extra}) is None


@pytest.mark.parametrize(
    ("bytes_", "step", "refused"),
    [
        # The sinks' block and five more: 256 tokens of window, 256 of one step.
        (6 * 128 * 1024, "--max-num-batched-tokens 256", False),
        (6 * 128 * 1024 - 1, "--max-num-batched-tokens 256", True),
        # How much is under way at once is vLLM's choice then.
        (1, "", False),
    ],
)
def test_with_eviction_a_request_needs_its_peak_and_not_its_length(
    bytes_: int, step: str, refused: bool
) -> None:
    eviction = {"policy": "StreamingLLM", "window_tokens": 256}
    config = json.dumps({"kvserving": {"eviction": eviction}}, separators=(",", ":"))
    arguments = f"m --max-model-len 1024 --kv-cache-memory-bytes {bytes_} {step}"
    found = _check(f"{arguments} --additional-config={config}", CPU)
    assert (found is not None) is refused


def test_scaled_positions_are_left_to_vllm() -> None:
    scaled = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert _check("m --max-model-len 16384", CPU, scaled) is None


def test_a_model_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    config = read_model(str(tmp_path))
    assert config == ModelConfig("bfloat16", 4096, 32, 2 * 4 * 2 * 32)


@pytest.mark.parametrize(
    ("content", "reason", "text"),
    [
        (None, Reason.MODEL_NOT_FOUND, "has no config.json; it holds weights.bin"),
        ("{", Reason.MODEL_CONFIG_UNREADABLE, "cannot be read"),
        ("[]", Reason.MODEL_CONFIG_UNREADABLE, "architectures or model_type"),
        ("{}", Reason.MODEL_CONFIG_UNREADABLE, "architectures or model_type"),
    ],
)
def test_a_model_folder_that_cannot_be_used_says_why(
    tmp_path: Path, content: str | None, reason: Reason, text: str
) -> None:
    (tmp_path / "weights.bin").touch()
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    found = read_model(str(tmp_path))
    assert isinstance(found, Finding)
    assert (found.field, found.reason) == ("model", reason)
    assert text in found.message


@pytest.mark.parametrize(
    ("message", "field", "reason", "text"),
    [
        (
            "unrecognized arguments: --max-numseqs 8",
            "--max-numseqs",
            Reason.UNKNOWN_FLAG,
            "did you mean --max-num-seqs?",
        ),
        (
            "unrecognized arguments: --nope=3",
            "--nope",
            Reason.UNKNOWN_FLAG,
            "does not know --nope",
        ),
        (
            "argument --max-num-seqs: invalid int value: 'abc'",
            "--max-num-seqs",
            Reason.INVALID_FLAG,
            "'abc'",
        ),
        (
            "argument --tensor-parallel-size/-tp: invalid",
            "--tensor-parallel-size",
            Reason.INVALID_FLAG,
            "invalid",
        ),
    ],
)
def test_the_parsers_words_become_a_finding(
    message: str, field: str, reason: Reason, text: str
) -> None:
    found = parser_finding(message, ["--max-num-seqs", "--model"])
    assert (found.field, found.reason) == (field, reason)
    assert text in found.message


class PydanticError(Exception):
    """Stands for pydantic's ValidationError, which keeps its reasons in a list."""

    def errors(self) -> list[dict[str, str]]:
        """Reasons."""
        return [{"msg": "Value error, max_model_len (9) is greater than\n the limit"}]


def test_vllms_refusal_is_put_on_one_line_and_tied_to_its_flag() -> None:
    found = refusal(PydanticError(), ["--max-model-len"])
    assert found == Finding(
        "--max-model-len", Reason.ENGINE_REFUSED, "max_model_len (9) is greater than the limit"
    )


def test_an_architecture_that_vllm_lacks_is_the_models_fault() -> None:
    error = ValueError("Model architectures ['Foo'] are not supported for now.")
    assert refusal(error, []).reason is Reason.ARCHITECTURE_UNSUPPORTED


class Output:
    """What a run of preflight left behind."""

    def __init__(self, status: int, out: str) -> None:
        self.status = status
        self.lines = out.splitlines()
        self.verdict = json.loads(self.lines[-1])


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(preflight, "_engine", lambda: ("CPU", "0.32.0"))
    monkeypatch.setattr(preflight, "this_machine", lambda: frozenset({"avx2"}))

    def _run(*arguments: str) -> Output:
        status = preflight.main(["--", *arguments])
        return Output(status, capfd.readouterr().out)

    return _run


def test_a_refusal_is_one_line_and_status_2(run: Any) -> None:
    output = run("serve", "/nowhere/at/all", "--kv-cache-dtype", "fp8_e4m3")
    assert (output.status, len(output.lines)) == (2, 1)
    assert output.verdict == {
        "ok": False,
        "field": "model",
        "reason": "ModelNotFound",
        "message": "the model folder /nowhere/at/all does not exist",
    }


def test_a_check_that_breaks_is_status_3_and_neither_yes_nor_no(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(preflight, "check_with_vllm", broken)
    output = run("org/model")
    assert (output.status, output.verdict["ok"]) == (3, None)
    assert "no room" in output.verdict["message"]


def test_whatever_else_is_printed_does_not_reach_standard_output(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(arguments: object) -> tuple[str, ...]:
        import os

        os.write(1, b"a library's banner\n")
        return ("configuration: this pod has no accelerator",)

    monkeypatch.setattr(preflight, "check_with_vllm", noisy)
    output = run("org/model")
    assert (output.status, len(output.lines)) == (0, 1)
    assert output.verdict == {
        "ok": True,
        "unchecked": ["configuration: this pod has no accelerator"],
    }
