"""What was measured of live switches on a CPU is what is promised of them."""

import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "live_switch_cpu.json"
MOST_SWITCH_SECONDS = 1.0
MOST_PREFILLS = 1.2
"""Times the prefill of the tokens in flight that a gap may have beyond the switch."""


@pytest.fixture
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def test_none_of_sixteen_requests_was_lost_over_four_switches(document: dict[str, Any]) -> None:
    assert [row["format"] for row in document["rows"]] == ["int4", "fp8_e4m3", "int2", "auto"]
    assert {row["in_flight"] for row in document["rows"]} == {document["requests"]} == {16}
    assert document["lost"] == 0


def test_switches_and_gaps_between_tokens_were_short(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        assert row["switch_seconds"] <= MOST_SWITCH_SECONDS
        allowed = MOST_SWITCH_SECONDS + MOST_PREFILLS * row["prefill_seconds"]
        assert row["longest_gap_seconds"] <= allowed


def test_the_way_back_led_to_the_first_scores(document: dict[str, Any]) -> None:
    assert document["scores"]["after"] == pytest.approx(document["scores"]["before"], abs=1e-3)
