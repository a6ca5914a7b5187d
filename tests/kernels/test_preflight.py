"""Preflight: what speaks against a start is named by flag, on one line, before vLLM is loaded."""

import json
from typing import Any

import pytest

from kvserving_kernels.preflight import __main__ as preflight
from kvserving_kernels.preflight.arguments import read_settings, strip_command
from kvserving_kernels.preflight.engine import (
    accelerator_finding,
    environment_finding,
    parser_finding,
    refusal,
)
from kvserving_kernels.preflight.finding import Finding, Reason
from kvserving_kernels.preflight.host import Host
from preflightkit import CPU, GPU, LLAMA, found


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
        ("m --block-size 8", GPU, "--block-size", Reason.BLOCK_SIZE_UNSUPPORTED),
        (
            "m --no-enable-chunked-prefill --max-num-batched-tokens 4095",
            GPU,
            "--max-num-batched-tokens",
            Reason.BATCHED_TOKENS_TOO_FEW,
        ),
        ("m --headless", CPU, "--api-server-count", Reason.INVALID_FLAG),
        ("m --api-server-count=0", CPU, "--api-server-count", Reason.INVALID_FLAG),
    ],
)
def test_what_speaks_against_a_start_is_named(
    arguments: str, host: Host, field: str, reason: Reason
) -> None:
    finding = found(arguments, host)
    assert finding is not None
    assert (finding.field, finding.reason) == (field, reason)


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
        ("m --no-enable-chunked-prefill --max-num-batched-tokens 4096", GPU),
        ("m --max-num-batched-tokens 4095", GPU),
        ("m --api-server-count=2", CPU),
        (
            "m --max-model-len 4097",
            Host("CPU", "0.32.0", None, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
        ),
    ],
)
def test_arguments_that_work_are_not_refused(arguments: str, host: Host) -> None:
    assert found(arguments, host) is None


@pytest.mark.parametrize(
    ("head_size", "host", "refused"),
    [
        (64, CPU, False),
        (48, CPU, True),
        (33, CPU, True),
        (48, GPU, False),
        # Which sizes another version has is not known.
        (48, Host("CPU", "0.33.1", frozenset({"avx2"}), {}), False),
    ],
)
def test_a_head_size_that_a_cpus_kernels_lack_is_refused(
    head_size: int, host: Host, refused: bool
) -> None:
    finding = found("m", host, {**LLAMA, "head_dim": head_size})
    assert (finding is not None) is refused
    if finding is not None:
        assert finding.reason is Reason.KV_DTYPE_UNSUPPORTED
        assert f"the model's is {head_size}" in finding.message


def test_fp8_on_a_capable_cpu_still_needs_a_fitting_head_size() -> None:
    host = Host("CPU", "0.32.0", frozenset({"amx_tile"}), {})
    assert found("m --kv-cache-dtype fp8_e4m3", host) is None
    finding = found("m --kv-cache-dtype fp8_e4m3", host, {**LLAMA, "head_dim": 80})
    assert finding is not None
    assert "head size divisible by 32, and the model's is 80" in finding.message


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
    finding = parser_finding(message, ["--max-num-seqs", "--model"])
    assert (finding.field, finding.reason) == (field, reason)
    assert text in finding.message


def _number() -> int:
    return int("4.0")


def test_a_variable_that_vllm_cannot_read_is_named_with_its_value() -> None:
    readers = {"VLLM_A": lambda: 1, "VLLM_B": _number, "VLLM_C": _number}
    finding = environment_finding(readers, {"VLLM_A": "1", "VLLM_C": "4.0", "HOME": "/"})
    assert finding is not None
    assert (finding.field, finding.reason) == ("VLLM_C", Reason.ENVIRONMENT_INVALID)
    assert "VLLM_C='4.0'" in finding.message
    # Those that are not set are vLLM's own defaults.
    assert environment_finding(readers, {"VLLM_A": "1"}) is None


@pytest.mark.parametrize(
    ("has_device", "gpus", "refused"),
    [
        (False, "0", True),
        (False, "1", False),
        # A device that nobody asked for is one all the same.
        (True, "0", False),
        (False, "", False),
    ],
)
def test_an_engine_for_gpus_needs_one(has_device: bool, gpus: str, refused: bool) -> None:
    host = Host("NVIDIA", "0.32.0", None, {"KVSERVING_GPUS": gpus})
    assert (accelerator_finding(has_device, host) is not None) is refused


class PydanticError(Exception):
    """Stands for pydantic's ValidationError, which keeps its reasons in a list."""

    def errors(self) -> list[dict[str, str]]:
        """Reasons."""
        return [{"msg": "Value error, max_model_len (9) is greater than\n the limit"}]


def test_vllms_refusal_is_put_on_one_line_and_tied_to_its_flag() -> None:
    finding = refusal(PydanticError(), ["--max-model-len"])
    assert finding == Finding(
        "--max-model-len", Reason.ENGINE_REFUSED, "max_model_len (9) is greater than the limit"
    )


def test_an_architecture_that_vllm_lacks_is_the_models_fault() -> None:
    error = ValueError("Model architectures ['Foo'] are not supported for now.")
    assert refusal(error, []).reason is Reason.ARCHITECTURE_UNSUPPORTED


def _unreachable(*_: object) -> str:
    raise ConnectionError("no network")


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
    monkeypatch.setattr(preflight, "download", _unreachable)

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
    def broken(arguments: object, host: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(preflight, "check_with_vllm", broken)
    output = run("org/model")
    assert (output.status, output.verdict["ok"]) == (3, None)
    assert "no room" in output.verdict["message"]


def test_whatever_else_is_printed_does_not_reach_standard_output(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(arguments: object, host: object) -> tuple[str, ...]:
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


@pytest.mark.parametrize(("elsewhere", "status"), [("", 2), ("True", 0)])
def test_a_model_of_another_hub_is_not_looked_for_on_the_first(
    run: Any, monkeypatch: pytest.MonkeyPatch, elsewhere: str, status: int
) -> None:
    def unknown(*_: object) -> str:
        raise type("RepositoryNotFoundError", (Exception,), {})("404")

    monkeypatch.setattr(preflight, "download", unknown)
    monkeypatch.setattr(preflight, "check_with_vllm", lambda *_: ())
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", elsewhere)
    assert run("org/model").status == status
