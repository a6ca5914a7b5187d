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
    with pytest.raises(JudgeError, match="tolerance: expected at least 0, got -1"):
        sample_ratio_e_value(1, 2, 0.5, -1)


def test_without_requests_there_is_no_evidence() -> None:
    assert sample_ratio_e_value(0, 0, 0.05, 0.02) == 1.0


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("off", [-0.02, 0.02])
def test_a_share_within_the_tolerance_is_seldom_doubted(share: float, off: float) -> None:
    source, doubted, true = random.Random(17), 0, min(max(share + off, 0.0), 1.0)
    for _ in range(60):
        candidate = 0
        for count in range(1, 1501):
            candidate += source.random() < true
            if sample_ratio_e_value(candidate, count - candidate, share, 0.02) >= 20:
                doubted += 1
                break
    assert doubted <= 6


def test_a_share_beyond_the_tolerance_is_found_and_one_within_never() -> None:
    assert sample_ratio_e_value(200, 1800, 0.05, 0.02) >= 1000
    assert sample_ratio_e_value(7_000, 93_000, 0.05, 0.02) < 1
    assert sample_ratio_e_value(7_000, 93_000, 0.05) > 1000
    # A share of 1 % may be none at all, but not all.
    assert sample_ratio_e_value(0, 3000, 0.01, 0.02) < 1
    assert sample_ratio_e_value(50, 0, 0.99, 0.02) < 1
    assert sample_ratio_e_value(50, 0, 0.01, 0.02) > 1000


def test_with_a_tolerance_it_is_the_least_of_all_shares_within() -> None:
    for candidate, stable in ((30, 170), (3, 97), (12, 188)):
        shares = [0.03 + 0.0001 * step for step in range(401)]
        chances = [share**candidate * (1 - share) ** stable for share in shares]
        promised = 0.05**candidate * 0.95**stable
        least = sample_ratio_e_value(candidate, stable, 0.05) * promised / max(chances)
        assert sample_ratio_e_value(candidate, stable, 0.05, 0.02) == pytest.approx(least, rel=1e-4)
