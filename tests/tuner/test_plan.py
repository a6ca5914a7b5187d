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
    # 0.9 of 79.6 GiB, less 2 GiB and 16 GiB of weights, in sequences of 4 GiB.
    assert half == 13
    assert quarter > 3 * half


def test_people_get_a_table_and_what_to_change_first(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--config", str(model), "--gpu", "L4", "--weights-gib", "8", "--context", "65536"]
    assert main(["plan", *options]) == 0
    said = capsys.readouterr().out
    assert "KiB/token" in said
    assert "Try" in " ".join(said.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", "/none"], "config: expected a file that can be read, got /none"),
        (["--dtype", "int3"], "dtype: expected one of"),
        (["--gpu", "T5"], "gpu: expected one of A10,"),
        (["--gpu", "L4", "--weights-gib", "40"], "gpu: expected room for 40.0 GiB of weights"),
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
