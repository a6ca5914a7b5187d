"""The rungs that leave the cache's contents alone: configuration, admission, caps, capacity."""

import math
from typing import Final

from kvserving_tuner import caps
from kvserving_tuner.decision import CostClass, DiagnosisKind, Knob, Reason
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.ladder.forecast import between, growth, more_sequences
from kvserving_tuner.ladder.rung import Candidate
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.readings import known
from kvserving_tuner.regimes.loads import current

RIGHT: Final = {"chunked_prefill": True, "reserve_full_isl": True}
"""Start settings with one right value. Without the reservation of whole prompts one request too
many makes all of them thrash: 100 to 1.5 tokens/s a GPU (vllm#37307)."""
QUEUE_BOUND_SINCE: Final = (0, 29)
"""vLLM that has max_num_queued_tokens."""
WATERMARK_SINCE: Final = (0, 24)
PREEMPTIONS_SAVED: Final = 0.84
"""Share of the preemptions that a watermark of 5 % saved: 1,065 to 187 (vllm#44594)."""
LEAST_WON: Final = 0.25
"""Part of the requests beyond a target that a step of the token budget wins, at least; all, at
most. No measurement stands behind it: a step that wins none is taken back (`watching`)."""


def consider_configuration(situation: Situation) -> Candidate | str:
    """Start settings that are wrong whatever the load."""
    seqs = situation.started_with("max_num_seqs")
    budget = situation.started_with("max_num_batched_tokens")
    if isinstance(seqs, int) and isinstance(budget, int) and budget < seqs:
        return _restart(
            Knob.MAX_NUM_BATCHED_TOKENS, budget, seqs, Reason.MISCONFIGURED,
            f"a step of {budget} tokens has none for each of {seqs} sequences",
        )  # fmt: skip
    unknown = []
    for name, right in RIGHT.items():
        value = situation.started_with(name)
        if value is None:
            unknown.append(name)
        elif value is not right:
            return _restart(
                Knob.SCHEDULING, f"{name}={value}", f"{name}={right}", Reason.MISCONFIGURED,
                f"{name} is {value}",
            )  # fmt: skip
    untold = f"; engines do not tell of {', '.join(unknown)}" if unknown else ""
    return f"nothing is known to be wrong{untold}"


def consider_prefix_caching(situation: Situation) -> Candidate | str:
    """Prompts that begin alike share what is computed of them."""
    caching = situation.started_with("prefix_caching")
    if caching is None:
        return "engines do not say whether it is on"
    if caching:
        return "it is on"
    if any(each.effective.eviction.policy != "None" for each in situation.runtime):
        return "eviction keeps no prefix that another request could use"
    return _restart(
        Knob.PREFIX_CACHING, "off", "on", Reason.PREFIX_CACHING_OFF,
        "prefix caching is off: of two published traces it would save 37 and 64 % of the prompt "
        "tokens, and where nothing is shared it costs next to nothing",
    )  # fmt: skip


def consider_admission(situation: Situation) -> Candidate | str:
    """A bound on the queue, so that those who are let in are answered in time."""
    target_ms, late = situation.settings.slo.ttft_ms, situation.ttft
    if target_ms is None:
        return "there is no target for the first token that a bound could keep"
    if not late.missed:
        return "the target for the first token is not known to be missed"
    finished = [known(window.finished) for window in situation.windows]
    rate = math.fsum(each or 0.0 for each in finished) / _seconds(situation)
    waiting = math.fsum(
        reading for each in situation.engines if (reading := known(each.waiting)) is not None
    )
    if rate <= 0 or waiting / rate <= target_ms / 1000:
        return "the queue is shorter than the target allows"
    version = situation.version()
    if version is not None and version < QUEUE_BOUND_SINCE:
        return "vLLM has such a bound from 0.29"
    prompts = [known(window.prompt_tokens) for window in situation.windows]
    speed = math.fsum(each or 0.0 for each in prompts) / _seconds(situation)
    bound = math.floor(target_ms / 1000 * speed)
    if bound < 1:
        return "how fast prompts are computed is not known"
    # What is lost to late answers is won back as far as the others are not late as well.
    kept = max(0.1, 1 - late.least)
    forecast = between(0.5 * (1 / kept - 1), 1 / kept - 1, f"{late.least:.0%} are late today")
    return Candidate(
        knob=Knob.MAX_QUEUED_TOKENS,
        from_value="unbounded",
        to_value=bound,
        cost=CostClass.RESTART,
        reason=Reason.QUEUE_UNBOUNDED,
        message=f"{waiting:.0f} requests wait {waiting / rate:.1f} s for a first token within "
        f"{target_ms / 1000:g} s: {bound} prompt tokens can be computed in that time",
        forecast=forecast,
    )


