"""Evidence that a split of requests is not the promised one."""

import random

import pytest

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.sample_ratio import sample_ratio_e_value


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_a_kept_promise_is_seldom_doubted_however_often_one_looks(share: float) -> None:
    source, doubted = random.Random(11), 0
    for _ in range(100):
        candidate = 0
        for count in range(1, 1001):
            candidate += source.random() < share
            if sample_ratio_e_value(candidate, count - candidate, share) >= 20:
                doubted += 1
                break
    assert doubted <= 9


def test_a_broken_promise_is_found() -> None:
    assert sample_ratio_e_value(160, 1840, 0.05) >= 1000
    assert sample_ratio_e_value(110, 1890, 0.05) < 20


def test_it_is_the_ratio_of_two_probabilities() -> None:
    # By hand: the mixture's chance of a candidate is its prior mean at first.
    assert sample_ratio_e_value(1, 0, 0.25) == pytest.approx(1)
    # Two of two: 25/100 * 26/101 against 1/16.
    assert sample_ratio_e_value(2, 0, 0.25) == pytest.approx(25 / 100 * 26 / 101 * 16)


def test_counts_and_shares_are_checked() -> None:
    with pytest.raises(JudgeError, match="requests: expected none or more, got -1 and 2"):
        sample_ratio_e_value(-1, 2, 0.5)
    with pytest.raises(JudgeError, match="candidate_share"):
        sample_ratio_e_value(1, 2, 1.0)
