"""The tuner's own loop on simulated engines: they export and take what real ones do."""

import asyncio
import random
from typing import Any

import pytest

from kvserving_tuner.aliases import SPECS, Kind
from kvserving_tuner.decision import Change, Knob, Reason
from kvserving_tuner.errors import NoRuntimeAPI, Rejected
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.live import Loop, Turn
from kvserving_tuner.observation import EpochReason, Window
from kvserving_tuner.readings import Known, Reading
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.metrics import Metrics
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.workload import Request
from kvserving_tuner.simulator.world import World
from kvserving_tuner.sources.base import EngineTarget

TIMES = StepTimes(0.1, 0.0004, 0.001, 1e-8)


def engine(requests: int = 2000, cache_tokens: int = 4000, **more: Any) -> Engine:
    """Three times as much as its cache holds, until the requests are used up."""
    source = random.Random(1)
    found = Engine(
        EngineSettings(
            cache_bytes=cache_tokens * 2, bytes_per_token={"bfloat16": 2, "fp8_e4m3": 1},
            dtype="bfloat16", max_num_seqs=64, max_model_len=700, prefix_caching=False, **more,
        ),
        TIMES,
    )  # fmt: skip
    found.submit(
        Request(0.4 * index, source.randint(100, 300), source.randint(100, 300))
        for index in range(requests)
    )
    return found


def value(reading: Reading) -> float:
    assert isinstance(reading, Known), reading
    return reading.value


async def looked(world: World, *times: float) -> Any:
    for at in times:
        seen = await world.source.observe(world.targets, world.started + at)
    return seen


async def test_every_quantity_is_exported_as_the_engine_counts_it() -> None:
    simulated = engine()
    world = World({"a": simulated})
    before = await looked(world, 200.0)
    counted = simulated.counters.generation_tokens
    seen = await looked(world, 215.0, 230.0, 245.0, 260.0)
    assert not seen.problems
    assert set(seen.engines[0].names) == set(SPECS)
    window, first = seen.engines[0].full, before.engines[0].totals
    assert isinstance(window, Window)
    assert value(first["generation_tokens"]) == counted
    assert value(window.generation_tokens) == simulated.counters.generation_tokens - counted
    assert value(seen.engines[0].running) == simulated.running
    assert value(seen.engines[0].waiting) == simulated.waiting
    assert value(seen.engines[0].kv_usage_max) == pytest.approx(simulated.usage)
    assert value(seen.engines[0].capacity_tokens) == 4000
    totals = seen.engines[0].totals
    assert value(totals["preemptions"]) == simulated.counters.reported_preemptions > 0
    for name, spec in SPECS.items():
        if spec.kind is Kind.HISTOGRAM:
            found = getattr(window, name.value)
            assert isinstance(found, Histogram)
            assert found.count > 0


async def test_latencies_in_the_metrics_are_those_of_the_requests() -> None:
    simulated = engine(requests=50)
    world = World({"a": simulated})
    await looked(world, 1.0)
    await looked(world, 1000.0)
    samples = {
        sample.name: sample.value
        for attempt in [world.servers["a"].read(world.started + 1001)]
        for scrape in attempt.scrapes
        for sample in scrape.samples
    }
    ticks = 10**12
    ttft = [(s.first_token or 0) - s.arrival for s in simulated.sequences]
    assert samples["vllm:time_to_first_token_seconds_count"] == 50
    assert samples["vllm:time_to_first_token_seconds_sum"] == pytest.approx(sum(ttft) / ticks)
    assert samples["vllm:request_generation_tokens_sum"] == sum(
        s.answer for s in simulated.sequences
    )


async def test_what_is_refused_is_an_error_of_the_server_or_of_the_client() -> None:
    simulated = engine(requests=0, max_num_queued_reqs=2)
    simulated.submit([Request(1.0, 100, 50)] * 5 + [Request(2.0, 600, 200)])
    server = World({"a": simulated}).servers["a"]
    server.advance(1_000_100.0)
    found = {
        (sample.name, sample.labels.get("status") or sample.labels.get("reason")): sample.value
        for sample in Metrics(simulated, 0.0).samples()
    }
    assert [found["http_requests_total", s] for s in ("2xx", "4xx", "5xx")] == [2, 1, 3]
    assert found["vllm:admission_rejections_total", "max_num_queued_reqs"] == 3
    assert found["vllm:admission_rejections_total", "max_num_queued_tokens"] == 0


