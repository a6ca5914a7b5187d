"""Probes apart from an engine: validation, slices and their pace, one at a time, shares, memory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_kernels.errors import EngineEndsError, InvalidProbeError, ProbeRefusedError
from kvserving_kernels.formats import LAYOUTS, layout_of
from kvserving_kernels.formats.reads import low_bit_share
from kvserving_kernels.plugin.memory import free_host_bytes
from kvserving_kernels.plugin.pace import Pace, pause_seconds
from kvserving_kernels.plugin.prober import CHUNK_TOKENS, IDLE_SECONDS, Prober
from kvserving_kernels.plugin.probes import Form, Limits, Probe, parse_probe

LIMITS = Limits(
    max_tokens=8,
    vocabulary=100,
    dtypes={"bfloat16": "bfloat16", "auto": "bfloat16", "int4": "int4"},
    live="bfloat16",
)


class FakeEngine:
    """Remembers what it is fed. The likelihood of a token is its place, negated."""

    def __init__(self, tokens: int = 1000) -> None:
        self.now = 0.0
        self.seconds_per_token = 0.001
        self.users = False
        self.fed: list[tuple[int, int, int]] = []
        self.opened: list[tuple[str, int]] = []
        self.is_open = False
        self.error: Exception | None = None
        self._tokens = tokens

    def clock(self) -> float:
        """Seconds that computing took."""
        return self.now

    def limits(self) -> Limits:
        """The limits above for more tokens."""
        return Limits(self._tokens, 10_000, LIMITS.dtypes, "bfloat16")

    def open(self, dtype: str, tokens: int) -> None:
        """Open, or raise the error."""
        self.opened.append((dtype, tokens))
        self.is_open = True
        if self.error:
            raise self.error

    def feed(
        self, token_ids: Sequence[int], targets: Sequence[int], position: int, size: int
    ) -> list[float]:
        """Check that tokens arrive in order, and take time for them."""
        assert self.is_open
        assert position == sum(count for _, count, _ in self.fed)
        assert [token + 1 for token in token_ids[: len(targets)]] == list(targets)
        self.fed.append((position, len(token_ids), size))
        self.now += self.seconds_per_token * len(token_ids)
        if self.error:
            raise self.error
        return [-float(token) for token in targets]

    def close(self) -> None:
        """Close."""
        self.is_open = False

    def has_users(self) -> bool:
        """Whether there are requests."""
        return self.users

    def page_size(self) -> tuple[int, int]:
        """Block size and head size."""
        return 64, 64

    def most_tokens(self) -> int:
        """Tokens per step."""
        return 128


def document(tokens: int = 500, **more: object) -> dict[str, object]:
    return {"token_ids": list(range(tokens)), "form": "prefill", **more}


def run(prober: Prober, engine: FakeEngine, asked: dict[str, object]) -> dict[str, Any]:
    """Drive a probe to its end; nothing may stay open."""
    answer = prober.begin("a", asked)
    while answer["outcome"] == "Running":
        answer = prober.advance("a")
    assert not engine.is_open
    return answer


def test_a_probe_has_its_tokens_and_the_format_that_it_is_for() -> None:
    ids = [1, 2, 3]
    assert parse_probe({"token_ids": ids, "form": "prefill"}, LIMITS) == Probe(
        (1, 2, 3), Form.PREFILL, "bfloat16", 1
    )
    asked = {"token_ids": ids, "form": "decode", "as_dtype": "auto", "skip": 2}
    assert parse_probe(asked, LIMITS) == Probe((1, 2, 3), Form.DECODE, "bfloat16", 2)
    asked = {"token_ids": ids, "form": "decode", "as_dtype": "int4"}
    assert parse_probe(asked, LIMITS).dtype == "int4"


@pytest.mark.parametrize(
    ("change", "field", "got"),
    [
        ({"token_ids": None}, "token_ids", "null"),
        ({"token_ids": "1 2 3"}, "token_ids", '"1 2 3"'),
        ({"token_ids": [1]}, "token_ids", "1"),
        ({"token_ids": [1] * 9}, "token_ids", "9"),
        ({"token_ids": [1, 100]}, "token_ids[1]", "100"),
        ({"token_ids": [-1, 1]}, "token_ids[0]", "-1"),
        ({"token_ids": [1, True]}, "token_ids[1]", "true"),
        ({"token_ids": [1, 2.0]}, "token_ids[1]", "2.0"),
        ({"form": None}, "form", "null"),
        ({"form": "both"}, "form", '"both"'),
        ({"as_dtype": "int3"}, "as_dtype", '"int3"'),
        ({"as_dtype": ["int4"]}, "as_dtype", '["int4"]'),
        ({"skip": 3}, "skip", "3"),
        ({"skip": -1}, "skip", "-1"),
        ({"skip": True}, "skip", "true"),
        ({"cache_salt": "x"}, "cache_salt", "an unknown field"),
    ],
)
def test_a_wrong_field_is_named_with_what_came(
    change: dict[str, object], field: str, got: str
) -> None:
    with pytest.raises(InvalidProbeError) as raised:
        parse_probe({"token_ids": [1, 2, 3], "form": "prefill", **change}, LIMITS)
    assert (raised.value.field, raised.value.got) == (field, got)


@pytest.mark.parametrize("form", ["prefill", "decode"])
@pytest.mark.parametrize("skip", [0, 1, 2, 100, 499])
def test_every_token_is_fed_once_and_all_after_the_skipped_are_scored(form: str, skip: int) -> None:
    engine = FakeEngine()
    answer = run(Prober(engine, engine.clock), engine, document(form=form, skip=skip))
    assert answer["outcome"] == "Done"
    first = max(1, skip)
    assert answer["result"]["logprobs"] == [
        *[None] * first,
        *(-float(token) for token in range(first, 500)),
    ]
    assert answer["result"]["tokens"] == 500 - first
    assert (answer["result"]["form"], answer["result"]["dtype"]) == (form, "bfloat16")
    # The last token is a target only.
    assert sum(count for _, count, _ in engine.fed) == 499
    assert engine.opened == [("bfloat16", 499)]
    for position, _, size in engine.fed:
        assert size == (1 if form == "decode" and position >= first - 1 else CHUNK_TOKENS)


def test_the_share_is_that_of_the_format_and_the_scored_contexts() -> None:
    engine = FakeEngine()
    asked = document(as_dtype="int4", skip=128)
    result = run(Prober(engine, engine.clock), engine, asked)["result"]
    assert result["dtype"] == "int4"
    assert result["low_bit_share"] == low_bit_share("int4", 64, 64, range(128, 500)) > 0.85


@pytest.mark.parametrize(("form", "tokens"), [("prefill", 96), ("decode", 102)])
def test_slices_take_as_long_as_they_should(form: str, tokens: int) -> None:
    engine = FakeEngine()
    engine.seconds_per_token = 2**-10
    run(Prober(engine, engine.clock), engine, document(form=form))
    sizes = [count for _, count, _ in engine.fed]
    assert max(sizes) == tokens
    assert sizes[-2] == tokens


def test_an_engine_with_room_for_few_tokens_is_given_few() -> None:
    class Small(FakeEngine):
        def most_tokens(self) -> int:
            return 8

    engine = Small()
    run(Prober(engine, engine.clock), engine, document())
    assert {size for _, _, size in engine.fed} == {8}


@pytest.mark.parametrize("skip", [0, 70])
def test_what_is_computed_at_once_does_not_depend_on_time(skip: int) -> None:
    def passes(seconds_per_token: float) -> list[tuple[int, int]]:
        engine = FakeEngine()
        engine.seconds_per_token = seconds_per_token
        run(Prober(engine, engine.clock), engine, document(skip=skip))
        return [
            (position + start, min(size, count - start))
            for position, count, size in engine.fed
            for start in range(0, count, size)
        ]

    assert passes(1.0) == passes(0.001) == passes(0.0)
    assert max(count for _, count in passes(0.0)) == CHUNK_TOKENS


def test_users_have_their_share_of_the_time() -> None:
    engine = FakeEngine()
    prober = Prober(engine, engine.clock)
    prober.begin("a", document())
    assert prober.advance("a")["pause_seconds"] == 0
    engine.users = True
    before = engine.now
    pause = prober.advance("a")["pause_seconds"]
    took = engine.now - before
    assert took / (took + pause) == pytest.approx(0.2)


def test_a_pace_learns_from_the_last_slice_but_not_too_much() -> None:
    pace = Pace(slice_seconds=0.1)
    pace.timed(16, 0.0)
    assert pace.tokens == 64
    pace.timed(64, 0.05)
    assert pace.tokens == 128
    pace.timed(128, 100.0)
    assert pace.tokens == 1
    assert pause_seconds(0.1, users=False) == 0
    assert pause_seconds(0.1, users=True, users_share=0.5) == pytest.approx(0.1)


@pytest.mark.parametrize("seconds", [0.001, 0.1, 2.5, 20.0, 100.0, 1000.0])
def test_users_have_their_share_however_long_a_slice_takes(seconds: float) -> None:
    pause = pause_seconds(seconds, users=True)
    assert seconds / (seconds + pause) == pytest.approx(0.2)


@pytest.mark.parametrize("seconds", [2.5, 20.0, 100.0])
def test_a_probe_in_a_long_pause_is_not_left_behind(seconds: float) -> None:
    engine = FakeEngine()
    engine.users, engine.seconds_per_token = True, seconds / CHUNK_TOKENS
    prober = Prober(engine, engine.clock)
    prober.begin("a", document())
    pause = prober.advance("a")["pause_seconds"]
    engine.now += pause + IDLE_SECONDS - 1
    assert prober.begin("b", document())["outcome"] == "Busy"
    engine.now += 2
    assert prober.begin("b", document())["outcome"] == "Running"


def _work(engine: FakeEngine, prober: Prober, seconds: float, kind: str) -> float:
    """Drive probes of one slice, one after the other; returns the share of time that they took."""
    began, worked = engine.now, 0.0
    answer: dict[str, Any] = {"outcome": "Done"}
    while engine.now - began < seconds:
        before = engine.now
        if answer["outcome"] == "Running":
            answer = prober.advance("a")
        else:
            answer = prober.begin("a", document(tokens=9))
        worked += engine.now - before
        if kind == "hangs up":
            prober.end("a")
            answer = {"pause_seconds": 0.0, "outcome": "Done"}
        # Who has an answer may ask for the next at once; only a pause is kept.
        elif answer["outcome"] in ("Running", "Waiting"):
            engine.now += answer["pause_seconds"]
        engine.now += 0.001
    return worked / (engine.now - began)


@pytest.mark.parametrize("kind", ["done", "fails", "refused", "hangs up"])
def test_probes_one_after_the_other_leave_users_their_share(kind: str) -> None:
    class Slow(FakeEngine):
        def open(self, dtype: str, tokens: int) -> None:
            self.now += 0.05
            if kind == "refused":
                raise ProbeRefusedError("no room")

        def feed(self, token_ids: Any, targets: Any, position: int, size: int) -> list[float]:
            self.now += 0.05
            if kind == "fails":
                raise RuntimeError("out of memory")
            return [0.0] * len(targets)

        def close(self) -> None:
            self.now += 0.01 if self.is_open else 0.0

    engine = Slow()
    engine.users = True
    share = _work(engine, Prober(engine, engine.clock), 100.0, kind)
    assert 0.1 < share <= 0.2
    engine.users = False
    assert _work(engine, Prober(engine, engine.clock), 100.0, kind) > 0.5


def test_what_users_are_owed_is_not_waited_for_once_they_have_gone() -> None:
    engine = FakeEngine()
    engine.users, engine.seconds_per_token = True, 0.01
    prober = Prober(engine, engine.clock)
    run(prober, engine, document(tokens=9))
    waits = prober.begin("b", document())
    assert (waits["outcome"], waits["pause_seconds"]) == ("Waiting", pytest.approx(0.32))
    engine.users = False
    assert prober.begin("b", document())["outcome"] == "Running"


def test_a_second_probe_is_turned_away_until_the_first_has_ended() -> None:
    engine = FakeEngine()
    prober = Prober(engine, engine.clock)
    prober.begin("a", document())
    assert prober.begin("b", document())["outcome"] == "Busy"
    assert prober.advance("b")["outcome"] == "Ended"
    prober.end("b")
    assert prober.advance("a")["outcome"] == "Running"
    prober.end("a")
    assert not engine.is_open
    engine.fed.clear()
    assert prober.begin("b", document())["outcome"] == "Running"


def test_a_probe_that_nobody_drives_any_more_makes_room() -> None:
    engine = FakeEngine()
    prober = Prober(engine, engine.clock)
    prober.begin("a", document())
    engine.now += IDLE_SECONDS
    assert prober.begin("b", document())["outcome"] == "Running"
    assert prober.advance("a")["outcome"] == "Ended"
    assert prober.advance("b")["outcome"] == "Running"


def test_a_probe_that_is_dropped_is_told_why() -> None:
    engine = FakeEngine()
    prober = Prober(engine, engine.clock)
    prober.drop("nothing runs")
    prober.begin("a", document())
    prober.drop("the format was changed")
    assert not engine.is_open
    answer = prober.advance("a")
    assert (answer["outcome"], answer["error"]["message"]) == ("Ended", "the format was changed")


@pytest.mark.parametrize(
    ("error", "outcome"), [(ProbeRefusedError("no room"), "Refused"), (MemoryError(), "Failed")]
)
def test_a_cache_that_cannot_be_had_leaves_nothing(error: Exception, outcome: str) -> None:
    engine = FakeEngine()
    engine.error = error
    prober = Prober(engine, engine.clock)
    assert prober.begin("a", document())["outcome"] == outcome
    engine.error = None
    assert run(prober, engine, document())["outcome"] == "Done"


def test_an_error_in_a_slice_ends_the_probe_and_frees_its_cache() -> None:
    engine = FakeEngine()
    prober = Prober(engine, engine.clock)
    prober.begin("a", document())
    engine.error = RuntimeError("out of memory")
    answer = prober.advance("a")
    assert (answer["outcome"], engine.is_open) == ("Failed", False)
    assert "out of memory" in answer["error"]["message"]


@pytest.mark.parametrize("opening", [True, False])
def test_of_an_engine_that_ends_nothing_is_told_or_freed(opening: bool) -> None:
    class Counting(FakeEngine):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    engine = Counting()
    prober = Prober(engine, engine.clock)
    if not opening:
        prober.begin("a", document())
    engine.error = EngineEndsError("a rank failed alone: the engine ends")
    with pytest.raises(EngineEndsError, match="a rank failed alone"):
        prober.begin("a", document()) if opening else prober.advance("a")
    # Once, before the probe began.
    assert engine.closed == 1
    assert prober.advance("a")["outcome"] == "Ended"


def test_likelihoods_that_are_no_numbers_are_a_failure() -> None:
    class Broken(FakeEngine):
        def feed(self, token_ids: Any, targets: Any, position: int, size: int) -> list[float]:
            return [math.nan] * len(targets)

    engine = Broken()
    answer = run(Prober(engine, engine.clock), engine, document())
    assert (answer["outcome"], answer["error"]["reason"]) == ("Failed", "NotFinite")


@given(
    dtype=st.sampled_from([dtype.value for dtype in LAYOUTS]),
    block_size=st.sampled_from([32, 64, 128]),
    start=st.integers(1, 300),
    count=st.integers(1, 5),
)
def test_a_share_counts_each_element_that_is_read(
    dtype: str, block_size: int, start: int, count: int
) -> None:
    layout = layout_of(dtype)
    anchors = layout.anchor_tokens(block_size)
    bits = []
    for length in range(start, start + count):
        for place in range(length):
            bits.append(8 if place % block_size < anchors else layout.k_bits)
            bits.append(layout.v_bits)
    share = sum(bit < 8 for bit in bits) / len(bits)
    assert low_bit_share(dtype, block_size, 64, range(start, start + count)) == share


def test_formats_of_vllm_have_no_low_bits() -> None:
    assert low_bit_share("bfloat16", 64, 64, range(1, 9)) == 0
    assert low_bit_share("fp8_e4m3", 16, 64, range(1, 9)) == 0


def test_free_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    1000 kB\n")
    assert free_host_bytes(meminfo, cgroup) == 1000 * 1024
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("500000\n")
    (cgroup / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert free_host_bytes(meminfo, cgroup) == 1000 * 1024
    (cgroup / "memory.max").write_text("600000\n")
    assert free_host_bytes(meminfo, cgroup) == 200_000
    (cgroup / "memory.max").write_text("300000\n")
    assert free_host_bytes(meminfo, cgroup) == 0