def consider_caps(situation: Situation) -> Candidate | str:
    """The token budget of a step; the cap on sequences has rules of its own, which come first."""
    cap = f"the cap on sequences stays: {situation.cap_message}"
    effective = {each.effective.max_scheduled_tokens for each in situation.runtime}
    ranges = [each.range_of(Knob.MAX_SCHEDULED_TOKENS.runtime_field) for each in situation.runtime]
    budget = effective.pop() if len(effective) == 1 else None
    found = [each for each in ranges if each is not None]
    if budget is None or not found or len(found) < len(ranges):
        return f"{cap}; the token budget cannot be moved live"
    bounds, rules = situation.settings.max_scheduled_tokens, situation.settings.ladder
    low = max(bounds.minimum, *(each.minimum for each in found))
    high = min(each.maximum for each in found)
    high = high if bounds.maximum is None else min(high, bounds.maximum)
    ttft, tpot = situation.ttft, situation.tpot
    if tpot.missed and ttft.kept:
        to = max(low, math.floor(budget * rules.step_down))
        if to >= budget:
            return f"{cap}; the token budget is at its minimum, {budget}"
        return _budget(budget, to, Reason.STEPS_TOO_LONG, tpot.least, "come too slowly")
    if ttft.missed and tpot.kept and situation.diagnosis.kind is DiagnosisKind.TOKEN_BUDGET:
        to = min(high, math.floor(budget * rules.step_up))
        if to <= budget:
            return f"{cap}; the token budget is at its maximum, {budget}"
        return _budget(budget, to, Reason.STEPS_TOO_SHORT, ttft.least, "begin too late")
    return f"{cap}; the token budget of {budget} holds no target back for certain"


def _budget(budget: int, to: int, reason: Reason, missed: float, what: str) -> Candidate:
    won = missed / max(0.1, 1 - missed)
    return Candidate(
        knob=Knob.MAX_SCHEDULED_TOKENS,
        from_value=budget,
        to_value=to,
        cost=CostClass.LIVE,
        reason=reason,
        message=f"tokens of {missed:.0%} of the requests {what}: token budget {budget} to {to}",
        forecast=between(LEAST_WON * won, won, f"{missed:.0%} miss the target today"),
    )


def consider_watermark(situation: Situation) -> Candidate | str:
    """A part of the cache that admission leaves to those who run."""
    binds, evidence = situation.binding()
    if not binds:
        return evidence
    version = situation.version()
    if version is not None and version < WATERMARK_SINCE:
        return "vLLM has it from 0.24"
    present = situation.started_with("watermark")
    percent = round(100 * present) if isinstance(present, int | float) else 0
    step = next((p for p in situation.settings.ladder.watermark_percents if p > percent), None)
    if step is None:
        return f"it is at {percent} % already"
    if not situation.ttft.kept:
        return "it makes first tokens later (p50 6.6 to 11.2 s, vllm#44594), and they are late"
    wasted = situation.recomputed_share
    if wasted <= 0:
        return "nothing is computed again after preemptions, which is all that it saves"
    saved = PREEMPTIONS_SAVED * wasted / (1 - wasted)
    return Candidate(
        knob=Knob.WATERMARK_PERCENT,
        from_value=percent,
        to_value=step,
        cost=CostClass.RESTART,
        reason=Reason.KV_BINDS,
        message=f"{evidence}: {wasted:.0%} of the tokens are computed again after preemptions",
        forecast=between(0.5 * saved, saved, "84 % of the preemptions saved, as in vllm#44594"),
    )