def run(world: World, mode: Mode, seconds: float) -> list[Turn]:
    loop = Loop(
        world.targets, world.source, world.runtime, world.actuator, TuningSettings(mode=mode)
    )

    async def turns() -> list[Turn]:
        times = [world.started + at for at in range(5, int(seconds), 5)]
        return [await loop.turn(at) for at in times]

    return asyncio.run(turns())


def test_the_loop_ends_a_storm_on_a_simulated_engine() -> None:
    tuned, left = engine(), engine()
    turns = run(World({"a": tuned}), Mode.AUTO, 600)
    run(World({"a": left}), Mode.OFF, 600)
    assert Reason.PREEMPTION_STORM in {turn.decision.reason for turn in turns}
    assert tuned.max_active_seqs < 20
    assert tuned.counters.preemptions < left.counters.preemptions / 3
    assert [turn.failures for turn in turns if turn.failures] == []


async def test_a_change_is_read_back_from_the_engine() -> None:
    world = World({"a": engine(), "b": engine()})
    change = Change(Knob.MAX_ACTIVE_SEQS, 64, 8)
    applied = await world.actuator.apply(world.targets, change, "one")
    assert {state.effective.max_active_seqs for state in applied.states.values()} == {8}
    refused = await world.actuator.apply(world.targets, Change(change.knob, 8, 65), "two")
    assert isinstance(refused.failures["a"], Rejected)
    assert refused.failures["a"].field == "max_active_seqs"
    assert world.servers["a"].engine.max_active_seqs == 8


async def test_a_switch_of_format_is_a_new_epoch_with_more_room() -> None:
    world = World({"a": engine()})
    await looked(world, 100.0, 105.0)
    simulated = world.servers["a"].engine
    blocks, running = simulated.blocks, simulated.running
    target = world.targets[0]
    state = await world.runtime.patch(target, {"kv_cache_dtype": "fp8_e4m3"}, "switch")
    assert state.effective.kv_cache_dtype == "fp8_e4m3"
    assert state.capacity.blocks == simulated.blocks == 2 * blocks
    assert simulated.running == 0 < running
    again = await world.runtime.patch(target, {"kv_cache_dtype": "fp8_e4m3"}, "switch")
    assert again == state
    assert simulated.counters.switches == 1
    seen = await looked(world, 110.0)
    assert seen.engines[0].epoch_reason is EpochReason.SETTINGS_CHANGED


async def test_eviction_is_set_and_taken_back() -> None:
    world = World({"a": engine()})
    await looked(world, 50.0)
    wanted = {"policy": "StreamingLLM", "window_tokens": 64}
    state = await world.runtime.patch(world.targets[0], {"eviction": wanted}, "one")
    assert state.effective.eviction.window_tokens == 64
    assert state.effective.eviction.sink_tokens == 4
    simulated = world.servers["a"].engine
    await looked(world, 100.0)
    # 64 sequences of a handful of blocks each run where a dozen ran before.
    assert simulated.running > 30
    state = await world.runtime.patch(world.targets[0], {"eviction": {"policy": "None"}}, "two")
    assert state.effective.eviction.policy == "None"
    assert simulated.eviction is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_active_seqs": 8, "kv_cache_dtype": "int4"}, "kv_cache_dtype"),
        ({"max_active_seqs": "8"}, "max_active_seqs"),
        ({"max_scheduled_tokens": True}, "max_scheduled_tokens"),
        ({"eviction": "StreamingLLM"}, "eviction.policy"),
        ({"eviction": {"policy": "StreamingLLM"}}, "eviction.window_tokens"),
        ({"max_active_seqs": 8, "max_scheduled_tokens": 63}, "max_scheduled_tokens"),
        ({"max_active_seqs": 8, "eviction": {"policy": "H2O"}}, "eviction.policy"),
        ({"max_active_seqs": 8, "speed": 2}, "speed"),
    ],
)
async def test_a_refused_change_changes_nothing(changes: dict[str, Any], field: str) -> None:
    world = World({"a": engine()})
    before = world.servers["a"].state()
    with pytest.raises(Rejected) as refused:
        await world.runtime.patch(world.targets[0], changes, "one")
    assert refused.value.field == field
    assert world.servers["a"].state() == before


async def test_an_engine_that_is_not_simulated_has_no_runtime_api() -> None:
    with pytest.raises(NoRuntimeAPI):
        await World({}).runtime.get(EngineTarget("other", "sim://other"))
