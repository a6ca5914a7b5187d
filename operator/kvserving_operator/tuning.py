"""One serving's tuner in a cluster: read its pods, let `decide` judge, carry the change out.

The pod's own address is used throughout: a Service would answer for any one of them. Reading and
changing never raise for an engine that is down; what could not be brought to a promoted value now
is brought to it at the next turn.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import httpx

from kvserving_operator.api.v1alpha1 import (
    KVServing,
    KVServingSpec,
    MonitoringSource,
    PromotedValue,
    Switch,
)
from kvserving_operator.observe import PodView
from kvserving_operator.promoted import KNOB, basis_of, behind, cap_of, promote, still_promoted
from kvserving_operator.stages import Stage, StageName, Stopwatch
from kvserving_operator.targets import target_of
from kvserving_operator.tuner_settings import tuning_settings
from kvserving_tuner.actuators.base import Applied
from kvserving_tuner.actuators.runtime_api import RuntimeActuator
from kvserving_tuner.decision import Action, Change, Decision
from kvserving_tuner.errors import NoRuntimeAPI, Rejected, RuntimeAPIError
from kvserving_tuner.loop import decide
from kvserving_tuner.observation import Observation
from kvserving_tuner.runtime_client import RuntimeClient, RuntimeState
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.sources.base import EngineTarget, Source
from kvserving_tuner.sources.direct import DirectSource
from kvserving_tuner.sources.prometheus import PrometheusSource
from kvserving_tuner.state import TunerState

logger = logging.getLogger(__name__)

REJECTED = "Rejected"
"""Outcome of a change that every engine refused."""

Commit = Callable[[tuple[PromotedValue, ...], TunerState], Awaitable[None]]
"""Stores promoted values before any engine is told, so that a crash in between loses nothing."""

Judge = Callable[
    [TuningSettings, Observation, Sequence[RuntimeState], TunerState, float],
    tuple[Decision, TunerState],
]
"""The tuner's decision; replaced in tests alone."""


@dataclass(frozen=True)
class Readback:
    """What the engines say of themselves."""

    runtime: Mapping[str, RuntimeState] = field(default_factory=dict)
    failures: Mapping[str, RuntimeAPIError] = field(default_factory=dict)

    def having(self, states: Mapping[str, RuntimeState]) -> Self:
        """Give it with engines read anew."""
        return replace(self, runtime={**self.runtime, **states})

    @property
    def no_runtime_api(self) -> bool:
        """Whether engines answer but have no runtime API."""
        return any(isinstance(error, NoRuntimeAPI) for error in self.failures.values())


@dataclass(frozen=True)
class Turn:
    """Outcome of one turn."""

    readback: Readback
    promoted: tuple[PromotedValue, ...]
    state: TunerState
    observation: Observation | None = None
    """None where none was due."""
    decision: Decision | None = None
    outcome: str | None = None
    """What became of a change: Applied, Partial, Failed (no engine answered; it is tried again), or
    Rejected."""
    rejection: str = ""
    stages: tuple[Stage, ...] = ()
    """When its parts began and ended."""

    def reading(self, states: Mapping[str, RuntimeState]) -> Self:
        """Give it with engines read anew."""
        return replace(self, readback=self.readback.having(states))


