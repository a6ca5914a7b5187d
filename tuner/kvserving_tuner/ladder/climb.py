"""The ladder in its order, and which rung is taken now.

Cheap, reversible and lossless first (tuning reference, C.4). Prefix caching and the caps come
before fewer bits because they cost no answer; what engines are built for comes after, because a
smaller format changes how many sequences it should be.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.decision import Case, CostClass, PassedOver, Risk, RungName
from kvserving_tuner.ladder import formats, service
from kvserving_tuner.ladder.rung import Candidate, Rung
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.remembered import Judged, Tried, latest
from kvserving_tuner.rules import Ability, Strategy

LADDER: Final = (
    Rung(
        RungName.CONFIGURATION, CostClass.RESTART, Risk.REVERSIBLE,
        "a start setting is wrong whatever the load", service.consider_configuration,
    ),
    Rung(
        RungName.PREFIX_CACHING, CostClass.RESTART, Risk.REVERSIBLE,
        "it is off, and nothing evicts", service.consider_prefix_caching,
    ),
    Rung(
        RungName.ADMISSION, CostClass.RESTART, Risk.REFUSALS,
        "the queue alone takes longer than the target for the first token",
        service.consider_admission,
    ),
    Rung(
        RungName.ACTIVE_CAP, CostClass.LIVE, Risk.REVERSIBLE,
        "one target of latency is missed and the other has room", service.consider_caps,
    ),
    Rung(
        RungName.WATERMARK, CostClass.RESTART, Risk.LATENCY,
        "the KV cache binds, and preemptions cost work", service.consider_watermark,
    ),
    Rung(
        RungName.EIGHT_BIT_CACHE, None, Risk.QUALITY,
        "the KV cache binds", formats.consider_eight_bits,
    ),
    Rung(
        RungName.MIXED_CACHE, None, Risk.QUALITY,
        "the KV cache binds", formats.consider_mixed,
    ),
    Rung(
        RungName.CAPACITY, CostClass.RESTART, Risk.START,
        "the live caps are as high as engines are built for", service.consider_capacity,
    ),
    Rung(
        RungName.OFFLOAD, CostClass.RESTART, Risk.START,
        "what requests share is evicted before it is asked for again", service.consider_offload,
    ),
    Rung(
        RungName.FOUR_BIT_CACHE, None, Risk.QUALITY,
        "the KV cache binds", formats.consider_four_bits,
    ),
    Rung(
        RungName.FEWER_BITS, None, Risk.QUALITY,
        "the KV cache binds", formats.consider_fewer_bits,
    ),
    Rung(
        RungName.EVICTION, CostClass.LIVE, Risk.QUALITY,
        "the KV cache binds", service.consider_eviction,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """A rung and the change that it would make."""

    rung: Rung
    candidate: Candidate

    def case(self, situation: Situation) -> Case:
        """What speaks for it."""
        live = self.candidate.cost is CostClass.LIVE
        modelled = situation.settings.ladder.strategy is Strategy.MODEL
        return Case(
            self.rung.name,
            self.rung.risk,
            self.candidate.forecast if modelled else None,
            0.0 if live else start_seconds(situation),
        )


@dataclass(frozen=True, slots=True)
class Climb:
    """The rung to take, the first one to recommend, and the rungs that were passed over.

    Those are the ones before `step`, or all others where there is none.

    `advice` is one that stands before `step`, or that would be it if anybody could carry it out.
    """

    step: Step | None
    advice: Step | None
    passed_over: tuple[PassedOver, ...]


def climb(situation: Situation) -> Climb:
    """Look at every rung in order."""
    passed: dict[RungName, PassedOver] = {}
    found: list[Step] = []
    for rung in LADDER:
        candidate = rung.consider(situation)
        why = candidate if isinstance(candidate, str) else _refusal(situation, rung, candidate)
        if isinstance(candidate, str) or why:
            passed[rung.name] = PassedOver(rung.name, why)
        else:
            found.append(Step(rung, candidate))
    kept = []
    for each in found:
        better = _live_below(situation, each, found)
        if better:
            passed[each.rung.name] = PassedOver(each.rung.name, better)
        else:
            kept.append(each)
    doable = [each for each in kept if _can(situation, each.candidate)]
    step = doable[0] if doable else None
    first = kept[0] if kept else None
    advice = first if first is not step else None
    if step is not None:
        _note_advice(passed, kept, step)
    return Climb(step, advice, _in_order(passed, None if step is None else step.rung.name))


def passed_before(situation: Situation, name: RungName) -> tuple[PassedOver, ...]:
    """Why each rung before `name` is not taken, where `name` is decided elsewhere."""
    passed: dict[RungName, PassedOver] = {}
    for rung in LADDER:
        if rung.name is name:
            break
        candidate = rung.consider(situation)
        if not isinstance(candidate, str):
            candidate = _refusal(situation, rung, candidate) or (
                f"{candidate.message}; a live change that can be taken back comes first"
            )
        passed[rung.name] = PassedOver(rung.name, candidate)
    return _in_order(passed, name)


def start_seconds(situation: Situation) -> float | None:
    """How long engines were away at their last restarts: the longest; None if none was seen."""
    seen = [each.away_seconds for each in situation.engines if each.away_seconds is not None]
    return max(seen, default=None)


def judged(situation: Situation, candidate: Candidate) -> Tried | None:
    """How this very change turned out under this load, while that counts."""
    return latest(
        situation.state.tried,
        candidate.knob,
        candidate.to_value,
        {situation.state.loads.current},
        situation.now,
    )


def _refusal(situation: Situation, rung: Rung, candidate: Candidate) -> str:
    """Why a change may not be made here at all, or is not worth it; empty where it may."""
    if situation.settings.ability(candidate.knob) is None:
        return f"{candidate.knob} is not among the allowed knobs"
    tried = judged(situation, candidate)
    if tried is not None and tried.judged is not Judged.PASSED:
        return f"{candidate.to_value} did not pass under this load: {tried.message}"
    rules = situation.settings.ladder
    if rules.strategy is Strategy.RULES or candidate.advice:
        return ""
    if candidate.forecast is None:
        return "nothing that was measured tells what it would gain"
    least = _least_gain(situation, rung, candidate)
    if candidate.forecast.low < least:
        return (
            f"{candidate.to_value}: {candidate.forecast} is not likely to be the {least:.0%} that "
            "such a change has to gain"
        )
    return ""


def _least_gain(situation: Situation, rung: Rung, candidate: Candidate) -> float:
    rules = situation.settings.ladder
    if rung.risk is Risk.QUALITY:
        return rules.least_gain_quality
    live = candidate.cost is CostClass.LIVE
    return rules.least_gain_live if live else rules.least_gain_restart


def _can(situation: Situation, candidate: Candidate) -> bool:
    """Whether whoever carries changes out makes or tries this one."""
    if candidate.advice or candidate.cost is not CostClass.LIVE:
        return False
    return situation.settings.ability(candidate.knob) is not Ability.RECOMMEND


def _live_below(situation: Situation, step: Step, found: Iterable[Step]) -> str:
    """Why a restart is not worth it beside a live rung further down; empty where it is.

    A live change that has passed before, or that touches no answer, gains as much for less.
    """
    if step.candidate.cost is CostClass.LIVE or step.candidate.forecast is None:
        return ""
    order = [rung.name for rung in LADDER]
    for other in found:
        below = order.index(other.rung.name) > order.index(step.rung.name)
        if not below or not _can(situation, other.candidate) or other.candidate.forecast is None:
            continue
        tried = judged(situation, other.candidate)
        passed = tried is not None and tried.judged is Judged.PASSED
        enough = other.candidate.forecast.gain >= step.candidate.forecast.gain
        if enough and (passed or other.rung.risk is not Risk.QUALITY):
            return (
                f"{other.candidate.to_value} needs no restart, has passed, and is expected to gain "
                f"{other.candidate.forecast.gain:+.0%} instead of "
                f"{step.candidate.forecast.gain:+.0%}"
            )
    return ""


def _note_advice(passed: dict[RungName, PassedOver], kept: Iterable[Step], step: Step) -> None:
    for each in kept:
        if each is step:
            break
        why = f"{each.candidate.message}: recommended, as nobody here can do it"
        passed[each.rung.name] = PassedOver(each.rung.name, why)


def _in_order(passed: dict[RungName, PassedOver], until: RungName | None) -> tuple[PassedOver, ...]:
    """Rungs before `until`, or all of them."""
    order = [rung.name for rung in LADDER]
    end = len(order) if until is None else order.index(until)
    return tuple(passed[name] for name in order[:end] if name in passed)
