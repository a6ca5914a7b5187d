"""Scores of answers that are right, half right and wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.probes.scoring import (
    first_object,
    groundedness,
    is_garbage,
    json_fields,
    recall,
)

CONTEXT = (
    "The ferry Maren leaves Aarhus at 7.45 and reaches Odden after 71 minutes. A ticket for a car "
    "costs 349 kroner; bicycles travel free of charge."
)


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("The number is 48213.", ["48213"], 1.0),
        ("The number is 482134.", ["48213"], 0.0),
        ("BLUE, and then Green!", ["blue", "green", "red"], pytest.approx(2 / 3)),
        ("She said: the old harbor.", ["Old Harbor"], 1.0),
        ("harbor old", ["old harbor"], 0.0),
        ("It costs 3.50", ["3.50"], 1.0),
        ("", ["a"], 0.0),
        ("anything", [], 1.0),
    ],
)
def test_recall_counts_whole_words(answer: str, expected: list[str], score: float) -> None:
    assert recall(answer, expected) == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"name": "Ada", "age": 36}', 1.0),
        ('Here it is:\n```json\n{"name": "Ada", "age": 36, "more": []}\n```', 1.0),
        ('{"name": "Ada", "age": "36"}', 0.5),
        ('{broken {"name": "Ada"', 0.0),
        ('[1, 2] and {"name": "Ada"} and {"age": 36}', 0.5),
        ("no object", 0.0),
    ],
)
def test_fields_of_an_object(answer: str, score: float) -> None:
    assert json_fields(answer, {"name": "Ada", "age": 36}) == score


@given(st.text(max_size=200))
def test_any_text_can_be_looked_through(text: str) -> None:
    first_object(text)
    is_garbage(text)
    assert 0 <= groundedness(text, CONTEXT) <= 1
    assert 0 <= recall(text, ["a", "b"]) <= 1


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("The ferry leaves Aarhus at 7.45. A car costs 349 kroner.", 1.0),
        ("The ferry leaves Aarhus at 8.15. A car costs 349 kroner.", 0.5),
        ("Passengers from Hamburg receive complimentary breakfast.", 0.0),
        ("", 1.0),
    ],
)
def test_what_the_context_does_not_have_is_not_supported(answer: str, score: float) -> None:
    assert groundedness(answer, CONTEXT) == score


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n",
        "\ufffd\ufffd\ufffd ok",
        "!!!!!!!!!!!!!!!!!!!!",
        "the answer is the answer is the answer is the answer is the answer is the answer is",
        "no " * 40,
    ],
)
def test_garbage(answer: str) -> None:
    assert is_garbage(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Yes.",
        "42",
        CONTEXT,
        "No, no, no: the ferry does not stop there.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
    ],
)
def test_answers_are_no_garbage(answer: str) -> None:
    assert not is_garbage(answer)
