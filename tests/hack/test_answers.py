"""How far two answers are apart."""

import pytest

from harness.answers import answer_of, difference

ONE = [(3, -1.0), (4, -2.0), (5, -3.0)]


def test_the_place_where_they_are_farthest_apart_counts() -> None:
    other = [(3, -1.0), (4, -2.5), (5, -3.25)]
    assert difference([ONE, ONE], [ONE, other]) == 0.5
    assert difference([other, ONE], [ONE, ONE]) == 0.5
    assert difference([ONE], [ONE]) == 0


def test_what_follows_another_token_is_not_compared() -> None:
    tie = [(3, -1.0), (7, -2.125), (8, -9.0)]
    assert difference([ONE], [tie]) == 0.125
    another = [(7, -6.0), (4, -2.0), (5, -3.0)]
    assert difference([ONE], [another]) == 5


@pytest.mark.parametrize(("some", "others"), [([ONE], [ONE, ONE]), ([ONE], [ONE[:2]])])
def test_answers_of_other_lengths_are_not_compared(some: object, others: object) -> None:
    with pytest.raises(ValueError, match="zip"):
        difference(some, others)  # type: ignore[arg-type]


def test_tokens_are_read_with_their_log_probabilities() -> None:
    choice = {"token_ids": [3, 4], "logprobs": {"token_logprobs": [-1.0, -2.0]}}
    assert answer_of(choice) == ONE[:2]
    # A stream's last part may have neither.
    assert answer_of({"token_ids": None, "logprobs": None}) == []
