"""Engine models, the tuner's loop and virtual time put together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvserving_tuner.decision import Action, Decision
from kvserving_tuner.loop import decide
from kvserving_tuner.observation import Observation
from kvserving_tuner.runtime_client import Capacity, Effective, RuntimeState
from kvserving_tuner.scrape import Sample, collect
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.sources.base import Attempt, EngineTarget, Histories
from kvserving_tuner.state import TunerState
from tunerkit.engine import EngineModel

START = 1_000_000.0
Distort = Callable[[float, str, list[Sample]], Attempt | list[Sample]]
"""What a test does to one engine's samples before the tuner sees them."""


@dataclass
class World:
    """Engines by name, observed every `interval_seconds`."""

    engines: Mapping[str, EngineModel]
    settings: TuningSettings
    interval_seconds: float = 5.0
    maximum: int = 256
    distort: Distort | None = None
    state: TunerState = field(default_factory=TunerState)
    now: float = START
    decisions: list[Decision] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with empty windows."""
        self.histories = Histories(self.settings.windows, self.settings.thresholds)

    def run(self, seconds: float) -> "World":
        """Let the engines and the tuner run."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.interval_seconds
            for engine in self.engines.values():
                engine.advance(self.now)
            self._turn()
        return self

    def _turn(self) -> None:
        read: dict[str, Attempt] = {}
        for name, engine in self.engines.items():
            found: Attempt | list[Sample] = engine.samples()
            if self.distort is not None and not isinstance(found, Attempt):
                found = self.distort(self.now, name, found)
            read[name] = (
                found if isinstance(found, Attempt) else Attempt((collect(found, self.now),))
            )
        targets = [EngineTarget(name, f"http://{name}:8000") for name in self.engines]
        observation = self.histories.update(targets, read, self.now)
        # The state goes through its stored form each turn, as it does in a cluster.
        stored = TunerState.from_json(self.state.to_json())
        runtime = [self.runtime(name) for name in self.engines]
        decision, self.state = decide(self.settings, observation, runtime, stored, self.now)
        if decision.action is Action.CHANGE and decision.change is not None:
            for engine in self.engines.values():
                engine.cap = int(decision.change.to_value)
        self.decisions.append(decision)
        self.observations.append(observation)

    def runtime(self, name: str) -> RuntimeState:
        """What the engine's runtime API would answer."""
        engine = self.engines[name]
        return RuntimeState(
            target=name,
            effective=Effective(kv_cache_dtype="bfloat16", max_active_seqs=engine.cap),
            envelope={"max_active_seqs": {"minimum": 1, "maximum": self.maximum}},
            capacity=Capacity(
                kv_cache_tokens=engine.blocks * engine.block, block_size=engine.block
            ),
        )

    def changes(self, since: float = 0.0, until: float = float("inf")) -> list[Decision]:
        """Decisions that changed the cap, by time since the start."""
        return [
            each
            for each in self.decisions
            if each.action is Action.CHANGE and since <= each.at - START <= until
        ]

    def most_changes(self, seconds: float, since: float) -> int:
        """The largest number of changes in any `seconds` from `since` on."""
        times = [each.at for each in self.changes(since=since)]
        return max((sum(at <= t < at + seconds for t in times) for at in times), default=0)
