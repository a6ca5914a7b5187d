"""What tasks have to be longer than."""

from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.trials.task_set import kept_tokens


def seen(sinks: int, window: int, position: int, size: int) -> int:
    """Tokens that the one at `position` sees: whole blocks of its sinks and of its window."""
    first = range(min(sinks, position + 1))
    latest = range(max(0, position + 1 - window), position + 1)
    blocks = {token // size for token in (*first, *latest)}
    return sum(min(size, position + 1 - block * size) for block in blocks)


@given(st.integers(0, 40), st.integers(1, 40), st.sampled_from([1, 4, 16]))
def test_what_eviction_keeps_is_the_most_that_a_token_sees(
    sinks: int, window: int, size: int
) -> None:
    eviction = {"policy": "StreamingLLM", "sink_tokens": sinks, "window_tokens": window}
    positions = range(sinks + window + 3 * size)
    found = [seen(sinks, window, position, size) for position in positions]
    assert max(found) == kept_tokens(eviction, size)


def test_an_engine_that_is_told_no_sinks_keeps_its_own() -> None:
    told = {"policy": "StreamingLLM", "window_tokens": 64}
    assert kept_tokens(told, 16) == kept_tokens({**told, "sink_tokens": 4}, 16) == 16 + 64 + 15
    assert kept_tokens({**told, "sink_tokens": None}, 16) == kept_tokens(told, 16)


def test_without_eviction_nothing_is_left_out() -> None:
    assert kept_tokens({"policy": "None"}, 16) == 0
