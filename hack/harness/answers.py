"""Compares answers by log-probabilities: a tiny model's tokens say little of its cache."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Answer = Sequence[tuple[int, float]]
"""Tokens in their order, each with its log-probability in nats."""


def answer_of(choice: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The tokens of a choice of /v1/completions, or of a part of one.

    It was asked for with `return_token_ids` and `logprobs`.
    """
    tokens = choice["token_ids"] or ()
    logprobs = (choice["logprobs"] or {"token_logprobs": ()})["token_logprobs"]
    return list(zip(tokens, logprobs, strict=True))


def difference(some: Iterable[Answer], others: Iterable[Answer]) -> float:
    """Largest difference in nats between the same requests' answers, place by place.

    Where two answers part, the tokens at which they do are the last that are compared: a tie that
    turned leaves those alike, and what follows another token is another text.
    """
    found = [0.0]
    for one, other in zip(some, others, strict=True):
        for (token, logprob), (instead, its) in zip(one, other, strict=True):
            found.append(abs(logprob - its))
            if token != instead:
                break
    return max(found)
