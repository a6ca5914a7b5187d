"""The simulator takes many steps at once; one step and one block at a time gives the same."""

from typing import Any

from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.workload import Request, Shared
from tunerkit.stepwise import StepwiseEngine

TIMES = StepTimes(0.01, 0.0001, 0.0005, 1e-7, 1e-6, 0.002)

prefixes = st.sampled_from(
    [(), (), (("a", 20),), (("a", 20), ("b", 37)), (("a", 20), ("c", 64)), (("d", 7),)]
)


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    found, at = [], 0.0
    for _ in range(draw(st.integers(1, 25))):
        at += draw(st.sampled_from([0.0, 0.0, 0.001, 0.02, 0.3, 2.0]))
        prefix = tuple(Shared(*each) for each in draw(prefixes))
        least = prefix[-1].end if prefix else 1
        prompt = least + draw(st.integers(0, 40))
        session = draw(st.sampled_from([None, None, "s"])) if not prefix else None
        found.append(Request(at, prompt, draw(st.integers(1, 60)), prefix, session))
    return found


@st.composite
def engines(draw: st.DrawFn) -> EngineSettings:
    seqs = draw(st.integers(1, 12))
    block = draw(st.sampled_from([1, 2, 4, 8, 16]))
    eviction = draw(
        st.none()
        | st.none()
        | st.builds(Window, st.integers(0, 9), st.integers(block, 4 * block + 3))
    )
    return EngineSettings(
        cache_bytes=draw(st.integers(190, 420)),
        bytes_per_token={"bfloat16": 1.0, "fp8_e4m3": 0.5},
        dtype=draw(st.sampled_from(["bfloat16", "fp8_e4m3"])),
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 80)),
        max_active_seqs=draw(st.none() | st.integers(1, seqs)),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        reserve_full_isl=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        eviction=eviction,
        max_model_len=170,
        max_num_queued_reqs=draw(st.none() | st.none() | st.integers(1, 10)),
        max_num_queued_tokens=draw(st.none() | st.none() | st.integers(50, 400)),
        switch_seconds=0.1,
    )


def outcome(engine: Engine) -> dict[str, Any]:
    counters = engine.counters
    return {
        "now": engine.seconds,
        "steps": counters.steps,
        "generated": counters.generation_tokens,
        "preemptions": counters.preemptions,
        "reported": counters.reported_preemptions,
        "rejected": counters.rejected,
        "queries": counters.prefix_queries,
        "hits": counters.prefix_hits,
        "computed": counters.computed_tokens,
        "free": engine.free_blocks,
        "running": engine.running,
        "waiting": engine.waiting,
        "order": [sequence.index for sequence in engine.completed],
        "each": [(s.first_token, s.finished, s.preemptions) for s in engine.sequences],
    }


def reference(engine: StepwiseEngine) -> dict[str, Any]:
    return {
        "now": engine.now / 10**12,
        "steps": engine.steps,
        "generated": engine.generated,
        "preemptions": engine.preemptions,
        "reported": engine.reported,
        "rejected": engine.rejected,
        "queries": engine.queries,
        "hits": engine.hits,
        "computed": engine.computed,
        "free": len(engine.free),
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "order": [job.index for job in engine.completed],
        "each": [(j.first_token, j.finished, j.preemptions) for j in engine.jobs],
    }


def scarce() -> EngineSettings:
    """Several sequences need a block at once, and the newest that has to go is one of them."""
    return EngineSettings(
        cache_bytes=192,
        bytes_per_token={"bfloat16": 1.0, "fp8_e4m3": 0.5},
        dtype="bfloat16",
        block_size=16,
        max_num_seqs=5,
        max_num_batched_tokens=47,
        max_model_len=170,
        reserve_full_isl=False,
        prefix_caching=False,
    )


LENGTHS = [(20, 14), (20, 14), (21, 13), (1, 1), (20, 1), (20, 1), (1, 1), (37, 11), (7, 11)]


@example(scarce(), [Request(0.0, *each) for each in LENGTHS], [])
@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    engines(),
    requests(),
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.01, 0.05, 0.4, 3.0]),
            st.sampled_from(["look", "cap", "budget", "dtype", "eviction"]),
            st.integers(0, 100),
        ),
        max_size=8,
    ),
)
def test_many_steps_at_once_equal_one_at_a_time(
    given_settings: EngineSettings, work: list[Request], script: list[tuple[float, str, int]]
) -> None:
    fast, slow = Engine(given_settings, TIMES), StepwiseEngine(given_settings, TIMES)
    fast.submit(work)
    slow.submit(work)
    at = 0.0
    for wait, change, value in script:
        at += wait
        fast.advance(at)
        slow.advance(at)
        assert outcome(fast) == reference(slow)
        seqs, budget = given_settings.max_num_seqs, given_settings.max_num_batched_tokens
        match change:
            case "cap":
                fast.max_active_seqs = slow.max_active_seqs = 1 + value % seqs
            case "budget":
                allowed = seqs + value % (budget - seqs + 1)
                fast.max_scheduled_tokens = slow.max_scheduled_tokens = allowed
            case "dtype":
                dtype = ["bfloat16", "fp8_e4m3"][value % 2]
                fast.switch(dtype, fast.eviction)
                slow.switch(dtype, slow.eviction)
            case "eviction":
                window = [None, Window(3, given_settings.block_size + value)][value % 2]
                fast.switch(fast.dtype, window)
                slow.switch(fast.dtype, window)
        at = max(at, fast.seconds)
    fast.advance()
    slow.advance()
    event(f"preempted: {slow.preemptions > 0}")
    event(f"hits: {slow.hits > 0}")
    assert outcome(fast) == reference(slow)
    assert fast.idle
    assert fast.free_blocks == fast.blocks
    assert fast.counters.reported_preemptions == fast.counters.preemptions
