"""`kvserving plan`: rows, advice, and errors that name the option."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvserving_tuner.cli import main
from tunerkit.models import LLAMA_8B


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    index = {"metadata": {"total_size": 16 * 1024**3}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["plan", *options, "--output", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_rows_for_every_format_and_context(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = asked(
        capsys, "--config", str(model / "config.json"), "--context", "32768", "--context",
        "131072", "--dtype", "float16", "--dtype", "fp8_e4m3",
    )  # fmt: skip
    gib = 1024**3
    assert rows == [
        {"dtype": "float16", "bytes_per_token": 131072, "context": 32768, "bytes": 4 * gib},
        {"dtype": "float16", "bytes_per_token": 131072, "context": 131072, "bytes": 16 * gib},
        {"dtype": "fp8_e4m3", "bytes_per_token": 65536, "context": 32768, "bytes": 2 * gib},
        {"dtype": "fp8_e4m3", "bytes_per_token": 65536, "context": 131072, "bytes": 8 * gib},
    ]


def test_what_fits_on_a_gpu_beside_the_weights(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = asked(
        capsys, "--config", str(model), "--gpu", "h100", "--context", "32768",
        "--dtype", "bfloat16", "--dtype", "int4",
    )  # fmt: skip
    half, quarter = (row["sequences"]["h100"] for row in rows)
    # 0.92 of 79.6 GiB, less 2 GiB and 16 GiB of weights, in sequences of 4 GiB.
    assert half == 13
    assert quarter > 3 * half


def test_people_get_a_table_and_what_to_change_first(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--config", str(model), "--gpu", "L4", "--weights-gib", "8", "--context", "65536"]
    assert main(["plan", *options]) == 0
    said = capsys.readouterr().out
    assert "KiB/token" in said
    assert "Try int4_hadamard in a trial first: it holds 4." in " ".join(said.split())
    assert "32 layers with full attention, 8 KV heads of 128." in said


def advised(capsys: pytest.CaptureFixture[str], config: Path, *options: str) -> str:
    assert main(["plan", "--config", str(config), *options]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpu", "H200"], "nothing has to change for memory's sake"),
        # 8 GiB a sequence: 8 bits hold two in 11 GiB, k8v4 three.
        (["--gpu", "40GiB"], "2 sequences fit on 40GiB with bfloat16, at 65536 tokens each. Try"),
        (["--gpu", "40GiB"], "Try fp8_e4m3 first: it holds 4."),
        (["--gpu", "32GiB"], "Try int4_hadamard in a trial first: it holds 5."),
        (["--gpu", "32GiB", "--dtype", "bfloat16"], "Begin with a shorter --max-model-len, or"),
        (
            ["--gpu", "28GiB", "--dtype", "bfloat16", "--dtype", "k8v4", "--dtype", "int2"],
            "For 4 or more, serve on more GPUs (--tensor-parallel 2)",
        ),
    ],
)
def test_the_mildest_that_is_enough_is_advised(
    model: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    config = model / "config.json"
    said = advised(capsys, config, "--context", "65536", *options)
    assert words in said
    # Two bits are advised to nobody.
    assert "Try int2" not in said


def test_a_window_is_what_it_holds_and_room_is_kept_for_its_steps(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text(json.dumps({**LLAMA_8B, "sliding_window": 4096}))
    options = ["--config", str(model), "--gpu", "80GiB", "--context", "32768"]
    options += ["--dtype", "bfloat16"]
    (large,) = asked(capsys, *options)
    (small,) = asked(capsys, *options, "--max-num-batched-tokens", "512")
    assert large["bytes"] == small["bytes"] == (4096 + 16) * 128 * 1024
    assert large["sequences"]["80GiB"] < small["sequences"]["80GiB"] / 2


def test_a_load_says_how_much_each_format_carries(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--prompt-tokens", "1000", "--answer-tokens", "300", "--dtype", "bfloat16"]
    load += ["--dtype", "fp8_e4m3", "--max-num-seqs", "1024"]
    found = []
    for more in ([], ["--tpot-ms", "15"]):
        said = advised(capsys, model, "--gpu", "H100", *load, *more)
        numbers = said.split("by measured kernels: bfloat16 ")[1].split(". ")[0]
        half, eighth = (float(each) for each in numbers.rstrip(".").split(", fp8_e4m3 "))
        # 8 bits hold twice the sequences and are read in less time.
        assert 5 < half < eighth
        found.append(half)
    assert found[1] < found[0]
    # Nothing is said of a GPU whose kernels nobody measured, or without a load.
    assert "by measured kernels" not in advised(capsys, model, "--gpu", "48GiB", *load)
    assert "by measured kernels" not in advised(capsys, model, "--gpu", "H100")


def test_copies_are_said_to_be_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latent = {**LLAMA_8B, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    for number, config in enumerate((latent, LLAMA_8B)):
        (tmp_path / f"{number}.json").write_text(json.dumps(config))
    said = advised(capsys, tmp_path / "0.json", "--tensor-parallel", "8")
    assert "Each of 8 GPUs keeps a copy of the latents" in said
    said = advised(capsys, tmp_path / "1.json", "--tensor-parallel", "16")
    assert "8 KV heads on 16 GPUs: some keep copies" in said
    assert "copies" not in advised(capsys, tmp_path / "1.json", "--tensor-parallel", "8")


def test_a_larger_budget_and_more_sequences_leave_less_for_the_cache(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**LLAMA_8B, "intermediate_size": 14_336, "vocab_size": 128_256}
    (model / "config.json").write_text(json.dumps(config))
    fits = []
    for more in ([], ["--max-num-batched-tokens", "65536"], ["--max-num-seqs", "8192"]):
        rows = asked(
            capsys, "--config", str(model), "--gpu", "A100-40GB", "--context", "1024", "--dtype",
            "bfloat16", *more,
        )  # fmt: skip
        fits.append(rows[0]["sequences"]["A100-40GB"])
    assert fits[0] > max(fits[1:])
    # 36.8 GiB of 40, less 16 of weights and some 2 of workspace, in sequences of 128 MiB.
    assert 145 <= fits[0] <= 152


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", "/none"], "config: expected a file that can be read, got /none"),
        (["--dtype", "int3"], "dtype: expected one of"),
        (["--gpu", "T5"], "gpu: expected one of A10,"),
        (["--gpu", "L4", "--weights-gib", "40"], "gpu: expected room for 40.0 GiB of weights"),
        (["--gpu", "0GiB"], "gpu: expected one of A10,"),
        (["--gpu", "L4", "--weights-gib", "40"], "at least 3 are needed"),
        (["--tensor-parallel", "0"], "tensor-parallel: expected a whole number of at least 1"),
        (["--block-size", "0"], "block-size: expected a whole number of at least 1, got 0"),
        (["--gpu-memory-utilization", "1.5"], "gpu-memory-utilization: expected more than 0"),
        (["--max-num-batched-tokens", "-1"], "max-num-batched-tokens: expected at least 0"),
        (["--context", "0"], "context: expected at least 1 token, got 0"),
    ],
)
def test_what_cannot_be_used_is_named(
    model: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    config = [] if "--config" in options else ["--config", str(model)]
    assert main(["plan", *config, *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_weights_have_to_be_known_where_a_gpu_is_asked_about(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "model.safetensors.index.json").unlink()
    assert main(["plan", "--config", str(model), "--gpu", "H200"]) == 2
    assert "weights-gib: expected a size" in capsys.readouterr().err
