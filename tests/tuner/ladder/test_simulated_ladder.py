"""The whole ladder on simulated engines: what binds is relieved, and nothing else is touched."""

from dataclasses import replace

import pytest

from kvserving_tuner.decision import Action, Knob, Reason, RungName
from kvserving_tuner.remembered import Judged
from kvserving_tuner.rules import Ability, LadderRules, Strategy
from kvserving_tuner.settings import Mode, Slo, TuningSettings
from kvserving_tuner.simulator.outcome import outcome
from kvserving_tuner.simulator.steptimes import StepTicks, StepTimes
from tunerkit.simulated import FORMATS, TIMES, Run, engine, requests, run

ABLE = TuningSettings(
    mode=Mode.AUTO,
    abilities={
        **dict.fromkeys(Knob, Ability.RECOMMEND),
        Knob.KV_CACHE_DTYPE: Ability.CHANGE,
        Knob.MAX_SCHEDULED_TOKENS: Ability.CHANGE,
    },
    allowed_dtypes=("fp8_e4m3", "k8v4", "int4_hadamard"),
)
HOUR = 3600.0


def formats(found: Run, since: float = 0.0) -> list[tuple[str, str, Reason]]:
    return [
        (str(d.change.from_value), str(d.change.to_value), d.reason)
        for d in found.changes(since)
        if d.change is not None and d.change.knob is Knob.KV_CACHE_DTYPE
    ]


@pytest.mark.parametrize("strategy", Strategy)
def test_a_cache_that_binds_ends_with_fewer_bits_and_more_is_served(strategy: Strategy) -> None:
    load = requests(rate=1.5, seconds=HOUR)
    tuned, left = engine(load), engine(load)
    settings = ABLE.model_copy(update={"ladder": LadderRules(strategy=strategy)})
    found = run(tuned, settings).go(0.75 * HOUR)
    run(left, TuningSettings(mode=Mode.OFF)).go(0.75 * HOUR)
    assert formats(found)[0] == ("bfloat16", "fp8_e4m3", Reason.KV_BINDS)
    assert tuned.counters.finished > 1.15 * left.counters.finished
    assert tuned.counters.preemptions < left.counters.preemptions / 10
    first = next(d for d in found.changes() if d.change and d.change.knob is Knob.KV_CACHE_DTYPE)
    assert first.case is not None
    assert first.case.rung is RungName.EIGHT_BIT_CACHE
    assert (first.case.forecast is not None) is (strategy is Strategy.MODEL)
    assert [each.rung for each in first.passed_over] == list(RungName)[:5]
    assert found.state.start_kv_cache_dtype == "bfloat16"
    assert any(each.judged is Judged.PASSED for each in found.state.tried)


def test_more_requests_are_answered_within_their_targets() -> None:
    slo = Slo(ttft_ms=5000, tpot_ms=200)
    load = requests(rate=0.8, seconds=HOUR)
    tuned, left = engine(load), engine(load)
    run(tuned, ABLE.model_copy(update={"slo": slo})).go(HOUR)
    run(left, TuningSettings(mode=Mode.OFF)).go(HOUR, step=15.0)
    assert tuned.dtype == "fp8_e4m3"
    good = [outcome(each, []).goodput(5.0, 0.2) for each in (tuned, left)]
    assert good[0] > 1.4 * good[1]


def test_without_an_allowed_format_the_cap_alone_relieves_it() -> None:
    load = requests(rate=1.2, seconds=HOUR / 2)
    tuned, left = engine(load), engine(load)
    found = run(tuned, TuningSettings(mode=Mode.AUTO)).go(HOUR / 2)
    run(left, TuningSettings(mode=Mode.OFF)).go(HOUR / 2)
    assert formats(found) == []
    assert tuned.max_active_seqs < 20
    assert tuned.counters.preemptions < left.counters.preemptions / 10


@pytest.mark.parametrize(
    ("rate", "cache_tokens"), [(0.3, 4000), (0.3, 40_000), (4.0, 100_000), (0.0001, 4000)]
)
def test_what_is_not_bound_by_the_cache_keeps_its_format_and_says_why(
    rate: float, cache_tokens: int
) -> None:
    """Little to do, plenty of room, an overload with room in the cache, and next to nothing."""
    load = requests(rate=rate, seconds=HOUR / 4)
    found = run(engine(load, cache_tokens), ABLE).go(HOUR / 4)
    assert found.changes() == []
    last = found.decisions[-1]
    assert last.action in (Action.HOLD, Action.RECOMMEND)
    if last.reason is Reason.IDLE:
        return
    whys = {each.rung: each.why for each in last.passed_over}
    wanted = "the KV cache has room" if rate > 1 else "the KV cache does not hold requests back"
    assert whys[RungName.EIGHT_BIT_CACHE].startswith(wanted)


def test_after_convergence_nothing_oscillates() -> None:
    load = requests(rate=0.8, seconds=4 * HOUR)
    found = run(engine(load), ABLE).go(HOUR)
    assert formats(found) == [("bfloat16", "fp8_e4m3", Reason.KV_BINDS)]
    found.go(2.5 * HOUR, step=10.0)
    assert formats(found, since=HOUR) == []
    assert len(found.changes(HOUR)) <= 1


class Slower(StepTimes):
    """Steps that take three times as long with a cache of 8 bits."""

    def in_ticks(self, bytes_per_token: float) -> StepTicks:
        """Price of a step."""
        price = super().in_ticks(bytes_per_token)
        slow = bytes_per_token == FORMATS["fp8_e4m3"]
        return replace(price, base=3 * price.base) if slow else price


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_ms=5000, tpot_ms=400)])
def test_a_format_that_makes_things_worse_is_taken_back_and_not_tried_again(slo: Slo) -> None:
    load = requests(rate=1.2, seconds=HOUR)
    simulated = engine(load)
    simulated.times = Slower(**TIMES.to_json())
    settings = ABLE.model_copy(update={"allowed_dtypes": ("fp8_e4m3",), "slo": slo})
    found = run(simulated, settings).go(0.8 * HOUR)
    assert formats(found) == [
        ("bfloat16", "fp8_e4m3", Reason.KV_BINDS),
        ("fp8_e4m3", "bfloat16", Reason.ROLLED_BACK),
    ]
    assert simulated.dtype == "bfloat16"
    assert found.state.rollbacks == 1
    whys = [each.why for d in found.decisions for each in d.passed_over]
    assert any("fp8_e4m3 did not pass under load-1" in why for why in whys)


def test_a_change_of_load_voids_what_is_watched() -> None:
    heavy = requests(rate=1.2, seconds=HOUR / 3)
    light = requests(rate=0.25, seconds=2 * HOUR, prompt=(20, 40), answer=(20, 40), start=HOUR / 3)
    simulated = engine([*heavy, *light])
    found = run(simulated, ABLE)
    while not formats(found):
        found.go(60)
    assert found.state.watch is not None
    # The backlog of the heavy load is dropped, as clients do that have waited too long.
    simulated._scheduler.waiting.clear()
    found.go(HOUR)
    assert found.state.watch is None
