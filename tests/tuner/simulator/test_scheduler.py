"""What vLLM's scheduler does, worked out by hand: who runs, who waits, who has to go."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_kernels.eviction import StreamingLLM
from kvserving_tuner.errors import SimulationError
from kvserving_tuner.simulator.engine import Engine
from kvserving_tuner.simulator.eviction import Window
from kvserving_tuner.simulator.settings import EngineSettings
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.simulator.workload import Request, Shared

SECOND = StepTimes(1.0, 0.0, 0.0, 0.0)
"""Every step takes a second."""


def engine(*requests: Request, tokens: int = 1000, **more: Any) -> Engine:
    settings: dict[str, Any] = {
        "bytes_per_token": {"bfloat16": 2.0, "fp8_e4m3": 1.0}, "dtype": "bfloat16",
        "block_size": 10, "max_num_seqs": 8, "max_num_batched_tokens": 100,
        "prefix_caching": False, **more,
    }  # fmt: skip
    found = Engine(EngineSettings(cache_bytes=2.0 * tokens, **settings), SECOND)
    found.submit(requests)
    return found


def times(found: Engine) -> list[tuple[float, float]]:
    """First token and end of each request, in steps."""
    found.advance()
    return [((s.first_token or 0) / 10**12, (s.finished or 0) / 10**12) for s in found.sequences]


def test_a_step_per_token_and_all_of_them_are_counted() -> None:
    found = engine(Request(0, 30, 200))
    assert times(found) == [(1, 200)]
    assert found.counters.steps == found.counters.generation_tokens == 200


def test_time_is_what_a_step_does() -> None:
    parts = StepTimes(1.0, 0.01, 0.1, 0.001, 0.0001, 0.5)
    settings = EngineSettings(2000, {"bfloat16": 2.0}, "bfloat16", prefix_caching=False)
    found = Engine(settings, parts)
    found.submit([Request(2.0, 10, 3)])
    # Seen half a second late; 10 tokens, 55 pairs; then contexts of 10 and 11 tokens of 2 bytes.
    prefill = 1 + 0.1 + 0.0055
    first, end = times(found)[0]
    assert first == pytest.approx(2.5 + prefill)
    assert end == pytest.approx(first + 2 * 1.1 + 2 * 0.021)


def test_a_long_prompt_is_computed_in_parts() -> None:
    assert times(engine(Request(0, 250, 2))) == [(3, 4)]


def test_running_sequences_come_before_prompts_and_prompts_share_what_is_left() -> None:
    found = engine(Request(0, 10, 50), Request(0, 95, 2), Request(0, 10, 2))
    # 10 and 90 tokens; then 1 (the first decodes), 5 and 10.
    assert times(found) == [(1, 50), (2, 3), (2, 3)]


def test_requests_that_arrive_during_a_step_wait_for_the_next() -> None:
    found = engine(Request(0, 10, 4), Request(0.5, 10, 1), Request(1.0, 10, 1))
    assert times(found) == [(1, 4), (2, 2), (2, 2)]


def test_the_cap_holds_requests_back_in_order() -> None:
    found = engine(*(Request(0, 10, 3) for _ in range(3)), max_active_seqs=2)
    assert times(found) == [(1, 3), (1, 3), (4, 6)]


def test_a_lowered_cap_lets_what_runs_finish() -> None:
    found = engine(*(Request(0, 10, 10) for _ in range(4)))
    found.advance(3)
    found.max_active_seqs = 1
    assert times(found) == [(1, 10)] * 4


def test_the_newest_sequence_gives_way_and_is_computed_again() -> None:
    # Four blocks: both get two, the first needs a third with its 21st token, in step 7. The second
    # needs three for the 21 it has then, which are there after step 12.
    found = engine(Request(0, 15, 12), Request(0, 15, 12), tokens=40)
    assert times(found) == [(1, 12), (1, 18)]
    assert [s.preemptions for s in found.sequences] == [0, 1]
    # 15 prompt tokens each, then 15 and the 6 that the second had generated.
    assert found.counters.computed_tokens == 15 + 15 + 21


def test_a_preempted_sequence_goes_before_those_that_wait() -> None:
    found = engine(
        Request(0, 15, 12), Request(0, 15, 12), Request(0.5, 15, 2), tokens=40, max_active_seqs=2
    )
    assert times(found)[1:] == [(1, 18), (19, 20)]


def test_a_prompt_is_reserved_in_full_unless_that_is_off() -> None:
    # Of 10 blocks 5 are taken; the second prompt needs 6, and 5 for what the budget leaves it.
    work = (Request(0, 50, 30), Request(0, 60, 2))
    strict = engine(*work, tokens=100)
    assert times(strict)[1] == (31, 32)
    assert strict.counters.preemptions == 0
    loose = engine(*work, tokens=100, reserve_full_isl=False)
    loose.advance(1)
    assert loose.running == 2
    loose.advance()
    assert loose.counters.preemptions > 0


def test_a_lower_budget_admits_a_part_of_a_prompt_that_did_not_fit_before() -> None:
    # Five blocks are free. The second prompt needs six for what the budget leaves it, then two.
    found = engine(Request(0, 45, 40), Request(0, 90, 2), tokens=100, reserve_full_isl=False)
    found.advance(3)
    assert found.running == 1
    found.max_scheduled_tokens = 20
    found.advance(4)
    assert found.running == 2


def test_a_sequence_that_has_had_to_go_needs_no_block_any_more() -> None:
    # In step 12 the first three and the last lack a block each, and two are free. The one that the
    # last gives back serves the third; the fourth stays.
    work = [Request(0, 10, 30)] * 3 + [Request(0, 15, 30), Request(0.5, 1, 30)]
    found = engine(*work, tokens=120)
    found.advance(11)
    assert (found.running, found.free_blocks) == (5, 2)
    found.advance(12)
    assert [sequence.preemptions for sequence in found.sequences] == [0, 0, 0, 0, 1]
    assert (found.running, found.free_blocks) == (4, 0)


def test_the_watermark_keeps_blocks_free_but_not_for_the_only_one() -> None:
    work = (Request(0, 40, 20), Request(0, 40, 2))
    assert times(engine(*work, tokens=100))[1] == (1, 2)
    assert times(engine(*work, tokens=100, watermark=0.3))[1] == (21, 22)
    assert times(engine(Request(0, 90, 2), tokens=100, watermark=0.3)) == [(1, 2)]


def test_preemptions_are_reported_with_the_next_token_of_their_victim() -> None:
    found = engine(Request(0, 15, 12), Request(0, 15, 12), tokens=40)
    found.advance(10)
    assert (found.counters.preemptions, found.counters.reported_preemptions) == (1, 0)
    found.advance()
    assert (found.counters.preemptions, found.counters.reported_preemptions) == (1, 1)


def shared(arrival: float, prompt: int, *prefix: tuple[str, int]) -> Request:
    return Request(arrival, prompt, 1, tuple(Shared(*each) for each in prefix))


def test_a_shared_beginning_is_computed_once_by_whole_blocks() -> None:
    found = engine(
        shared(0, 50, ("system", 35)), shared(2, 60, ("system", 35)), prefix_caching=True
    )
    times(found)
    assert found.counters.prefix_queries == 110
    assert found.counters.prefix_hits == 30
    assert found.counters.computed_tokens == 50 + 30


def test_the_last_token_is_always_computed() -> None:
    found = engine(shared(0, 40, ("p", 40)), shared(2, 40, ("p", 40)), prefix_caching=True)
    times(found)
    assert found.counters.prefix_hits == 30


def test_requests_of_one_step_find_each_others_blocks() -> None:
    found = engine(shared(0, 35, ("p", 30)), shared(0, 35, ("p", 30)), prefix_caching=True)
    times(found)
    assert found.counters.prefix_hits == 30


def test_an_answer_is_found_by_the_next_turn_of_its_session() -> None:
    first = Request(0, 40, 31, session="chat")
    found = engine(first, Request(50, 90, 1, session="chat"), prefix_caching=True)
    times(found)
    # The last of 71 tokens was never computed: 70 are cached, in blocks of 10.
    assert found.counters.prefix_hits == 70


def test_a_request_that_waits_for_blocks_is_admitted_once_enough_of_it_is_published() -> None:
    # It needs ten blocks, of which the other has four and a part of the fifth; five are free. When
    # that one is full, in step 11, it counts for both.
    first = Request(0, 40, 60, session="chat")
    found = engine(first, Request(2.5, 96, 1, session="chat"), tokens=100, prefix_caching=True)
    assert times(found)[1] == (11, 11)


def test_what_was_used_longest_ago_is_forgotten_first_from_its_end() -> None:
    found = engine(
        shared(0, 50, ("a", 40)), shared(2, 50, ("b", 40)), shared(4, 60, ("c", 50)),
        shared(6, 50, ("b", 40)), shared(8, 50, ("a", 40)),
        tokens=140, prefix_caching=True,
    )  # fmt: skip
    times(found)
    # 14 blocks. With c, 16 are needed: a loses its fifth and fourth. b, found again, takes one new
    # block, for which a loses its third; a then finds two.
    assert found.counters.prefix_hits == 40 + 20


def test_a_preempted_sequence_finds_what_is_left_of_its_own_blocks() -> None:
    work = (Request(0, 15, 12), Request(0, 15, 12))
    plain, cached = engine(*work, tokens=40), engine(*work, tokens=40, prefix_caching=True)
    times(plain)
    times(cached)
    assert cached.counters.preemptions == 1
    assert cached.counters.computed_tokens == plain.counters.computed_tokens - 10
    assert cached.counters.prefix_hits == 0


def test_a_switch_of_format_costs_time_and_computes_what_runs_again() -> None:
    found = engine(*(Request(0, 90, 20) for _ in range(12)), switch_seconds=5.0)
    found.advance(9)
    running, generated = found.running, found.counters.generation_tokens
    assert found.running > 1
    found.switch("fp8_e4m3", None)
    assert (found.running, found.waiting, found.seconds) == (0, 12, 14)
    assert (found.blocks, found.free_blocks) == (200, 200)
    found.advance()
    assert found.counters.generation_tokens == 12 * 20 > generated
    assert found.counters.preemptions >= running


def test_a_format_in_which_the_longest_request_does_not_fit_is_refused() -> None:
    found = engine(tokens=100, dtype="fp8_e4m3", max_model_len=150)
    with pytest.raises(SimulationError, match="cache_bytes: expected room for 150 tokens"):
        found.switch("bfloat16", None)
    assert found.dtype == "fp8_e4m3"


def test_limits_on_the_queue_refuse_what_is_too_much() -> None:
    many = [Request(0.5, 10, 5) for _ in range(6)]
    found = engine(*many, max_num_queued_reqs=4)
    times(found)
    assert (found.counters.finished, found.counters.rejected) == (4, 2)
    found = engine(*many, max_num_queued_tokens=25)
    times(found)
    assert (found.counters.finished, found.counters.rejected) == (3, 3)


def test_requests_that_are_too_long_are_refused() -> None:
    found = engine(Request(0, 90, 11), Request(0, 90, 10), tokens=100)
    times(found)
    assert [s.finished is None for s in found.sequences] == [True, False]


def test_a_window_bounds_what_a_sequence_holds() -> None:
    window = Window(5, 30)
    found = engine(Request(0, 20, 400), eviction=window, max_model_len=900)
    held = []
    while not found.idle:
        found.advance(found.seconds + 1)
        held.append(found.blocks - found.free_blocks)
    # One block of sinks, and a window of 30 tokens that begins anywhere in a block.
    assert max(held) == 5
    assert found.free_blocks == found.blocks


def test_a_request_that_waits_for_blocks_is_admitted_when_another_returns_them() -> None:
    # A prompt holds its ten blocks until it is computed, and then five of them.
    found = engine(
        Request(0, 100, 20), Request(0, 40, 2), tokens=120, eviction=Window(5, 30),
        max_num_batched_tokens=200,
    )  # fmt: skip
    assert times(found)[1] == (2, 3)


sizes = st.tuples(st.integers(0, 200), st.integers(1, 300), st.integers(1, 65))


@given(sizes, st.integers(0, 2000), st.integers(1, 600))
def test_blocks_of_a_window_are_those_of_the_plugin(
    size: tuple[int, int, int], computed: int, new: int
) -> None:
    sinks, tokens, block = size
    ours, plugin = Window(sinks, tokens), StreamingLLM(sinks, tokens)
    freed = plugin.first_window_block(computed, block) - plugin.sink_blocks(block)
    assert ours.freed_blocks(computed, block) == freed
    blocks = -(-(computed + new) // block)
    held = blocks - ours.freed_blocks(computed, block)
    assert held == plugin.held_blocks(computed, new, block)
    peak = ours.peak_blocks(computed + new, new, block)
    assert peak == plugin.peak_blocks(computed + new, new, block)
    assert ours.freed_blocks(ours.full_at(block), block) == 1
    assert ours.freed_blocks(ours.full_at(block) - 1, block) == 0


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens"),
        ({"max_active_seqs": 9}, "max_active_seqs"),
        ({"max_active_seqs": 0}, "max_active_seqs"),
        ({"max_scheduled_tokens": 101}, "max_scheduled_tokens"),
        ({"watermark": 1.0}, "watermark"),
        ({"dtype": "int4"}, "dtype"),
        ({"max_model_len": 1001}, "cache_bytes"),
        ({"tokens": 9}, "cache_bytes"),
        ({"block_size": 0}, "block_size"),
    ],
)
def test_settings_that_an_engine_refuses_are_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(SimulationError) as refused:
        engine(**changed)
    assert refused.value.field == field


def test_requests_must_come_in_order() -> None:
    found = engine(Request(5, 10, 1))
    with pytest.raises(SimulationError, match="arrival"):
        found.submit([Request(4, 10, 1)])
