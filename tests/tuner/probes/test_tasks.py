"""Tasks with exact answers: what is asked, and what counts as right."""

import re

import pytest

from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.prompts import Metric, Prompt
from kvserving_tuner.probes.tasks import METHODS, builtin_task, reference_task

MADE_UP = list(METHODS)


def text(probe: Probe, words: int = 300, number: int = 0) -> str:
    return builtin_task(probe, words, number).prompt.plain


@pytest.mark.parametrize("probe", MADE_UP)
def test_tasks_are_the_same_each_time_and_none_comes_twice(probe: Probe) -> None:
    assert text(probe) == text(probe)
    assert len({text(probe, number=number) for number in range(100)}) == 100


@pytest.mark.parametrize("probe", MADE_UP)
@pytest.mark.parametrize("words", [200, 1000])
def test_tasks_are_about_as_long_as_asked_for(probe: Probe, words: int) -> None:
    for number in range(8):
        assert 0.7 * words < len(text(probe, words, number).split()) < 1.6 * words


@pytest.mark.parametrize("probe", MADE_UP)
def test_no_answer_and_nonsense_are_wrong(probe: Probe) -> None:
    task = builtin_task(probe, 300, 1)
    assert task.grade(task.start) == 0
    assert task.grade(task.start + " blah" * 40) == 0


def test_a_needle_is_found_at_every_depth_and_another_number_is_none() -> None:
    places = []
    for number in range(5):
        task = builtin_task(Probe.NEEDLE, 400, number)
        told = re.search(rf"{task.start} (\d+)\.", task.prompt.plain)
        assert told is not None
        places.append(told.start() / len(task.prompt.plain))
        assert task.grade(f"{task.start} {told[1]}.") == 1
        assert task.grade(f"{task.start} {int(told[1]) + 1}.") == 0
    assert places == sorted(places)
    assert places[0] < 0.25
    assert places[-1] > 0.75


def test_what_was_said_in_one_turn_is_asked_for_after_all() -> None:
    task = builtin_task(Probe.RECALL, 400, 3)
    assert len(task.prompt.messages) > 20
    code = task.start.split()[2]
    told = re.search(rf"My order {code} goes to ([\w ]+)\.", task.prompt.plain)
    assert told is not None
    assert task.grade(f"{task.start} {told[1]}.") == 1
    assert task.grade(f"{task.start} Hamburg.") == 0


def test_an_object_is_graded_by_its_fields() -> None:
    task = builtin_task(Probe.STRUCTURED_OUTPUT, 200, 0)
    (_, said), *_ = task.prompt.messages
    asked = re.findall(r"order (\w+), (\d+) crates, ([\w' ]+), received by ([\w ]+)\. JSON:", said)
    order, crates, goods, receiver = asked[-1]
    right = f'{{"order": "{order}", "crates": {crates}, "goods": "{goods}", "receiver": '
    assert task.grade(f'{right}"{receiver}"}} and more') == 1
    assert task.grade(f'{right}"Nobody"}}') == 0.75
    assert task.grade(right) == 0


def test_a_summary_is_graded_by_what_its_text_supports() -> None:
    task = builtin_task(Probe.GROUNDEDNESS, 200, 0)
    (_, said), *_ = task.prompt.messages
    sentence = said.split("Log: ")[1].split(". ")[0]
    assert task.grade(f"{sentence}.") == 1
    assert task.grade(f"{sentence}. The mayor of Hamburg resigned in 1987.") == 0.5


@pytest.mark.parametrize("metric", list(Metric))
def test_an_answer_is_held_against_its_reference(metric: Metric) -> None:
    reference = "The ferry to Odden leaves at noon from the second pier."
    task = reference_task(Prompt("a", text="When?", reference=reference, metric=metric))
    assert task.grade(reference) == pytest.approx(1)
    assert task.grade("zzz") < 0.05
    near = task.grade("The ferry to Odden leaves at noon from another pier.")
    assert 0.3 < near < 1
    assert task.answer_tokens > len(reference.split())


def test_chrf_is_that_of_the_paper() -> None:
    # Characters of one order: 2 of 3 in both directions; sacrebleu's chrF2 takes orders up to 6
    # that both texts have, and the mean of their F-scores: (2/3 + 1/2 + 0) / 3.
    task = reference_task(Prompt("a", text="?", reference="abc"))
    assert task.grade("abd") == pytest.approx((2 / 3 + 1 / 2) / 3, abs=0.01)
