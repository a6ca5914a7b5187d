"""Every line of the failure table (tuning reference, C.8) ends in hold or rollback.

The engine is one whose ladder has a rung due, so that there is a change to be wrongly made.
"""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_tuner.decision import Action, Decision, DiagnosisKind, Knob, Reason, RungName
from kvserving_tuner.loop import decide
from kvserving_tuner.remembered import Sample, Watch
from kvserving_tuner.rules import Ability, Guardrails, LadderRules
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.scrape import Sample as Series
from kvserving_tuner.scrape import collect
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.metrics import Metrics
from kvserving_tuner.simulator.world import SimulatedServer
from kvserving_tuner.sources.base import Attempt, EngineTarget, Histories
from kvserving_tuner.state import TunerState
from tunerkit.simulated import engine, requests

START = 1_000_000.0
TARGET = EngineTarget("a", "sim://a")
EAGER = TuningSettings(
    mode=Mode.AUTO,
    abilities={Knob.KV_CACHE_DTYPE: Ability.CHANGE, Knob.MAX_SCHEDULED_TOKENS: Ability.CHANGE},
    allowed_dtypes=("fp8_e4m3", "k8v4", "int4_hadamard"),
    ladder=LadderRules(windows=1),
    guardrails=Guardrails(watch_windows=2, settle_seconds=10, watch_timeout_seconds=300),
)
WAYS_BACK = frozenset({Reason.ROLLED_BACK, Reason.LOAD_CHANGED, Reason.FALLBACK})
Distort = Callable[[list[Series]], Attempt | list[Series] | None]
"""What is wrong with a scrape; None: nothing was scraped at all, and the last one stands."""


