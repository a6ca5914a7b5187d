"""What the demo prints: a line for each look, and a sentence that is true of what was measured."""

from collections.abc import Mapping

import pytest

from demo.summary import ROWS, TPOT, TTFT, table, traded
from demo.view import Sight
from harness.counters import Counters, Phase
from kvserving_tuner.settings import Slo
from tunerkit.build import engine, observation, window

ZERO = {
    "vllm:num_preemptions_total": 0.0,
    "vllm:generation_tokens_total": 0.0,
    "vllm:request_success_total": 0.0,
    **{f"{name}_{part}": 0.0 for name in (TTFT, TPOT) for part in ("sum", "count")},
}


def minute(**more: float) -> Phase:
    """A minute in which 60 requests finished with 600 tokens, unless told otherwise."""
    end: Mapping[str, float] = {
        "vllm:num_preemptions_total": more.get("preemptions", 0),
        "vllm:generation_tokens_total": 600.0,
        "vllm:request_success_total": more.get("finished", 60),
        f"{TTFT}_sum": more.get("ttft", 1) * 60,
        f"{TTFT}_count": 60,
        f"{TPOT}_sum": more.get("tpot", 0.2) * 60,
        f"{TPOT}_count": more.get("answers", 60),
    }
    return Phase(Counters(0.0, ZERO), Counters(60.0, end))


def test_the_sentence_names_gains_and_costs_as_measured() -> None:
    before = minute(preemptions=30, finished=60, ttft=1, tpot=0.2)
    after = minute(preemptions=2, finished=50, ttft=3, tpot=0.1)
    assert traded(before, after) == (
        "What the change traded: better: Preemptions per minute 30.0 to 2.0,"
        " TPOT, mean 0.200 s to 0.100 s;"
        " worse: Requests finished per minute 60.0 to 50.0, TTFT, mean 1.00 s to 3.00 s;"
        " about the same: Answer tokens per second 10.0 to 10.0."
    )


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"ttft": 0.5}, "better: TTFT, mean 1.00 s to 0.50 s"),
        ({"preemptions": 3}, "worse: Preemptions per minute 0.0 to 3.0"),
        ({"ttft": 1.04}, "about the same: Preemptions per minute 0.0 to 0.0"),
    ],
)
def test_the_sentence_follows_the_numbers(after: dict[str, float], words: str) -> None:
    assert words in traded(minute(), minute(**after))


def test_what_was_not_measured_is_not_judged() -> None:
    assert "TPOT" not in traded(minute(), minute(answers=0))
    assert table(minute(), minute(answers=0), 24, 7, 0).row_count == len(ROWS) + 1


def test_a_look_is_one_line_with_the_share_in_percent() -> None:
    seen = observation(engine(window(usage=0.820896, running=7)))
    sight = Sight(Slo()).seen(seen, {"effective": {"maxActiveSeqs": 7}}).told("a decision")
    line = sight.line()
    assert line.startswith("cap 7 | KV use 82% | running 7 | ")
    assert "a decision" not in line
