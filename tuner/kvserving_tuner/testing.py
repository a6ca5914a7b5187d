"""What every source of observations must do, as a suite to run against each of them.

Subclass `SourceConformance` in a test module and give it a fixture `world`. The suite changes what
engines export and checks what comes out; it knows nothing of how a source reads them.
"""

# The names of the suite's tests say what they check.
# ruff: noqa: D102

import re
from collections.abc import Sequence
from typing import Protocol

from kvserving_tuner.aliases import SPECS, Quantity
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import (
    EngineObservation,
    EpochReason,
    Observation,
    ProblemReason,
    Window,
)
from kvserving_tuner.readings import Known, Stale, Unknown
from kvserving_tuner.settings import Windows
from kvserving_tuner.sources.base import EngineTarget

WINDOWS = Windows(
    storm_seconds=20, full_seconds=30, minimum_scrapes=3, minimum_coverage=0.01, stale_seconds=4
)
"""Windows a world's source must use: long enough for a slow machine, quick to call data stale."""


class SourceWorld(Protocol):
    """Two engines and the source under test."""

    @property
    def targets(self) -> Sequence[EngineTarget]:
        """The engines."""
        ...

    def serve(self, index: int, text: str | None) -> None:
        """Let an engine export `text` from now on; None: let it fail."""
        ...

    async def tick(self, targets: Sequence[EngineTarget] | None = None) -> Observation:
        """Let at least one scrape of what is now exported pass, then observe."""
        ...


def check(condition: object, *shown: object) -> None:
    """Fail with what was seen unless `condition` holds."""
    if not condition:
        raise AssertionError(" | ".join(map(str, shown)))


def _served(handler: str, status: str, count: int) -> str:
    labels = f'handler="{handler}",method="POST",status="{status}"'
    return f"http_requests_total{{{labels}}} {count}.0\n"


def full_window(engine: EngineObservation) -> Window:
    """The engine's full window; fails where there is none."""
    if not isinstance(engine.full, Window):
        raise AssertionError(f"{engine.target}: expected a full window, got {engine.full}")
    return engine.full