@dataclass
class Bench:
    """One simulated engine, read through whatever is wrong with it."""

    engine: Engine
    settings: TuningSettings = EAGER
    state: TunerState = field(default_factory=TunerState)
    now: float = START
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with empty windows."""
        self.histories = Histories(self.settings.windows, self.settings.thresholds)
        self.server = SimulatedServer(self.engine, START)
        self.metrics = Metrics(self.engine, START)

    def turn(self, distort: Distort | None = None, skew: float = 0.0) -> Decision:
        """One turn of the loop 5 s later; what it decides is carried out."""
        self.now += 5
        self.server.advance(self.now)
        samples = list(self.metrics.samples())
        found = samples if distort is None else distort(samples)
        attempt = Attempt() if found is None else found
        if not isinstance(attempt, Attempt):
            attempt = Attempt((collect(attempt, self.now + skew),))
        seen = self.histories.update([TARGET], {"a": attempt}, self.now)
        runtime = [RuntimeState.of("a", self.server.state())]
        stored = TunerState.from_json(self.state.to_json())
        decision, self.state = decide(self.settings, seen, runtime, stored, self.now)
        if decision.action is Action.CHANGE and decision.change is not None:
            changes = {decision.change.knob.runtime_field: decision.change.to_value}
            self.server.change(changes, decision.id)
        self.decisions.append(decision)
        return decision


def bench(seconds: float = 250) -> Bench:
    """An engine whose cache binds, run until the ladder is about to act."""
    return copy.deepcopy(_run(seconds))


@cache
def _run(seconds: float) -> Bench:
    found = Bench(engine(requests(rate=1.5, seconds=1500)))
    for _ in range(int(seconds / 5)):
        found.turn()
    return found


def down(samples: list[Series]) -> Attempt:
    return Attempt(failure="connection refused")


def frozen() -> Distort:
    kept: list[Series] = []

    def distort(samples: list[Series]) -> list[Series]:
        kept[:] = kept or samples
        return list(kept)

    return distort


def valued(prefix: str, value: float) -> Distort:
    return lambda samples: [
        replace(s, value=value) if s.name.startswith(prefix) else s for s in samples
    ]


def without(prefix: str) -> Distort:
    return lambda samples: [s for s in samples if not s.name.startswith(prefix)]


def renamed(prefix: str) -> Distort:
    return lambda samples: [
        replace(s, name="vllm:odd") if s.name.startswith(prefix) else s for s in samples
    ]


USED = (
    "vllm:kv_cache_usage", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "vllm:num_preemptions", "vllm:generation_tokens",
)  # fmt: skip
LINES: dict[str, Distort] = {
    "the target is down": down,
    "gauges are stale": frozen(),
    "all is renamed": renamed("vllm:"),
    "nothing is exported": lambda samples: [],
    **{f"{name} is NaN": valued(name, math.nan) for name in USED},
    **{f"{name} is infinite": valued(name, math.inf) for name in USED},
    **{f"{name} is absent": without(name) for name in USED},
    **{f"{name} is renamed": renamed(name) for name in USED},
    "KV use is no share": valued("vllm:kv_cache_usage", 7.0),
    "requests wait and none runs": valued("vllm:num_requests_running", 0.0),
}


def test_the_bench_would_change_something_if_nothing_were_wrong() -> None:
    found = bench()
    for _ in range(60):
        found.turn()
    due = [d.change.to_value for d in found.decisions if d.change is not None]
    assert "fp8_e4m3" in due


@pytest.mark.parametrize("line", LINES)
def test_a_fault_ends_in_hold(line: str) -> None:
    found, distort = bench(), LINES[line]
    for _ in range(30):
        decision = found.turn(distort)
        # Gauges count as stale, and contradictions as such, once a window shows nothing else.
        if found.now - START > 250 + 90:
            assert decision.diagnosis.kind is DiagnosisKind.UNKNOWN, decision
        back = decision.reason in WAYS_BACK
        assert decision.action is Action.HOLD or back or line == "gauges are stale", decision


def test_a_counter_that_falls_is_a_restart_and_no_decision_spans_it() -> None:
    found = bench()

    def restarted(samples: list[Series]) -> list[Series]:
        return [
            replace(s, value=s.value / 1000) if s.name.endswith(("_total", "_count")) else s
            for s in samples
        ]

    found.turn(restarted)
    for _ in range(5):
        assert found.turn(restarted).reason is Reason.WARMING_UP


def test_samples_out_of_order_and_from_the_future_are_dropped() -> None:
    found = bench()
    for skew in (-60.0, 60.0, -3600.0, 3600.0):
        before = found.histories.newest_at("a")
        found.turn(skew=skew)
        assert found.histories.newest_at("a") == before


def watched(at: float) -> Watch:
    sample = Sample(
        at=at, goodput=1, missed=None, tokens_per_second=100, waiting=9, running=8,
        preemptions_per_second=0, finished=60,
    )  # fmt: skip
    return Watch(
        rung=RungName.EIGHT_BIT_CACHE, knob=Knob.KV_CACHE_DTYPE, from_value="bfloat16",
        to_value="fp8_e4m3", at=at, regime="", before=(sample,) * 2,
    )  # fmt: skip


@pytest.mark.parametrize("line", ["the target is down", "all is renamed"])
def test_a_change_that_cannot_be_judged_is_held_then_taken_back_once_it_can_be(line: str) -> None:
    found = bench(60)
    found.server.change({"kv_cache_dtype": "fp8_e4m3"}, "by the tuner")
    found.state = found.state.model_copy(
        update={
            "watch": watched(found.now), "set_kv_cache_dtype": "fp8_e4m3",
            "start_kv_cache_dtype": "bfloat16",
        }
    )  # fmt: skip
    for _ in range(70):
        assert found.turn(LINES[line]).action in (Action.HOLD, Action.CHANGE)
    changes = [d for d in found.decisions if d.change and d.change.knob is Knob.KV_CACHE_DTYPE]
    assert [(d.change.to_value, d.reason) for d in changes if d.change] == [
        ("bfloat16", Reason.ROLLED_BACK)
    ]
    assert found.engine.dtype == "bfloat16"


def test_a_format_that_a_person_sets_is_the_new_way_back() -> None:
    found = bench(60)
    found.server.change({"kv_cache_dtype": "int4_hadamard"}, "by hand")
    found.state = found.state.model_copy(update={"watch": watched(found.now)})
    found.turn()
    assert found.state.watch is None
    assert found.state.start_kv_cache_dtype == "int4_hadamard"


faults = st.lists(
    st.tuples(st.sampled_from(["fine", *LINES]), st.integers(1, 12)), min_size=3, max_size=16
)


@settings(max_examples=10, derandomize=True, deadline=None)
@given(faults, st.integers(0, 100))
def test_any_mix_of_faults_changes_only_on_good_data(
    script: list[tuple[str, int]], seed: int
) -> None:
    """No turn whose newest scrape is at fault changes anything but back."""
    found = bench(seconds=100 + random.Random(seed).choice([0, 80, 150, 200]))
    for line, turns in script:
        distort = frozen() if line == "gauges are stale" else LINES.get(line)
        for _ in range(turns):
            decision = found.turn(distort)
            if line == "fine" or line == "gauges are stale":
                continue
            back = decision.reason in WAYS_BACK
            assert decision.action is Action.HOLD or back, (line, decision)
