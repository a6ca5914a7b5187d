"""Windows over real and made-up snapshots: resets, gaps, disorder, several ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.aliases import Quantity
from kvserving_tuner.epochs import MAXIMUM_SNAPSHOTS, Added, History
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EpochReason, GaugeWindow, Window
from kvserving_tuner.readings import Known, Unknown
from kvserving_tuner.scrape import Scrape, parse
from kvserving_tuner.settings import Windows
from kvserving_tuner.snapshot import Cumulative, Rank, Snapshot, take
from kvserving_tuner.windows import generation_slowdown, outcomes, unexplained_departures, window
from tunerkit.expositions import recorded

SETTINGS = Windows()


def snapshot(
    at: float,
    values: Mapping[Quantity, float] | None = None,
    ranks: Mapping[str, Mapping[Quantity, float]] | None = None,
    histograms: Mapping[Quantity, Cumulative] | None = None,
    process: Mapping[object, object] | None = None,
    settings: Sequence[object] = (),
    gaps: Mapping[Quantity, str] | None = None,
) -> Snapshot:
    of_ranks = ranks if ranks is not None else {"0": values or {}}
    return Snapshot(
        at=at,
        ranks={name: Rank(dict(v), dict(histograms or {})) for name, v in of_ranks.items()},
        gaps=gaps or {},
        names={},
        process=process or {"start": 1.0},
        settings=frozenset(settings),
        capacity_tokens=None,
        block_size=None,
        engine_samples=1,
    )


def counted(at: float, tokens: float, **more: object) -> Snapshot:
    return snapshot(at, {Quantity.GENERATION_TOKENS: tokens}, **more)  # type: ignore[arg-type]


def filled(*snapshots: Snapshot, now: float | None = None) -> History:
    history = History(SETTINGS)
    for each in snapshots:
        history.add(each, each.at if now is None else now)
    return history


def recorded_snapshots() -> list[Snapshot]:
    taken = []
    for index in range(1, 6):
        scrape = parse(recorded(index), 100.0 + 5 * index)
        assert isinstance(scrape, Scrape)
        taken.append(take(scrape))
    return taken


def full(snapshots: Sequence[Snapshot], seconds: float = 60.0) -> Window:
    found = window(snapshots, seconds, 3, 0.0)
    assert isinstance(found, Window)
    return found


def test_a_recorded_storm_as_a_window() -> None:
    storm = full(recorded_snapshots())
    assert storm.span_seconds == 20
    assert storm.preemptions == Known(11, 125.0)
    assert storm.finished == Known(6, 125.0)
    assert storm.generation_tokens == Known(511, 125.0)
    assert isinstance(storm.running, GaugeWindow)
    assert (storm.running.first, storm.running.minimum, storm.running.last) == (5, 1, 8)
    assert isinstance(storm.tpot, Histogram)
    assert storm.tpot.count == 6
    assert storm.per_second(storm.preemptions) == Known(11 / 20, 125.0)


def test_too_few_or_too_close_samples_are_no_window() -> None:
    few = [counted(0, 1), counted(30, 2)]
    assert isinstance(window(few, 60, 3, 0.7), Unknown)
    close = [counted(50, 1), counted(55, 2), counted(60, 3)]
    assert isinstance(window(close, 60, 3, 0.7), Unknown)
    assert isinstance(window(close, 60, 3, 0.1), Window)
    assert isinstance(window([], 60, 3, 0.7), Unknown)


def test_only_samples_inside_the_window_count() -> None:
    found = full([counted(at, at) for at in range(0, 121, 10)], 60)
    assert (found.start, found.end) == (60, 120)
    assert found.generation_tokens == Known(60, 120)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (counted(10, 3), EpochReason.RESTART),
        (counted(10, 9, process={"start": 2.0}), EpochReason.RESTART),
        (counted(10, 9, settings=[("0", 4.0)]), EpochReason.SETTINGS_CHANGED),
        (snapshot(10, ranks={"0": {}, "1": {}}), EpochReason.LABELS_CHANGED),
        (replace(counted(10, 9), names={Quantity.RUNNING: "new"}), EpochReason.LABELS_CHANGED),
    ],
)
def test_a_new_epoch(after: Snapshot, reason: EpochReason) -> None:
    before = replace(counted(0, 5, settings=[("0", 8.0)]), names={Quantity.RUNNING: "old"})
    history = filled(before, after)
    assert history.epoch_reason is reason
    assert history.epoch_start == 10
    assert [each.at for each in history.snapshots] == [10]


def test_no_new_epoch_for_a_missing_sample_or_a_metric_that_appears() -> None:
    gap = snapshot(5, {}, gaps={Quantity.GENERATION_TOKENS: "NaN"})
    seen = [counted(0, 5), gap, counted(10, 9, process={"start": 1.0, "new series": 4.0})]
    history = filled(*seen)
    assert history.epoch_reason is EpochReason.FIRST_SAMPLE
    assert full(history.snapshots).generation_tokens == Known(4, 10)


def test_duplicates_late_and_future_samples_are_dropped() -> None:
    history = History(SETTINGS)
    assert history.add(counted(10, 5), 10) is Added.KEPT
    assert history.add(counted(10, 99), 10) is Added.DUPLICATE
    assert history.add(counted(8, 4), 11) is Added.OUT_OF_ORDER
    assert history.add(counted(60, 50), 11) is Added.FROM_THE_FUTURE
    assert history.add(counted(12, 6), 12) is Added.KEPT
    assert [each.at for each in history.snapshots] == [10, 12]


def test_samples_read_again_never_look_like_a_clock_that_is_set_back() -> None:
    history = History(SETTINGS)
    for now in range(0, 100, 5):
        # As from Prometheus, which is asked for the last 30 seconds again each time.
        for at in range(max(0, now - 30), now + 1, 5):
            history.add(counted(at, at), now)
    assert history.epoch_reason is EpochReason.FIRST_SAMPLE
    assert [each.at for each in history.snapshots][-3:] == [85, 90, 95]


def test_a_clock_that_is_set_back_costs_three_samples_only() -> None:
    history = filled(counted(1000, 5))
    for at in (10, 15, 20, 25):
        history.add(counted(at, at), at)
    assert history.epoch_reason is EpochReason.CLOCK_STEPPED
    assert [each.at for each in history.snapshots] == [20, 25]


def test_memory_is_bounded_and_the_newest_sample_stays() -> None:
    history = filled(*(counted(at / 100, at) for at in range(3 * MAXIMUM_SNAPSHOTS)))
    assert len(history.snapshots) <= MAXIMUM_SNAPSHOTS
    history.add(counted(10_000, 10_000), 10_000)
    assert [each.at for each in history.snapshots] == [10_000]


def test_histograms_with_changed_or_torn_buckets_are_unknown() -> None:
    def of(at: float, edges: tuple[float, ...], counts: tuple[float, ...]) -> Snapshot:
        return snapshot(at, {}, histograms={Quantity.TTFT: Cumulative(edges, counts, 1.0)})

    inf = math.inf
    changed = [of(0, (1, inf), (1, 2)), of(5, (1, inf), (2, 3)), of(9, (1, 2, inf), (2, 3, 4))]
    assert full(changed).ttft == Unknown("bucket edges changed")
    torn = [of(0, (1, inf), (1, 2)), of(5, (1, inf), (2, 3)), of(9, (1, inf), (9, 4))]
    assert full(torn).ttft == Unknown("buckets disagree")


def test_unexplained_departures_count_requests_that_went_back_to_the_queue() -> None:
    def state(at: float, running: float, waiting: float, finished: float) -> Snapshot:
        return snapshot(
            at,
            {
                Quantity.RUNNING: running,
                Quantity.WAITING: waiting,
                Quantity.FINISHED: finished,
            },
        )

    preempted = [state(0, 10, 5, 0), state(5, 6, 9, 0), state(10, 6, 9, 0)]
    assert unexplained_departures(preempted) == Known(4, 10)
    finished = [state(0, 10, 5, 0), state(5, 6, 9, 4), state(10, 6, 9, 4)]
    assert unexplained_departures(finished) == Known(0, 10)
    # Clients that hang up leave the running set, but nobody joins the queue.
    aborted = [state(0, 10, 5, 0), state(5, 2, 5, 0), state(10, 2, 5, 0)]
    assert unexplained_departures(aborted) == Known(0, 10)


def test_slowdown_is_per_running_request() -> None:
    def state(at: float, running: float, tokens: float) -> Snapshot:
        return snapshot(at, {Quantity.RUNNING: running, Quantity.GENERATION_TOKENS: tokens})

    halved = [state(0, 4, 0), state(5, 4, 100), state(10, 4, 150)]
    assert generation_slowdown(halved) == Known(0.5, 10)
    idle = [state(0, 0, 0), state(5, 0, 0), state(10, 0, 0)]
    assert isinstance(generation_slowdown(idle), Unknown)


steps = st.lists(
    st.tuples(
        st.floats(0.5, 20),
        st.integers(0, 50),
        st.sampled_from(["grow"] * 6 + ["restart", "duplicate", "late", "gap", "future"]),
    ),
    min_size=1,
    max_size=60,
)


@given(steps)
def test_increases_are_never_negative_and_never_span_a_restart(
    found: list[tuple[float, int, str]],
) -> None:
    history = History(SETTINGS)
    now, value, born, grown_since_start = 1000.0, 0.0, 1000.0, 0.0
    for seconds, growth, event in found:
        now += seconds
        if event == "restart":
            value = grown_since_start = float(growth)
            born = now
        else:
            value += growth
            grown_since_start += growth
        if event == "gap":
            continue
        at = {"late": now - 60, "duplicate": now - seconds, "future": now + 60}.get(event, now)
        history.add(counted(at, value, process={"start": born}), now)
        seen = window(history.snapshots, 60, 2, 0.0)
        if isinstance(seen, Window):
            assert isinstance(seen.generation_tokens, Known)
            assert 0 <= seen.generation_tokens.value <= grown_since_start + 1e-9
            assert seen.span_seconds > 0
            assert seen.end <= now


def outcome_counts(**counts: tuple[float, float]) -> list[Snapshot]:
    """Two snapshots with these counters, each before and after."""
    return [
        snapshot(10.0 * n, {Quantity(name): ends[n] for name, ends in counts.items()})
        for n in range(2)
    ]


@pytest.mark.parametrize(
    ("counts", "ended", "failed"),
    [
        # Not streamed, a failure is in both counts: it is one.
        ({"http_requests": (5, 25), "http_errors": (1, 4), "failed": (2, 5)}, 20, 3),
        # Streamed, it is in the engine's alone; refused at the door, in the server's.
        ({"http_requests": (5, 25), "http_errors": (1, 1), "failed": (2, 6)}, 20, 4),
        ({"http_requests": (5, 25), "http_errors": (1, 9), "failed": (2, 2)}, 20, 8),
        # One of them is enough.
        ({"http_requests": (5, 25), "http_errors": (1, 9)}, 20, 8),
        ({"finished": (0, 30), "failed": (0, 2)}, 30, 2),
        # A scrape is not atomic.
        ({"http_requests": (5, 5), "http_errors": (1, 1), "failed": (0, 2)}, 2, 2),
    ],
)
def test_failures_are_counted_once(
    counts: dict[str, tuple[float, float]], ended: float, failed: float
) -> None:
    assert outcomes(outcome_counts(**counts)) == (Known(ended, 10), Known(failed, 10))


def test_no_count_of_failures_is_no_failure_known() -> None:
    ended, failed = outcomes(outcome_counts(finished=(0, 30)))
    assert (ended, failed) == (Known(30, 10), Unknown("absent"))
    assert outcomes(outcome_counts()) == (Unknown("absent"), Unknown("absent"))


def test_a_count_that_begins_within_a_window_is_not_known_in_it() -> None:
    first = snapshot(0, {Quantity.FINISHED: 0.0})
    served = {Quantity.HTTP_REQUESTS: 4.0, Quantity.HTTP_ERRORS: 4.0}
    _, failed = outcomes([first, snapshot(10, {Quantity.FINISHED: 0.0, **served})])
    assert failed == Unknown("absent")


def test_failures_never_fall_below_those_of_a_process_before() -> None:
    history = filled(
        *(snapshot(5.0 * n, {Quantity.HTTP_ERRORS: 9.0, Quantity.HTTP_REQUESTS: 90.0 + n})
          for n in range(3)),
        *(snapshot(15.0 + 5 * n, {Quantity.HTTP_ERRORS: 1.0 + n, Quantity.HTTP_REQUESTS: 100.0 + n})
          for n in range(3)),
    )  # fmt: skip
    assert history.epoch_reason is EpochReason.RESTART
    assert outcomes(history.snapshots) == (Known(2, 25), Known(2, 25))


def there(at: float, finished: float, running: float, waiting: float) -> Snapshot:
    return snapshot(
        at,
        {
            Quantity.FINISHED: finished, Quantity.RUNNING: running, Quantity.WAITING: waiting,
            Quantity.GENERATION_TOKENS: at,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("looks", "arrived", "dispersion"),
    [
        # Two arrive each time, whether they finish, run or wait.
        ([(0, 4, 0), (2, 4, 0), (3, 5, 0), (3, 5, 2)], 6, 0.0),
        ([(0, 4, 0), (0, 4, 6), (0, 4, 6), (0, 4, 6)], 6, 4.0),
        # Who hangs up leaves without finishing.
        ([(0, 4, 9), (0, 4, 0), (0, 4, 3), (0, 4, 6)], 6, 1.0),
        ([(0, 4, 0)] * 4, 0, None),
    ],
)
def test_arrivals_are_those_that_ended_and_those_that_are_there(
    looks: list[tuple[float, float, float]], arrived: float, dispersion: float | None
) -> None:
    found = window([there(20.0 * n, *each) for n, each in enumerate(looks)], 60, 3, 0.7)
    assert isinstance(found, Window)
    assert isinstance(found.arrived, Known)
    assert found.arrived.value == arrived
    spread = found.arrival_dispersion
    assert (spread.value if isinstance(spread, Known) else None) == dispersion


def test_how_long_an_engine_was_away_is_seen_at_its_restart() -> None:
    assert filled(counted(0, 5), counted(5, 9)).away_seconds is None
    history = filled(counted(0, 5), counted(5, 9))
    history.add(counted(80, 1), 80)
    assert history.away_seconds == 75
    history.add(counted(85, 2, settings=["other"]), 85)
    assert history.away_seconds == 75
