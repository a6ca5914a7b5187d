"""Answers held against a user's references by how many n-grams they share.

chrF (characters; Popović, 2015) suits short answers and every language; BLEU (words; Papineni et
al., 2002) is there for those who know its numbers. Both are sacrebleu's, a number for each answer.
"""

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from kvserving_tuner.probes.prompts import Metric, Prompt
from kvserving_tuner.probes.tasks.base import Task

MOST_ANSWER_TOKENS = 512
TOKENS_PER_WORD = 3
"""Room for an answer as long as its reference, whatever the language and the tokenizer."""

_METRICS = {Metric.CHRF: CHRF(), Metric.BLEU: BLEU(effective_order=True)}


def similarity(answer: str, reference: str, metric: Metric) -> float:
    """Likeness of an answer to its reference, between 0 and 1."""
    score: float = _METRICS[metric].sentence_score(answer, [reference]).score
    return min(max(score / 100, 0.0), 1.0)


def reference_task(prompt: Prompt) -> Task:
    """The task of a prompt that has a reference."""
    words = max(len(prompt.reference.split()), len(prompt.reference) // 6)
    return Task(
        prompt=prompt,
        grade=lambda answer: similarity(answer, prompt.reference, prompt.metric),
        answer_tokens=min(MOST_ANSWER_TOKENS, 16 + TOKENS_PER_WORD * words),
    )
