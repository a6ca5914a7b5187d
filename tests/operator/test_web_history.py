"""What the web view keeps: the worst of each stretch of time, and no more than a day."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.web.curves import MOST_POINTS, Curve, Point, TrialCurves
from kvserving_operator.web.history import (
    OLDER_SECONDS,
    OLDER_SLOT_SECONDS,
    RECENT_SECONDS,
    RECENT_SLOT_SECONDS,
    Band,
    Sample,
    Series,
)
from kvserving_tuner.trials.plan import Plan
from operatorkit.trials import record

MOST = RECENT_SECONDS / RECENT_SLOT_SECONDS + OLDER_SECONDS / OLDER_SLOT_SECONDS + 3


def used(percent: float) -> Band:
    return Band.exactly(percent)


def test_a_day_is_kept_and_no_more() -> None:
    series = Series()
    for number in range(3 * 8640):
        series.add(Sample(number * 10.0, kv_use=used(number % 100)))
    found = list(series)
    assert len(found) <= MOST
    assert [s.at for s in found] == sorted(s.at for s in found)
    assert found[-1].at - found[0].at >= 0.98 * OLDER_SECONDS
    assert found[-1].at - found[0].at <= OLDER_SECONDS + OLDER_SLOT_SECONDS


def test_a_peak_of_one_look_is_seen_a_day_later() -> None:
    series = Series()
    for number in range(8000):
        series.add(Sample(number * 10.0, kv_use=used(99 if number == 100 else 20)))
    assert 99 == max(s.kv_use.value for s in series if s.kv_use)


def test_what_was_unknown_stays_so() -> None:
    series = Series()
    for number in range(1000):
        series.add(Sample(number * 60.0, kv_use=used(20)))
    assert all(s.ttft is None and s.quality is None for s in series)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_whatever_the_clock_does_samples_are_in_order_and_the_newest_is_last(
    times: list[float],
) -> None:
    series = Series()
    for at in times:
        series.add(Sample(at, kv_use=used(1)))
    found = [s.at for s in series]
    assert found == sorted(found)
    assert series.latest is not None
    assert found[-1] == series.latest.at == times[-1]


def test_a_curve_is_thinned_and_keeps_its_newest_point() -> None:
    curve = Curve("TTFT", 10.0)
    for count in range(1, 5000):
        curve.add(Point(count, used(1)))
        assert len(curve.points) <= MOST_POINTS
        assert curve.points[-1].samples == count
    assert curve.points[0].samples <= 100


def test_evidence_that_begins_anew_begins_a_new_curve() -> None:
    curve = Curve("TTFT", 10.0)
    for count in (1, 2, 3, 1):
        curve.add(Point(count, used(1)))
    assert [1] == [point.samples for point in curve.points]


def test_a_curve_grows_with_the_evidence_and_not_with_looks() -> None:
    chance, plan, curves = random.Random(1), Plan(), TrialCurves(0.0)
    trial = record("a", plan=plan)
    criterion = plan.quality("ServedLikelihoodShort")
    for _ in range(30):
        progress = trial.progress.compared(criterion, [chance.gauss(0, 0.01)])
        trial = trial.model_copy(update={"progress": progress})
        curves.add(trial)
        curves.add(trial)
    (curve,) = curves.curves.values()
    assert list(range(1, 31)) == [point.samples for point in curve.points]
    assert round(curve.bound, 6) == 2
    first, last = curve.points[0].band, curve.points[-1].band
    assert last.low <= last.value <= last.high
    assert last.high - last.low < first.high - first.low
