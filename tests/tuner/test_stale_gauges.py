"""Gauges that stand still, and engines that fall silent."""

import pytest

from kvserving_tuner.assembly import frozen_seconds, observe_engine
from kvserving_tuner.epochs import History
from kvserving_tuner.observation import ProblemReason, Window
from kvserving_tuner.readings import Known, Stale, Unknown
from kvserving_tuner.scrape import Sample, collect
from kvserving_tuner.settings import Windows
from kvserving_tuner.snapshot import take

SETTINGS = Windows()
LABELS = {"engine": "0", "model_name": "m"}


def history(rows: list[dict[str, float]], seconds: float = 5.0) -> History:
    filled = History(SETTINGS)
    for index, row in enumerate(rows):
        at = 1000 + seconds * index
        values = {
            "vllm:num_requests_running": 0.0,
            "vllm:num_requests_waiting": 0.0,
            "vllm:kv_cache_usage_perc": 0.0,
            "vllm:num_preemptions_total": 0.0,
            "vllm:generation_tokens_total": 0.0,
        } | row
        samples = [Sample(name, LABELS, value) for name, value in values.items()]
        filled.add(take(collect(samples, at)), at)
    return filled


RUNNING, USAGE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
TOKENS, FINISHED = "vllm:generation_tokens_total", "vllm:request_success_total"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{RUNNING: 3.0}] * 8, 35.0),
        # After a mass abort: nothing is said to run, but the cache stays full for ever.
        ([{USAGE: 0.99}] * 8, 35.0),
        ([{}] * 8, None),
        ([{RUNNING: 3.0, TOKENS: float(i)} for i in range(8)], 0.0),
        ([{RUNNING: 3.0, TOKENS: 0.0}] * 4 + [{RUNNING: 3.0, TOKENS: 5.0}] * 4, 15.0),
        ([{RUNNING: 3.0, FINISHED: float(i)} for i in range(8)], 0.0),
    ],
)
def test_for_how_long_gauges_are_frozen(
    rows: list[dict[str, float]], expected: float | None
) -> None:
    assert frozen_seconds(history(rows).snapshots) == expected


def test_frozen_gauges_become_stale_after_30_seconds_and_not_before() -> None:
    for count, stale in ((6, False), (8, True)):
        filled = history([{RUNNING: 3.0, USAGE: 0.99}] * count)
        now = 1000 + 5 * (count - 1)
        engine, problems = observe_engine("e", filled, SETTINGS, now, None)
        assert isinstance(engine.running, Stale if stale else Known)
        assert [p.reason for p in problems] == [ProblemReason.METRICS_STALE] * stale
        assert isinstance(engine.short, Unknown if stale else Window)


def test_a_silent_engine_is_stale_after_30_seconds() -> None:
    filled = history([{TOKENS: float(i)} for i in range(4)])
    for now, stale in ((1040.0, False), (1046.0, True)):
        engine, problems = observe_engine("e", filled, SETTINGS, now, None)
        assert isinstance(engine.running, Stale if stale else Known)
        assert [p.reason for p in problems] == [ProblemReason.METRICS_STALE] * stale


def test_an_engine_that_failed_just_now_has_no_windows() -> None:
    filled = history([{TOKENS: float(i)} for i in range(4)])
    engine, problems = observe_engine("e", filled, SETTINGS, 1020.0, "connection refused")
    assert [p.message for p in problems] == ["connection refused"]
    assert engine.short == engine.full == Unknown("connection refused")


def test_an_engine_never_seen_is_unknown_in_everything() -> None:
    engine, problems = observe_engine("e", History(SETTINGS), SETTINGS, 1.0, "refused")
    assert engine.running == engine.kv_usage_max == engine.full == Unknown("refused")
    assert [p.reason for p in problems] == [ProblemReason.METRICS_MISSING]
