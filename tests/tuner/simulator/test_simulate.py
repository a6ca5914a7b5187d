"""`kvserving simulate`, and the figures that it prints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvserving_tuner.cli import main
from kvserving_tuner.simulator.outcome import simulate
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.workload import Request, Workload
from tunerkit.models import LLAMA_8B

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02d}.0000000,{400 + second},{20 + second}\n" for second in range(60)
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    index = {"metadata": {"total_size": 16 * 1024**3}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def asked(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    assert main(["simulate", *map(str, options), "--output", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rows_for_every_combination(
    model: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = asked(
        capsys, "--trace", trace, "--config", model, "--gpu", "h100", "--dtype", "bfloat16",
        "--dtype", "fp8_e4m3", "--max-num-seqs", 8, "--max-num-seqs", 64,
    )  # fmt: skip
    rows = document["rows"]
    assert [(row["dtype"], row["max_num_seqs"]) for row in rows] == [
        ("bfloat16", 8), ("bfloat16", 64), ("fp8_e4m3", 8), ("fp8_e4m3", 64),
    ]  # fmt: skip
    assert all(row["requests"] == row["finished"] == 60 for row in rows)
    assert rows[2]["capacity_tokens"] == pytest.approx(2 * rows[0]["capacity_tokens"], abs=32)
    assert document["step_times"]["base_seconds"] > 0


def test_goodput_counts_answers_within_both_limits(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StepTimes(0.01, 0.0001, 0.0, 0.0).save(tmp_path / "times.json")
    common = (
        "--trace", trace, "--capacity-tokens", 100_000, "--bytes-per-token", 100,
        "--step-times", tmp_path / "times.json",
    )  # fmt: skip
    # Prompts of 400 tokens and more take 50 ms and more; a token takes 10 ms, or waits for one.
    free = asked(capsys, *common)["rows"][0]
    assert free["goodput_per_second"] == pytest.approx(60 / free["seconds"], abs=1e-3)
    tight = asked(capsys, *common, "--ttft-ms", 53)["rows"][0]
    assert 0 < tight["goodput_per_second"] < free["goodput_per_second"]
    assert asked(capsys, *common, "--tpot-ms", 9)["rows"][0]["goodput_per_second"] == 0


def test_a_load_by_name_is_drawn_and_a_window_bounds_it(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--load", "azure-conversation", "--seconds", 60, "--config", model, "--gpu", "L40S")
    full = asked(capsys, *common)["rows"][0]
    small = asked(capsys, *common, "--window-tokens", 256, "--no-prefix-caching")["rows"][0]
    assert full["requests"] == small["requests"] > 200
    assert small["kv_usage_max"] < full["kv_usage_max"]
    again = asked(capsys, *common, "--speed", 2)["rows"][0]
    assert again["requests"] == pytest.approx(2 * full["requests"], rel=0.2)


def test_requests_longer_than_the_model_can_be_are_refused(
    model: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = {**LLAMA_8B, "max_position_embeddings": 450}
    (model / "config.json").write_text(json.dumps(limited))
    common = ("--trace", trace, "--config", model, "--gpu", "h100")
    # Prompts from 400 tokens on, answers from 20 on, both longer by one each second.
    assert asked(capsys, *common)["rows"][0]["finished"] == 16
    assert asked(capsys, *common, "--max-model-len", 460)["rows"][0]["finished"] == 21


def test_a_table_leaves_out_what_says_nothing(
    model: Path, trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--trace", str(trace), "--config", str(model), "--gpu", "h100"]
    assert main(["simulate", *options]) == 0
    out = capsys.readouterr().out
    assert "60 requests" in out
    assert "preemp-" in out
    assert "jected" not in out
    assert "seqs" not in out
    assert "…" not in out
    assert main(["simulate", *options, "--max-model-len", "430", "--max-num-seqs", "2",
                 "--max-num-seqs", "4"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "jected" in out
    assert "seqs" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--load", "nobody"], "load: expected one of azure-code"),
        (["--load", "azure-code", "--gpu", "H1"], "gpu: expected one of A10"),
        (["--load", "azure-code", "--watermark", "1"], "watermark"),
        (["--load", "azure-code", "--max-num-seqs", "4096"], "max_num_batched_tokens"),
        (["--load", "azure-code", "--dtype", "int5"], "dtype"),
        (["--load", "azure-code", "--speed", "0"], "rate"),
        (["--trace", "/none.csv"], "No such file"),
        (["--clients", "/none"], "a folder or an archive"),
        (["--load", "azure-code", "--step-times", "/none.json"], "No such file"),
        (["--load", "azure-code", "--capacity-tokens", "10"], "cache_bytes"),
    ],
)
def test_errors_name_what_is_at_fault(
    model: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    machine = ["--config", str(model), "--gpu", "H100"]
    assert main(["simulate", *machine, *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "step-times: expected a file, or --config and --gpu"),
        (["--step-times", "times.json"], "bytes-per-token: expected a number, or --config"),
        (
            ["--step-times", "times.json", "--bytes-per-token", "5"],
            "capacity-tokens: expected a number, or --config and --gpu",
        ),
    ],
)
def test_what_is_needed_without_a_model_is_asked_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    StepTimes(0.01, 0.0001, 0.0, 0.0).save(tmp_path / "times.json")
    assert main(["simulate", "--load", "azure-code", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_outcome_has_each_requests_latencies() -> None:
    settings = EngineSettings(1000.0, {"bfloat16": 1.0}, "bfloat16", max_model_len=500)
    work = Workload.of("w", [Request(0, 10, 5), Request(1, 600, 5), Request(10, 10, 1)])
    found = simulate(work, settings, StepTimes(1.0, 0.0, 0.0, 0.0))
    assert found.ttft.tolist() == pytest.approx([1.0, np.nan, 1.0], nan_ok=True)
    assert found.tpot.tolist() == pytest.approx([1.0, np.nan, np.nan], nan_ok=True)
    assert found.finish.tolist() == pytest.approx([5.0, np.nan, 11.0], nan_ok=True)
    assert found.goodput(2.0, 2.0) == pytest.approx(2 / 11)
    summary = found.summary()
    assert (summary["finished"], summary["rejected"]) == (2, 1)
    assert summary["ttft_p50_ms"] == 1000
    assert found.timeline.seconds[-1] == 11
    assert found.timeline.usage.max() == pytest.approx(1 / 62)
