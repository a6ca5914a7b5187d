"""Audit lines and the terminal view."""

import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from kvserving_tuner.audit import audit_line
from kvserving_tuner.decision import Decision
from kvserving_tuner.histograms import Histogram, Interval
from kvserving_tuner.loop import TunerState, decide
from kvserving_tuner.observation import Problem, ProblemReason
from kvserving_tuner.readings import Known, Reading, Stale, Unknown
from kvserving_tuner.settings import Mode, Slo, TuningSettings
from kvserving_tuner.view import interval, latency, number, render
from tunerkit.build import NOW, engine, observation, runtime, window

STORM = window(15, running=16, usage=0.99, preemptions=30, finished=0)
SEEN = observation(engine(window(usage=0.95), STORM))
AUTO = TuningSettings(mode=Mode.AUTO)


@pytest.fixture
def decision() -> Decision:
    return decide(AUTO, SEEN, runtime({"a": 64}), TunerState(), NOW)[0]


def test_an_audit_line_is_one_line_of_json_with_the_numbers(decision: Decision) -> None:
    line = audit_line(decision, "team/chat", SEEN, "Applied")
    assert "\n" not in line
    record = json.loads(line)
    assert record["schema"] == "kvserving.dev/audit/v1"
    assert record["serving"] == "team/chat"
    assert record["time"] == "1970-01-01T02:46:40.000+00:00"
    assert record["action"] == "Change"
    assert record["change"] == {"knob": "MaxActiveSeqs", "from": 64, "to": 12, "cost": "Live"}
    assert record["numbers"]["preemptions"] == 30
    assert record["outcome"] == "Applied"
    assert record["problems"] == []


def test_an_audit_line_is_valid_json_whatever_the_numbers(decision: Decision) -> None:
    odd = replace(decision, numbers={"x": math.nan, "y": math.inf}, message='a "quote"\nand é')
    line = audit_line(odd, "chat")

    def refuse(constant: str) -> None:
        raise AssertionError(f"not JSON: {constant}")

    record = json.loads(line, parse_constant=refuse)
    assert record["numbers"] == {"x": "nan", "y": "inf"}
    assert "\n" not in line


def shown(*args: object, width: int = 160) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, color_system=None)
    with console.capture() as capture:
        console.print(render(*args))  # type: ignore[arg-type]
    return capture.get()


def test_the_view_shows_engines_diagnosis_decision_and_past_changes(decision: Decision) -> None:
    text = shown(SEEN, decision, Slo(ttft_ms=500), [decision])
    for words in ("PreemptionStorm", "95%", "64 -> 12", "30 preemptions in 15 s", "TTFT p95"):
        assert words in text


def test_no_number_is_cut_on_a_terminal_of_80_columns() -> None:
    slow = Histogram((5.0, 10.0, 2560.0, math.inf), (0, 0, 9, 0), 9000.0)
    token = Histogram((0.25, 0.5, math.inf), (0, 9, 0), 3.0)
    full = replace(window(usage=0.82, running=24, waiting=128), ttft=slow, tpot=token)
    pod = replace(engine(full), target="chat-7d9f8b7c5d-abcde", max_active_seqs=Known(24, NOW))
    text = shown(observation(pod), None, width=76)
    for words in ("TTFT p95", "TPOT p95", "preempt", "10-2560 s", "250-500 ms", "82%", "24", "128"):
        assert words in text


def test_the_view_shows_what_is_missing() -> None:
    gone = engine(Unknown("refused"), Unknown("refused"))
    gone = replace(gone, running=Unknown("refused"), kv_usage_max=Stale(0.5, 40))
    problem = Problem(ProblemReason.METRICS_MISSING, "a", "refused")
    text = shown(observation(gone, engine(window(), name="b"), problems=[problem]), None)
    for words in ("MetricsMissing: a: refused", "?", "~0.50", "all"):
        assert words in text


@pytest.mark.parametrize(
    ("value", "text"), [(Known(3.14, 0), "3.1"), (Stale(3.14, 40), "~3.1"), (Unknown("x"), "?")]
)
def test_numbers(value: Reading, text: str) -> None:
    assert number(value, 1) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [(Interval(2, 2), "2"), (Interval(50, 75), "50-75"), (Interval(80, math.inf), ">80")],
)
def test_intervals(bounds: Interval, text: str) -> None:
    assert interval(bounds) == text


def test_latencies() -> None:
    some = Histogram((0.05, 0.1, math.inf), (1, 9, 0), 0.8)
    assert latency(some, 95) == "50-100 ms"
    assert latency(replace(some, edges=(0.75, 2.5, math.inf)), 95) == "0.75-2.5 s"
    assert latency(replace(some, counts=(0, 0, 0)), 95) == "-"
    assert latency(Unknown("absent"), 95) == "?"