def consider_capacity(situation: Situation) -> Candidate | str:
    """The sequences and tokens that an engine is built for."""
    seqs = situation.started_with("max_num_seqs")
    budget = situation.started_with("max_num_batched_tokens")
    if not isinstance(seqs, int) or not isinstance(budget, int):
        return "engines do not say what they were built for"
    if situation.diagnosis.kind is DiagnosisKind.SEQUENCE_CAP:
        if situation.cap != seqs:
            return "the live cap comes first, and is below what engines were built for"
        slack = caps.tpot_slack(situation.engines, situation.settings)
        if not slack.enough:
            return slack.message
        to = next_capture_size(math.ceil(seqs * situation.settings.ladder.step_up))
        fits, _ = caps.largest_that_fits(situation.engines, seqs, to, situation.settings)
        if fits < to or to > budget:
            return f"{to} sequences would not fit the KV cache or a step of {budget} tokens"
        running = situation.running
        ratio = min(to / seqs, (running + situation.waiting) / running) if running else 1.0
        forecast = more_sequences(
            ratio, growth(situation.state.samples, running), f"{ratio:.2f} times the sequences"
        )
        message = f"{situation.diagnosis.message}, and engines are built for no more than {seqs}"
        return Candidate(
            Knob.MAX_NUM_SEQS, seqs, to, CostClass.RESTART, Reason.CAPACITY_REACHED, message,
            forecast,
        )  # fmt: skip
    if situation.diagnosis.kind is DiagnosisKind.TOKEN_BUDGET and situation.ttft.missed:
        if not situation.tpot.kept:
            return "larger steps would make tokens follow each other more slowly"
        missed = situation.ttft.least
        won = missed / max(0.1, 1 - missed)
        return Candidate(
            Knob.MAX_NUM_BATCHED_TOKENS, budget, 2 * budget, CostClass.RESTART,
            Reason.CAPACITY_REACHED,
            f"{situation.diagnosis.message}, and engines are built for no more than {budget}",
            between(LEAST_WON * won, won, f"{missed:.0%} miss the target today"),
        )  # fmt: skip
    return f"what engines were built for is not the limit: {situation.diagnosis.message}"


def consider_offload(situation: Situation) -> Candidate | str:
    """The host's memory behind the KV cache."""
    if situation.diagnosis.kind is not DiagnosisKind.PREFIX_THRASH:
        return "what requests share is not known to be evicted before it is asked for again"
    here = current(situation.state.loads)
    usual = here.load.hit_ratio if here is not None else None
    hits = [known(window.prefix_hits) for window in situation.windows]
    queries = [known(window.prefix_queries) for window in situation.windows]
    asked = math.fsum(each or 0.0 for each in queries)
    if usual is None or not asked:
        return "the usual hit ratio of this load is not known"
    lost = max(0.0, usual - math.fsum(each or 0.0 for each in hits) / asked)
    saved = lost * asked / (asked + math.fsum(_generated(situation)))
    return Candidate(
        knob=Knob.KV_OFFLOAD,
        from_value="off",
        to_value="on",
        cost=CostClass.RESTART,
        reason=Reason.REUSE_LOST,
        message=f"{situation.diagnosis.message}: the host's memory could keep it",
        forecast=between(0.0, saved / max(0.5, 1 - saved), "prompt tokens that were hits before"),
        advice=True,
    )


def consider_eviction(situation: Situation) -> Candidate | str:
    """Tokens leave the cache before their request ends."""
    binds, evidence = situation.binding()
    if not binds:
        return evidence
    if any(each.effective.eviction.policy != "None" for each in situation.runtime):
        return "engines evict already"
    long = [_mean(window.prompt_lengths) for window in situation.windows]
    longest = max((each for each in long if each is not None), default=0.0)
    return Candidate(
        knob=Knob.EVICTION,
        from_value="None",
        to_value="StreamingLLM",
        cost=CostClass.LIVE,
        reason=Reason.KV_BINDS,
        message=f"{evidence}: a window below the mean prompt of {longest:.0f} tokens would hold "
        "more sequences; what answers lose is for the task probes of a trial to show",
        advice=True,
    )


def next_capture_size(sequences: int) -> int:
    """Smallest batch at or above `sequences` for which vLLM captures a graph.

    1, 2, 4, then multiples of 8 up to 256 and of 16 beyond. A batch off the grid decodes up to 7.5
    times as slowly (vllm-ascend#16049).
    """
    for size in (1, 2, 4):
        if sequences <= size:
            return size
    step = 8 if sequences <= 256 else 16
    return math.ceil(sequences / step) * step


def _restart(
    knob: Knob, before: int | str, after: int | str, reason: Reason, message: str
) -> Candidate:
    return Candidate(knob, before, after, CostClass.RESTART, reason, message, advice=True)


def _seconds(situation: Situation) -> float:
    seconds = [window.span_seconds for window in situation.windows]
    return math.fsum(seconds) / len(seconds) if seconds else math.inf


def _generated(situation: Situation) -> list[float]:
    return [known(window.generation_tokens) or 0.0 for window in situation.windows]


def _mean(lengths: object) -> float | None:
    mean = lengths.mean if isinstance(lengths, Histogram) else None
    return mean if isinstance(mean, float) else None