class SourceConformance:
    """The suite; `idle` and `busy` are expositions of an engine without load and under load."""

    async def _ticks(self, world: SourceWorld, text: str, count: int = 3) -> Observation:
        for index in range(len(world.targets)):
            world.serve(index, text)
        for _ in range(count - 1):
            await world.tick()
        return await world.tick()

    async def test_an_idle_engine_is_known_to_be_idle(self, world: SourceWorld, idle: str) -> None:
        seen = await self._ticks(world, idle)
        reasons = [problem.reason for problem in seen.problems]
        check(reasons == [ProblemReason.NO_TRAFFIC], seen.problems)
        check(not seen.blocking())
        check(isinstance(seen.fleet.running, Known) and seen.fleet.running.value == 0)
        window = full_window(seen.engines[0])
        check(isinstance(window.preemptions, Known) and window.preemptions.value == 0)
        check(isinstance(seen.fleet.prefix_hit_ratio, Unknown), seen.fleet.prefix_hit_ratio)

    async def test_counters_become_increases(self, world: SourceWorld, busy: Sequence[str]) -> None:
        for text in busy:
            world.serve(0, text)
            world.serve(1, text)
            seen = await world.tick()
        check(not seen.problems, seen.problems)
        window = full_window(seen.engines[0])
        check(isinstance(window.preemptions, Known) and window.preemptions.value == 11, window)
        check(isinstance(window.generation_tokens, Known), window)
        check(isinstance(window.tpot, Histogram) and window.tpot.count > 0, window.tpot)
        check(isinstance(window.ttft, Histogram), window.ttft)
        totals = seen.engines[0].totals
        check(isinstance(totals["preemptions"], Known), totals)

    async def test_requests_that_the_server_failed_are_counted(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        for count, text in enumerate(busy[:4]):
            served = _served("/v1/completions", "2xx", 10 * count + 5)
            served += _served("/v1/completions", "5xx", count) if count else ""
            world.serve(0, text + served + _served("/metrics", "5xx", 99 * count))
            world.serve(1, text)
            seen = await world.tick()
        failing, other = (full_window(engine) for engine in seen.engines)
        check(isinstance(failing.failed, Known) and failing.failed.value == 3, failing.failed)
        check(isinstance(failing.ended, Known) and failing.ended.value == 33, failing.ended)
        check(isinstance(other.failed, Known) and other.failed.value == 0, other.failed)

    async def test_fleet_sums_counters_and_queues(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        world.serve(0, busy[-1])
        world.serve(1, busy[1])
        seen = await world.tick()
        one, two = seen.engines
        running = seen.fleet.running
        check(isinstance(running, Known), running)
        check(
            isinstance(one.running, Known)
            and isinstance(two.running, Known)
            and isinstance(running, Known)
            and running.value == one.running.value + two.running.value,
            one.running,
            two.running,
        )
        usage = [engine.kv_usage_max for engine in (one, two)]
        highest = max(value.value for value in usage if isinstance(value, Known))
        check(
            isinstance(seen.fleet.kv_usage_max, Known) and seen.fleet.kv_usage_max.value == highest
        )

    async def test_a_restart_is_a_new_epoch(self, world: SourceWorld, busy: Sequence[str]) -> None:
        for text in (busy[-2], busy[-1], busy[0]):
            world.serve(0, text)
            world.serve(1, text)
            seen = await world.tick()
        engine = seen.engines[0]
        check(engine.epoch_reason is EpochReason.RESTART, engine.epoch_reason)
        for text in busy[1:4]:
            world.serve(0, text)
            seen = await world.tick()
        window = full_window(seen.engines[0])
        check(isinstance(window.preemptions, Known) and window.preemptions.value == 8, window)

    async def test_not_a_number_is_unknown(self, world: SourceWorld, busy: Sequence[str]) -> None:
        await self._ticks(world, busy[0], 1)
        world.serve(0, re.sub(r"(?m)^(vllm:kv_cache_usage_perc\S*) .*$", r"\1 NaN", busy[1]))
        seen = await world.tick()
        engine = seen.engines[0]
        check(isinstance(engine.kv_usage_max, Unknown), engine.kv_usage_max)
        check(isinstance(seen.fleet.kv_usage_max, Unknown), seen.fleet)
        check([p.reason for p in seen.blocking()] == [ProblemReason.METRICS_MISSING], seen.problems)

    async def test_a_renamed_metric_is_named(self, world: SourceWorld, busy: Sequence[str]) -> None:
        await self._ticks(world, busy[0], 1)
        world.serve(0, busy[1].replace("vllm:kv_cache_usage_perc", "vllm:kv_occupancy"))
        seen = await world.tick()
        problems = [p for p in seen.blocking() if p.target == world.targets[0].name]
        check([p.reason for p in problems] == [ProblemReason.METRIC_NAME_UNKNOWN], seen.problems)
        check("kv_usage" in problems[0].message, problems)
        check(isinstance(seen.engines[0].kv_usage_max, Unknown))

    async def test_all_metrics_renamed_is_told_from_no_engine(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        world.serve(0, busy[0].replace("vllm:", "vllm:new_"))
        world.serve(1, "process_start_time_seconds 1\nhttp_requests_total 5\n")
        seen = await world.tick()
        reasons = {(p.target, p.reason) for p in seen.blocking()}
        first, second = (target.name for target in world.targets)
        check((first, ProblemReason.METRIC_NAME_UNKNOWN) in reasons, seen.problems)
        check((second, ProblemReason.METRICS_MISSING) in reasons, seen.problems)
        check((second, ProblemReason.METRIC_NAME_UNKNOWN) not in reasons, seen.problems)

    async def test_an_engine_that_is_down_leaves_the_other_known(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        for text in busy[:3]:
            world.serve(0, text)
            world.serve(1, text)
            await world.tick()
        world.serve(0, None)
        world.serve(1, busy[3])
        seen = await world.tick()
        check({p.target for p in seen.blocking()} == {world.targets[0].name}, seen.problems)
        check(isinstance(seen.engines[0].full, Unknown), seen.engines[0].full)
        check(not seen.engines[0].answered)
        check(isinstance(seen.engines[1].running, Known), seen.engines[1].running)
        check(isinstance(seen.engines[1].full, Window))

    async def test_frozen_gauges_are_stale(self, world: SourceWorld, busy: Sequence[str]) -> None:
        for index in range(2):
            world.serve(index, busy[2])
        for _ in range(60):
            seen = await world.tick()
            if isinstance(seen.engines[0].kv_usage_max, Stale):
                break
        check(isinstance(seen.engines[0].kv_usage_max, Stale), seen.engines[0].kv_usage_max)
        check(isinstance(seen.engines[0].running, Stale))
        check(isinstance(seen.engines[0].full, Unknown))
        check({p.reason for p in seen.blocking()} == {ProblemReason.METRICS_STALE}, seen.problems)

    async def test_ranks_are_summed_and_the_fullest_counts(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        for text in (busy[3], busy[4]):
            second = text.replace('engine="0"', 'engine="1"')
            second = re.sub(r"(?m)^(vllm:kv_cache_usage_perc\S*) .*$", r"\1 0.5", second)
            second = re.sub(r"(?m)^(#|process_).*\n", "", second)
            world.serve(0, text + second)
            world.serve(1, text)
            seen = await world.tick()
        both, one = seen.engines
        check((both.ranks, one.ranks) == (2, 1), both.ranks, one.ranks)
        for name in ("running", "waiting"):
            double, single = getattr(both, name), getattr(one, name)
            check(double.value == 2 * single.value, double, single)
        check(
            isinstance(both.kv_usage_max, Known)
            and isinstance(one.kv_usage_max, Known)
            and both.kv_usage_max.value == one.kv_usage_max.value,
            both.kv_usage_max,
        )
        check(
            isinstance(both.kv_usage_mean, Known)
            and isinstance(one.kv_usage_max, Known)
            and abs(both.kv_usage_mean.value - (one.kv_usage_max.value + 0.5) / 2) < 1e-9,
            both.kv_usage_mean,
        )

    async def test_only_listed_targets_are_observed(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        await self._ticks(world, busy[1], 1)
        seen = await world.tick(world.targets[1:])
        check([engine.target for engine in seen.engines] == [world.targets[1].name])
        nothing = await world.tick([])
        check(not nothing.engines and isinstance(nothing.fleet.running, Unknown))

    async def test_labels_with_quotes_and_backslashes(
        self, world: SourceWorld, busy: Sequence[str]
    ) -> None:
        odd = 'model_name="a \\"b\\" \\\\c {d}"'
        await self._ticks(world, busy[1].replace('model_name="tiny"', odd), 1)
        seen = await world.tick()
        check(isinstance(seen.engines[0].running, Known), seen.problems)

    async def test_every_required_quantity_is_read(
        self, world: SourceWorld, releases: Sequence[str]
    ) -> None:
        for text in releases:
            await self._ticks(world, text, 1)
            seen = await world.tick()
            names = seen.engines[0].names
            required = [quantity for quantity in Quantity if SPECS[quantity].required]
            check(all(quantity in names for quantity in required), names, seen.problems)
