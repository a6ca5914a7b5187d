"""Gains: bounded, in order, and as uncertain as what they rest on."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvserving_tuner.ladder.forecast import PRIOR, growth, more_sequences
from kvserving_tuner.remembered import Sample


def sample(running: float, step_seconds: float | None) -> Sample:
    return Sample(
        at=0, goodput=1, missed=None, tokens_per_second=1, waiting=0, running=running,
        preemptions_per_second=0, finished=1, step_seconds=step_seconds,
    )  # fmt: skip


def test_steps_that_do_not_grow_give_all_of_the_sequences() -> None:
    flat = growth([sample(n, 0.1) for n in (8, 16, 24, 32, 40)], 40)
    assert more_sequences(2.0, flat, "").gain == pytest.approx(1.0)


def test_steps_that_grow_in_proportion_give_nothing() -> None:
    steep = growth([sample(n, 0.01 * n) for n in (8, 16, 24, 32, 40)], 40)
    assert more_sequences(2.0, steep, "").gain == pytest.approx(0.0)


def test_the_share_is_that_of_the_line_through_the_windows() -> None:
    # 6.6 ms and 0.0833 ms for each sequence: the measured H100 of the prior.
    found = growth([sample(n, 0.0066 + 0.0000833 * n) for n in (32, 48, 64, 96, 128)], 64)
    assert found.share == pytest.approx(0.447, abs=0.005)
    assert PRIOR.low < found.share < PRIOR.high


@pytest.mark.parametrize("wild", [0.001, 0.1, 2.0])
def test_a_window_that_is_far_off_moves_no_forecast(wild: float) -> None:
    counts = (32, 48, 64, 80, 96, 112, 128)
    seen = [sample(n, 0.0066 + 0.0000833 * n) for n in counts]
    found = growth([*seen[:3], sample(70, wild), *seen[3:]], 64)
    expected = growth(seen, 64)
    assert found.share == pytest.approx(expected.share)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(n, 0.1) for n in (8, 16, 24, 32)],
        [sample(n, 0.1) for n in (30, 31, 32, 33, 34)],
        [sample(n, None) for n in (8, 16, 24, 32, 40)],
        [sample(0, 0.1)] * 9,
    ],
)
def test_too_little_to_tell_leaves_the_prior(samples: list[Sample]) -> None:
    assert growth(samples, 32) == PRIOR


@given(
    st.floats(0, 20),
    st.lists(st.tuples(st.floats(0.1, 1000), st.floats(1e-4, 10)), max_size=16),
    st.floats(0.1, 1000),
    st.floats(0, 1),
)
@example(2.0, [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (2.0, 0.125)], 2.0, 0.0)
@example(2.0, [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (8.0, 0.125)], 9.0, 0.0)
def test_a_forecast_is_ordered_and_never_more_than_the_sequences_and_the_waste(
    ratio: float, seen: list[tuple[float, float]], running: float, wasted: float
) -> None:
    steps = growth([sample(n, t) for n, t in seen], running)
    found = more_sequences(ratio, steps, "", wasted)
    assert 0 <= found.low <= found.gain + 1e-9
    assert found.gain <= found.high + 1e-9
    assert found.high <= 2 * max(1.0, ratio) - 1 + 1e-6
