"""Requests that each side of a trial got, as the check of the split counts them."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kvserving_operator.api.reasons import Reason
from kvserving_operator.traffic.report import Traffic, traffic_status
from kvserving_operator.traffic.split import MOST_REQUESTS, SETTLING_SECONDS, SplitCount
from kvserving_operator.traffic.state import TrafficState
from kvserving_tuner.judge import Split
from kvserving_tuner.observation import Observation
from kvserving_tuner.readings import Known, Unknown
from tunerkit.build import engine, observation, window


def at(seconds: float, **finished: float) -> Observation:
    """Engines that have finished so many requests by then, with none under way."""
    return observation(
        *(
            replace(
                engine(window(), name=name),
                totals={"finished": Known(count, seconds)},
                running=Known(0, seconds),
                waiting=Known(0, seconds),
            )
            for name, count in finished.items()
        ),
        at=seconds,
    )


def under_way(seen: Observation, **running: float) -> Observation:
    engines = [
        replace(each, running=Known(running.get(each.target, 0), seen.at)) for each in seen.engines
    ]
    return replace(seen, engines=tuple(engines))


def counted(*seen: Observation, own: Mapping[str, float] | None = None) -> SplitCount:
    count = SplitCount()
    for each in seen:
        count = count.counted(each, {"a"}, own or {})
    return count


def test_what_comes_is_counted_by_the_side_that_it_comes_to() -> None:
    seen = [at(100, a=0, b=0), at(130, a=10, b=70), at(135, a=15, b=165)]
    assert counted(*seen).of(5) == Split(15, 165, 0.05)
    # The same metrics once more are no more requests.
    assert counted(*seen, seen[-1]).of(5) == Split(15, 165, 0.05)


def test_what_is_under_way_has_come() -> None:
    seen = [under_way(at(100, a=0, b=0), b=50), under_way(at(140, a=0, b=60), a=5, b=40)]
    assert counted(*seen).of(5) == Split(5, 50, 0.05)


def test_a_new_weight_settles_first() -> None:
    young = [at(100 + n, a=100 * n, b=0) for n in range(int(SETTLING_SECONDS))]
    assert counted(*young).of(5) == Split(0, 0, 0.05)


def test_the_trials_own_tasks_are_no_users_requests() -> None:
    first = counted(at(100, a=0, b=0), own={"a": 2, "b": 2})
    later = first.counted(at(140, a=12, b=105), {"a"}, {"a": 9, "b": 7})
    assert later.of(5) == Split(5, 100, 0.05)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(at(140, a=500, b=2), id="another process"),
        pytest.param(at(140, a=500), id="an engine has gone"),
        pytest.param(at(140, a=500, b=700, c=1), id="an engine has come"),
        pytest.param(
            replace(
                at(140, a=500, b=700),
                engines=tuple(
                    replace(each, waiting=Unknown("renamed"))
                    for each in at(140, a=500, b=700).engines
                ),
            ),
            id="a metric is missing",
        ),
    ],
)
def test_what_cannot_be_compared_counts_nothing(odd: Observation) -> None:
    seen = [at(100, a=0, b=100), at(135, a=1, b=110)]
    assert counted(*seen, odd).of(5) == Split(1, 10, 0.05)


def test_what_was_put_right_is_forgotten_in_time() -> None:
    source, count, a, b = random.Random(3), SplitCount(), 0.0, 0.0
    mismatches = []
    for look in range(400):
        chance = 0.5 if look < 40 else 0.05
        came = sum(source.random() < chance for _ in range(100))
        a, b = a + came, b + 100 - came
        count = count.counted(at(5.0 * look, a=a, b=b), {"a"}, {})
        mismatches.append(bool(count.of(5).mismatch))
    assert mismatches[39]
    assert not any(mismatches[-100:])
    assert count.candidate + count.stable <= MOST_REQUESTS


@pytest.mark.parametrize("weight", [1, 5, 25, 50])
def test_what_a_route_shares_out_by_chance_is_not_doubted(weight: int) -> None:
    for seed in range(20):
        source, count, a, b = random.Random(seed), SplitCount(), 0.0, 0.0
        for look in range(120):
            came = sum(source.random() < weight / 100 for _ in range(40))
            a, b = a + came, b + 40 - came
            count = count.counted(at(5.0 * look, a=a, b=b), {"a"}, {})
            assert not count.of(weight).mismatch


WRONG = TrafficState(routed=True, weight=5, count=SplitCount(candidate=300, stable=300))


@pytest.mark.parametrize("changes", [{"routed": False}, {"weight": 0}, {"sessions_kept": True}])
def test_without_a_promise_about_requests_there_is_no_split(changes: dict[str, object]) -> None:
    assert WRONG.split == Split(300, 300, 0.05)
    assert WRONG.mismatch
    other = WRONG.model_copy(update=changes)
    assert other.split is None
    assert not other.mismatch


def test_another_weight_is_another_promise() -> None:
    assert WRONG.under(25).split == Split(0, 0, 0.25)


def test_the_status_names_a_share_that_is_not_the_promised_one() -> None:
    status = traffic_status(Traffic(WRONG, reason=Reason.ROUTE_ACCEPTED))
    assert status is not None
    assert "50 % of the requests instead of 5 %" in (status.message or "")
