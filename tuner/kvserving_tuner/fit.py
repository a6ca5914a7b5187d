"""How many sequences the KV cache holds, from what requests measured so far looked like.

Running sequences are caught somewhere between their prompt alone and their full length, and long
answers are caught more often than short ones. The sum over many of them is close to normal, which
gives the largest number that outgrows the cache only with a small, chosen probability.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, Window
from kvserving_tuner.readings import Unknown, known
from kvserving_tuner.settings import CapRules

# Variance of a uniform position within an answer of fixed length, and of the exponential limit.
_UNIFORM_VARIANCE = 1 / 12


@dataclass(frozen=True, slots=True)
class Residence:
    """Tokens one running sequence holds at a random moment: mean and standard deviation."""

    mean: float
    deviation: float


def residence(
    prompts: Histogram, answers: Histogram, block_size: float | None
) -> Residence | Unknown:
    """Tokens held per running sequence, from the lengths of finished requests."""
    prompt, answer = prompts.mean, answers.mean
    if isinstance(prompt, Unknown) or isinstance(answer, Unknown):
        return Unknown("no finished requests")
    spread = _variation(answers)
    prompt_deviation = prompt * math.sqrt(_variation(prompts))
    held = prompt + answer * (1 + spread) / 2 + (block_size or 0.0) / 2
    share = min(1.0, spread)
    answer_variance = answer**2 * (_UNIFORM_VARIANCE + (1 - _UNIFORM_VARIANCE) * share)
    return Residence(held, math.sqrt(prompt_deviation**2 + answer_variance))


def _variation(lengths: Histogram) -> float:
    spread = lengths.squared_variation()
    return 1.0 if isinstance(spread, Unknown) else spread


def fitting_sequences(capacity_tokens: float, each: Residence, rules: CapRules) -> int:
    """Largest number of sequences that outgrow the cache with probability below `fit_risk`.

    Solves n * mean + z * deviation * sqrt(n) <= (1 - reserve) * capacity for n.
    """
    quantile = NormalDist().inv_cdf(1 - rules.fit_risk)
    room = (1 - rules.fit_reserve) * capacity_tokens
    spread = quantile * each.deviation
    root = (-spread + math.sqrt(spread**2 + 4 * each.mean * room)) / (2 * each.mean)
    return max(1, math.floor(root**2 + 1e-9))


def engine_fit(engine: EngineObservation, rules: CapRules) -> int | Unknown:
    """How many sequences fit one rank of an engine, from its own lengths and capacity."""
    capacity = known(engine.capacity_tokens)
    if capacity is None:
        return Unknown("capacity of the KV cache is not known")
    lengths = _lengths(engine, rules)
    if isinstance(lengths, Unknown):
        return lengths
    each = residence(*lengths, known(engine.block_size))
    return each if isinstance(each, Unknown) else fitting_sequences(capacity, each, rules)


def tokens_per_request(engine: EngineObservation, rules: CapRules) -> float | None:
    """Prompt and answer tokens of a finished request, on average, lately or else ever."""
    return _mean_total(_lengths(engine, rules))


def window_tokens_per_request(part: Window, rules: CapRules) -> float | None:
    """Prompt and answer tokens of the requests that finished in a window, on average."""
    return _mean_total(_enough(part.prompt_lengths, part.answer_lengths, rules))


def _lengths(engine: EngineObservation, rules: CapRules) -> tuple[Histogram, Histogram] | Unknown:
    """Lengths of finished requests: of the recent window if enough finished, else of all."""
    if isinstance(engine.full, Window):
        recent = _enough(engine.full.prompt_lengths, engine.full.answer_lengths, rules)
        if not isinstance(recent, Unknown):
            return recent
    return _enough(engine.prompt_lengths, engine.answer_lengths, rules)


def _enough(
    prompts: Histogram | Unknown, answers: Histogram | Unknown, rules: CapRules
) -> tuple[Histogram, Histogram] | Unknown:
    if isinstance(prompts, Unknown):
        return prompts
    if isinstance(answers, Unknown):
        return answers
    if min(prompts.count, answers.count) < rules.fit_minimum_finished:
        return Unknown(f"fewer than {rules.fit_minimum_finished:g} finished requests")
    return prompts, answers


def _mean_total(lengths: tuple[Histogram, Histogram] | Unknown) -> float | None:
    if isinstance(lengths, Unknown):
        return None
    prompt, answer = lengths[0].mean, lengths[1].mean
    if isinstance(prompt, Unknown) or isinstance(answer, Unknown):
        return None
    return prompt + answer
