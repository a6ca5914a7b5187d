"""Requests within the targets of latency."""

from dataclasses import replace

import pytest

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import Window
from kvserving_tuner.readings import Unknown
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.goodput import goodput
from tunerkit.build import window


def latencies(*counts: float) -> Histogram:
    return Histogram((0.1, 0.5, 1.0, float("inf")), counts, total=1.0)


SERVED = replace(window(finished=60), ttft=latencies(30, 15, 15, 0), tpot=latencies(48, 6, 6, 0))


@pytest.mark.parametrize(
    ("slo", "per_second"),
    [
        (Slo(), 1.0),
        (Slo(ttft_ms=500), 0.75),
        (Slo(tpot_ms=100), 0.8),
        (Slo(ttft_ms=500, tpot_ms=100), 0.75),
        # Between two edges: the upper one, which engines can tell.
        (Slo(ttft_ms=300), 0.75),
        (Slo(ttft_ms=90), 0.5),
    ],
)
def test_goodput_is_what_finished_in_time(slo: Slo, per_second: float) -> None:
    assert goodput(SERVED, slo) == pytest.approx(per_second)


@pytest.mark.parametrize(
    "seen",
    [
        replace(SERVED, ttft=Unknown("renamed")),
        replace(SERVED, finished=Unknown("absent")),
    ],
)
def test_what_is_not_measured_is_no_goodput_of_nothing(seen: Window) -> None:
    assert goodput(seen, Slo(ttft_ms=500)) is None


def test_an_idle_engine_has_none_and_answers_of_one_token_miss_no_tpot() -> None:
    assert goodput(replace(SERVED, finished=window(finished=0).finished), Slo(ttft_ms=500)) == 0
    single = replace(SERVED, tpot=latencies(0, 0, 0, 0))
    assert goodput(single, Slo(tpot_ms=100)) == 1.0