class ServingTuner:
    """Windows, memory and clients of one serving."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        runtime: RuntimeClient,
        may_act: Callable[[], None],
        tick_seconds: float,
        judge: Judge = decide,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._stopwatch = Stopwatch(clock)
        self._tick_seconds = tick_seconds
        self._actuator = RuntimeActuator(runtime)
        self._may_act = may_act
        self._judge = judge
        self._http = http
        self._runtime = runtime
        self._source: Source | None = None
        self._source_key: object = None
        self._observed_at: float | None = None

    async def take_turn(
        self,
        serving: KVServing,
        pods: Sequence[PodView],
        token: str | None,
        promoted: tuple[PromotedValue, ...],
        basis: Mapping[str, str],
        state: TunerState,
        now: float,
        steady: bool,
        commit: Commit,
    ) -> Turn:
        """Read the pods, bring them to the promoted values, and decide if that is due.

        `steady` says that the pods are not being replaced; otherwise nothing is decided.
        """
        stopwatch = self._stopwatch = Stopwatch(self._clock)
        reachable = [pod for pod in pods if pod.ip and pod.running and not pod.deleting]
        targets = {pod.name: target_of(pod, token) for pod in reachable}
        readback = Readback()
        if serving.spec.engine.plugin is Switch.ENABLED:
            with stopwatch.times(StageName.READ):
                readback = await self._read(targets)
        kept = still_promoted(promoted, basis, serving.spec)
        if kept != promoted:
            await commit(kept, state)
        wanted = behind(reachable, readback.runtime, cap_of(kept))
        for cap in sorted(set(wanted.values())):
            change = Change(KNOB, from_value=cap, to_value=cap)
            identity = f"{kept[0].decision if kept else 'spec'}-{cap}-{now:.0f}"
            late = [targets[name] for name, right in wanted.items() if right == cap]
            applied = await self._apply(late, change, identity)
            readback = readback.having(applied.states)
        turn = Turn(readback, kept, state)
        serving_pods = [pod for pod in reachable if pod.container_ready]
        if not self._due(serving.spec, now):
            return turn
        with stopwatch.times(StageName.OBSERVE):
            observation = await self._observe(
                serving.spec, [targets[p.name] for p in serving_pods], now
            )
        if not steady or not serving_pods:
            return Turn(readback, kept, state, observation)
        known = [readback.runtime[p.name] for p in serving_pods if p.name in readback.runtime]
        settings = tuning_settings(serving.spec)
        with stopwatch.times(StageName.DECIDE):
            decision, new_state = self._judge(settings, observation, known, state, now)
        turn = Turn(readback, kept, new_state, observation, decision)
        if decision.action is not Action.CHANGE or decision.change is None:
            return turn
        with stopwatch.times(StageName.ACT):
            return await self._carry_out(
                serving, turn, decision, state, list(targets.values()), commit
            )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """When the parts of the latest turn began and ended."""
        return self._stopwatch.stages

    def forget(self) -> None:
        """Drop connections that this serving alone used."""
        if isinstance(self._source, PrometheusSource):
            self._source.close()
        self._source = None

    async def _carry_out(
        self,
        serving: KVServing,
        turn: Turn,
        decision: Decision,
        before: TunerState,
        targets: Sequence[EngineTarget],
        commit: Commit,
    ) -> Turn:
        promoted = promote(decision, serving.metadata.generation)
        await commit(promoted, turn.state)
        applied = await self._apply(targets, decision.change, decision.id)
        readback = Readback(
            {**turn.readback.runtime, **applied.states},
            {**turn.readback.failures, **applied.failures},
        )
        refused = [error for error in applied.failures.values() if isinstance(error, Rejected)]
        if refused and not applied.states:
            # Every engine says no: the former value is still in force everywhere.
            await commit(turn.promoted, before)
            return replace(
                turn, readback=readback, state=before, outcome=REJECTED, rejection=str(refused[0])
            )
        return replace(turn, readback=readback, promoted=promoted, outcome=applied.outcome.value)

    async def _read(self, targets: Mapping[str, EngineTarget]) -> Readback:
        names = list(targets)
        answers = await asyncio.gather(
            *(self._runtime.get(targets[name]) for name in names), return_exceptions=True
        )
        return Readback(*_sorted_out(names, answers))

    async def _apply(
        self, targets: Sequence[EngineTarget], change: Change | None, change_id: str
    ) -> Applied:
        if change is None:
            raise ValueError(f"expected change {change_id} to name a knob, got none")
        self._may_act()
        applied = await self._actuator.apply(targets, change, change_id)
        for name, error in applied.failures.items():
            logger.warning("engine %s was not changed: %s", name, error)
        return applied

    def _due(self, spec: KVServingSpec, now: float) -> bool:
        """Whether this tick is the nearest one to when an observation is due."""
        if self._observed_at is None:
            return True
        interval = spec.monitoring.scrape_interval_seconds
        return now - self._observed_at >= interval - self._tick_seconds / 2

    async def _observe(
        self, spec: KVServingSpec, targets: Sequence[EngineTarget], now: float
    ) -> Observation:
        key = spec.monitoring.model_dump_json()
        if self._source is None or self._source_key != key:
            self.forget()
            self._source, self._source_key = self._new_source(spec), key
        if targets:
            self._observed_at = now
        return await self._source.observe(targets, now)

    def _new_source(self, spec: KVServingSpec) -> Source:
        prometheus = spec.monitoring.prometheus
        if spec.monitoring.source is MonitoringSource.PROMETHEUS and prometheus is not None:
            return PrometheusSource(prometheus.url, timeout_seconds=prometheus.timeout_seconds)
        return DirectSource(self._http)


def new_basis(promoted: Sequence[PromotedValue], spec: KVServingSpec) -> dict[str, str]:
    """Values of the spec that these promoted values stand in for."""
    return {entry.field: basis_of(spec, entry.field) for entry in promoted}


def _sorted_out(
    names: Sequence[str], answers: Sequence[RuntimeState | BaseException]
) -> tuple[dict[str, RuntimeState], dict[str, RuntimeAPIError]]:
    runtime: dict[str, RuntimeState] = {}
    failures: dict[str, RuntimeAPIError] = {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, RuntimeState):
            runtime[name] = answer
        elif isinstance(answer, RuntimeAPIError):
            failures[name] = answer
        else:
            raise answer
    return runtime, failures
