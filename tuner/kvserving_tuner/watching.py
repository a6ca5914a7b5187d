"""What became of a change that the tuner made by itself: windows after it against those before.

It is the judge of changes that no trial judges, on engines that have no other arm: it looks for
harm. A loss counts only beyond its noise, and only while there was something to serve. The token
budget, which moves in many small steps, has to gain something too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvserving_tuner.decision import Knob
from kvserving_tuner.remembered import Sample, Watch
from kvserving_tuner.rules import Guardrails
from kvserving_tuner.settings import Slo

SURE = 2.0
"""Standard errors beyond which a difference is no noise."""
COLLAPSE = 0.5
"""Loss of goodput in each of the first windows that need not be watched to the end."""
COLLAPSED_WINDOWS = 2


class Finding(StrEnum):
    """Where a watched change stands."""

    GOES_ON = "GoesOn"
    PASSED = "Passed"
    HARMFUL = "Harmful"
    NOT_KNOWN = "NotKnown"
    """Too little was seen in the time there was."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A finding and what it rests on."""

    finding: Finding
    message: str


def look(watch: Watch, rules: Guardrails, slo: Slo, now: float) -> Watched:
    """What the windows so far say of a change."""
    before, after = watch.before, watch.after
    if _collapsed(before, after, slo):
        return Watched(Finding.HARMFUL, _loss_in_words(before, after, slo))
    if len(after) < rules.watch_windows:
        if now - watch.at > rules.watch_timeout_seconds:
            message = (
                f"{len(after)} of {rules.watch_windows} windows could be read in "
                f"{now - watch.at:.0f} s"
            )
            return Watched(Finding.NOT_KNOWN, message)
        message = f"{len(after)} of {rules.watch_windows} windows"
        return Watched(Finding.GOES_ON, message)
    rise = _difference([s.missed or 0.0 for s in after], [s.missed or 0.0 for s in before])
    if rise.beyond(rules.harm_share) and _mean([s.missed or 0.0 for s in after]) > slo.missed_share:
        return Watched(
            Finding.HARMFUL,
            f"{_mean([s.missed or 0.0 for s in after]):.0%} of the requests miss a target, before "
            f"the change {_mean([s.missed or 0.0 for s in before]):.0%}",
        )
    if any(each.waiting > 0 for each in after) and _serves_less(before, after, slo, rules):
        return Watched(Finding.HARMFUL, _loss_in_words(before, after, slo))
    words = _loss_in_words(before, after, slo)
    if watch.knob is Knob.MAX_SCHEDULED_TOKENS and not _gained(before, after):
        # Many steps that each cost a little would add up.
        return Watched(Finding.HARMFUL, f"nothing that shows was gained: {words}")
    return Watched(Finding.PASSED, words)


def _gained(before: Sequence[Sample], after: Sequence[Sample]) -> bool:
    """Whether more is served within the targets, or fewer requests miss them, beyond noise."""
    missed = [[each.missed or 0.0 for each in part] for part in (before, after)]
    goodput = [[each.goodput for each in part] for part in (after, before)]
    return _difference(*missed).beyond(0.0) or _difference(*goodput).beyond(0.0)


def _serves_less(
    before: Sequence[Sample], after: Sequence[Sample], slo: Slo, rules: Guardrails
) -> bool:
    """Whether less is served within the targets, or fewer tokens with no more within them."""

    def lost(one: Sequence[float], other: Sequence[float]) -> bool:
        usual = _mean(one)
        return usual > 0 and _difference(one, other).beyond(rules.harm_share * usual)

    good = [each.goodput for each in before], [each.goodput for each in after]
    tokens = [s.tokens_per_second for s in before], [s.tokens_per_second for s in after]
    targeted = slo.ttft_ms is not None or slo.tpot_ms is not None
    if targeted and lost(*good):
        return True
    better = targeted and _difference(good[1], good[0]).beyond(rules.harm_share * _mean(good[0]))
    return lost(*tokens) and not better


@dataclass(frozen=True, slots=True)
class _Difference:
    value: float
    error: float

    def beyond(self, bound: float) -> bool:
        """Whether the difference is larger than a bound, and larger than noise."""
        return self.value > bound and self.value > SURE * self.error


def _difference(one: Sequence[float], other: Sequence[float]) -> _Difference:
    error = math.sqrt(_variance(one) / len(one) + _variance(other) / len(other))
    return _Difference(_mean(one) - _mean(other), error)


def _collapsed(before: Sequence[Sample], after: Sequence[Sample], slo: Slo) -> bool:
    if len(after) < COLLAPSED_WINDOWS or not before:
        return False
    usual = COLLAPSE * _mean(_served(before, slo))
    waits = all(each.waiting > 0 for each in after)
    return waits and all(value < usual for value in _served(after, slo))


def _served(samples: Sequence[Sample], slo: Slo) -> list[float]:
    """What counts as service: goodput where there are targets, else tokens."""
    targeted = slo.ttft_ms is not None or slo.tpot_ms is not None
    return [each.goodput if targeted else each.tokens_per_second for each in samples]


def _loss_in_words(before: Sequence[Sample], after: Sequence[Sample], slo: Slo) -> str:
    targeted = slo.ttft_ms is not None or slo.tpot_ms is not None
    unit = "requests/s within target" if targeted else "tokens/s"
    then, now = _mean(_served(before, slo)), _mean(_served(after, slo))
    tokens = [_mean([each.tokens_per_second for each in part]) for part in (after, before)]
    more = f" ({tokens[0]:.0f} and {tokens[1]:.0f} tokens/s)" if targeted else ""
    return f"{now:.2f} {unit} in {len(after)} windows, before the change {then:.2f}{more}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = _mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
