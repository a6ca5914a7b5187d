"""Probe sets: what a user writes, and what is built in."""

import pytest

from kvserving_tuner.errors import ProbeSetError
from kvserving_tuner.probes.builtin import builtin
from kvserving_tuner.probes.prompts import Metric, Prompt, read_prompts


def test_texts_and_conversations_are_read() -> None:
    document = (
        '{"prompt": "Once"}\n\n'
        '{"name": "two", "messages": [{"role": "user", "content": "Hello"}]}\n'
    )
    assert read_prompts(document) == (
        Prompt("line 1", text="Once"),
        Prompt("two", messages=(("user", "Hello"),)),
    )


def test_a_line_may_have_a_good_answer() -> None:
    (plain, by_words) = read_prompts(
        '{"prompt": "When?", "reference": "At noon."}\n'
        '{"prompt": "When?", "reference": "At noon.", "metric": "BLEU"}'
    )
    assert plain == Prompt("line 1", text="When?", reference="At noon.", metric=Metric.CHRF)
    assert by_words.metric is Metric.BLEU


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "expected at least one prompt"),
        ("{", "line 1: expected a JSON object"),
        ("[]", "line 1: expected a JSON object, got list"),
        (
            '{"prompt": "a"}\n{"text": "b"}',
            "line 2: text: expected one of name, prompt, messages, reference, metric",
        ),
        ("{}", "expected either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "expected either prompt or messages"),
        ('{"prompt": ""}', "prompt: expected a text"),
        ('{"prompt": 1}', "prompt: expected a text"),
        ('{"prompt": "a", "name": 1}', "name: expected a string, got int"),
        ('{"messages": []}', "messages: expected a list of at least one message"),
        ('{"messages": "hello"}', "messages: expected a list"),
        ('{"messages": [{"role": "user"}]}', "messages[0]: expected an object of role and content"),
        (
            '{"messages": [{"role": "robot", "content": "a"}]}',
            "messages[0].role: expected one of system, user, assistant, got 'robot'",
        ),
        ('{"messages": [{"role": "user", "content": 1}]}', "messages[0].content: expected a text"),
        ('{"prompt": "a", "reference": ""}', "line 1: reference: expected a text"),
        ('{"prompt": "a"}\n{"prompt": "b", "reference": 1}', "line 2: reference: expected a text"),
        ('{"prompt": "a", "metric": "BLEU"}', "metric: expected a reference beside it"),
        (
            '{"prompt": "a", "reference": "b", "metric": "rouge"}',
            "metric: expected one of chrF, BLEU, got 'rouge'",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "a"}], "reference": "b"}',
            "line 1: messages: expected the last one to ask what reference answers",
        ),
    ],
)
def test_a_fault_is_named_with_its_line_and_field(document: str, words: str) -> None:
    with pytest.raises(ProbeSetError) as raised:
        read_prompts(document)
    assert words in str(raised.value)


def test_the_built_in_set_is_the_same_each_time_and_no_prompt_comes_twice() -> None:
    prompts = builtin(400, 300)
    assert prompts == builtin(400, 300)
    assert len({prompt.messages for prompt in prompts}) == 400
    assert prompts[:10] == builtin(10, 300)


@pytest.mark.parametrize("words", [100, 400, 2000])
def test_built_in_prompts_are_about_as_long_as_asked_for(words: int) -> None:
    for prompt in builtin(16, words):
        counted = sum(len(content.split()) for _, content in prompt.messages)
        assert 0.6 * words < counted < 2 * words
