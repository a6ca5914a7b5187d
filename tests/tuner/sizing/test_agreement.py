"""The plan still says what vLLM reported (`benchmarks/plan_agreement.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvserving_tuner.sizing.memory import Layout, bytes_per_token, capacity
from kvserving_tuner.sizing.shape import read_shape

RESULTS = Path(__file__).parents[3] / "benchmarks/results/plan_agreement.json"
ROWS: list[dict[str, Any]] = [
    row for row in json.loads(RESULTS.read_text())["rows"] if "reported" in row
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['dtype']}")
def test_blocks_and_tokens_are_those_that_vllm_reported(row: dict[str, Any]) -> None:
    asked, reported = row["asked"], row["reported"]
    shape = read_shape(asked["config"])
    layout = Layout(row["dtype"], asked["block_size"], step_tokens=asked["step_tokens"])
    planned = capacity(shape, layout, asked["max_model_len"], asked["cache_bytes"])
    assert planned.block_bytes == reported["block_bytes"]
    assert planned.blocks == reported["blocks"]
    assert planned.tokens == reported["tokens"]
    assert bytes_per_token(shape, layout) == row["bytes_per_token"]


def test_models_of_many_kinds_were_asked() -> None:
    assert len({row["model"] for row in ROWS}) >= 5
    kinds = {group.kind for row in ROWS for group in read_shape(row["asked"]["config"]).groups}
    assert len(kinds) >= 2
