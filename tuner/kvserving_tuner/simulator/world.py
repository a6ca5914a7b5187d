"""The simulated world behind the tuner's protocols: a source of observations, an actuator.

Engines move on when they are looked at, so the loop that tunes real engines tunes these in virtual
time: `now` is whatever the caller says.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvserving_kernels.eviction import DEFAULT_SINK_TOKENS, NO_EVICTION
from kvserving_tuner.actuators.runtime_api import RuntimeActuator
from kvserving_tuner.errors import NoRuntimeAPI, Rejected, SimulationError
from kvserving_tuner.observation import Observation
from kvserving_tuner.runtime_client import RuntimeClient, RuntimeState
from kvserving_tuner.scrape import collect
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.metrics import Metrics
from kvserving_tuner.simulator.settings import within
from kvserving_tuner.sources.base import Attempt, EngineTarget, Histories

FIELDS = ("kv_cache_dtype", "max_active_seqs", "max_scheduled_tokens", "eviction")
"""What the runtime API changes."""
Reader = Callable[[float], Attempt]
"""Reads one engine at a time in seconds since the epoch."""


class SimulatedSource:
    """A source that reads engines by name instead of by URL."""

    def __init__(
        self,
        readers: Mapping[str, Reader],
        windows: Windows | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        self._readers = readers
        self._histories = Histories(windows, thresholds)

    async def observe(self, targets: Sequence[EngineTarget], now: float) -> Observation:
        """Observe `targets` at `now`; one that is not simulated is named in the problems."""
        read = {
            target.name: self._readers[target.name](now)
            for target in targets
            if target.name in self._readers
        }
        return self._histories.update(targets, read, now)


class SimulatedServer:
    """One engine with its metrics and its runtime API, from `started` (epoch seconds) on."""

    def __init__(self, engine: Engine, started: float) -> None:
        self.engine = engine
        self._started = started
        self._metrics = Metrics(engine, started)
        self._changes: dict[str, Mapping[str, Any]] = {}

    def advance(self, now: float) -> None:
        """Let the engine run until `now`; a step or a switch may take it beyond."""
        self.engine.advance(max(0.0, now - self._started))

    def read(self, now: float) -> Attempt:
        """The engine's metrics at `now`."""
        self.advance(now)
        return Attempt((collect(self._metrics.samples(), now),))

    def state(self) -> dict[str, Any]:
        """What the runtime API would answer."""
        engine, settings = self.engine, self.engine.settings
        window = engine.eviction
        eviction = (NO_EVICTION if window is None else window).to_json()
        return {
            "api_version": "v1",
            "effective": {
                "kv_cache_dtype": engine.dtype,
                "max_active_seqs": engine.max_active_seqs,
                "max_scheduled_tokens": engine.max_scheduled_tokens,
                "eviction": eviction,
            },
            "envelope": {
                "kv_cache_dtype": {"values": list(settings.bytes_per_token)},
                "max_active_seqs": {"minimum": 1, "maximum": settings.max_num_seqs},
                "max_scheduled_tokens": {
                    "minimum": settings.max_num_seqs,
                    "maximum": settings.max_num_batched_tokens,
                },
            },
            "capacity": {
                "kv_cache_tokens": settings.capacity_tokens(engine.dtype),
                "blocks": engine.blocks,
                "block_size": settings.block_size,
                "bytes_per_token": settings.bytes_per_token[engine.dtype],
                "kv_cache_bytes": int(settings.cache_bytes),
            },
            "versions": {"simulator": "1"},
        }

    def change(self, changes: Mapping[str, Any], change_id: str) -> dict[str, Any]:
        """Apply changes, all or nothing; SimulationError names the field at fault.

        A repeated `change_id` changes nothing more.
        """
        if self._changes.get(change_id) == changes:
            return self.state()
        engine, settings = self.engine, self.engine.settings
        for field in changes:
            if field not in FIELDS:
                raise SimulationError(field, f"one of {', '.join(FIELDS)}", "it")
        cap = _whole("max_active_seqs", changes, engine.max_active_seqs)
        budget = _whole("max_scheduled_tokens", changes, engine.max_scheduled_tokens)
        within("max_active_seqs", cap, 1, settings.max_num_seqs)
        low, high = settings.max_num_seqs, settings.max_num_batched_tokens
        within("max_scheduled_tokens", budget, low, high)
        dtype = changes.get("kv_cache_dtype", engine.dtype)
        if dtype not in settings.bytes_per_token:
            expected = f"one of {', '.join(settings.bytes_per_token)}"
            raise SimulationError("kv_cache_dtype", expected, str(dtype))
        window = _window(changes["eviction"]) if "eviction" in changes else engine.eviction
        if (dtype, window) != (engine.dtype, engine.eviction):
            engine.switch(dtype, window)
        engine.max_active_seqs, engine.max_scheduled_tokens = cap, budget
        self._changes[change_id] = dict(changes)
        return self.state()


def _window(document: object) -> Window | None:
    policy = document.get("policy") if isinstance(document, Mapping) else document
    if not isinstance(document, Mapping) or policy not in ("None", "StreamingLLM"):
        raise SimulationError("eviction.policy", "None or StreamingLLM", str(policy))
    if policy == "None":
        return None
    sinks = _whole("sink_tokens", document, DEFAULT_SINK_TOKENS, "eviction.")
    return Window(sinks, _whole("window_tokens", document, None, "eviction."))


def _whole(name: str, values: Mapping[str, Any], default: int | None, where: str = "") -> int:
    value = values.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SimulationError(where + name, "a whole number", str(value))
    return value


class SimulatedRuntime(RuntimeClient):
    """The client of the runtime API, with simulated servers at the other end."""

    def __init__(self, servers: Mapping[str, SimulatedServer]) -> None:
        self._servers = servers

    async def _call(
        self,
        target: EngineTarget,
        method: str,
        body: Mapping[str, object] | None,
        timeout_seconds: float | None = None,
    ) -> RuntimeState:
        server = self._servers.get(target.name)
        if server is None:
            raise NoRuntimeAPI(target.name, "there is no such simulated engine")
        if method == "GET" or body is None:
            return RuntimeState.of(target.name, server.state())
        changes = {name: value for name, value in body.items() if name != "change_id"}
        try:
            return RuntimeState.of(target.name, server.change(changes, str(body["change_id"])))
        except SimulationError as error:
            raise Rejected(
                target.name, error.field, error.expected, error.got, str(error)
            ) from error


class World:
    """Simulated engines by name, as the tuner's loop takes them."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        started: float = 1_000_000.0,
        windows: Windows | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        self.started = started
        self.servers = {name: SimulatedServer(engine, started) for name, engine in engines.items()}
        self.targets = tuple(EngineTarget(name, f"sim://{name}") for name in engines)
        readers = {name: server.read for name, server in self.servers.items()}
        self.source = SimulatedSource(readers, windows, thresholds)
        self.runtime = SimulatedRuntime(self.servers)
        self.actuator = RuntimeActuator(self.runtime, busy_pause_seconds=0.0)
