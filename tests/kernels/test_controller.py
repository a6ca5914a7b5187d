"""The engine core's end: all or nothing, each id once, and what was before stays on failure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from kvserving_kernels.errors import EngineEndsError, InvalidChangeError
from kvserving_kernels.eviction import NO_EVICTION, EvictionBounds, StreamingLLM
from kvserving_kernels.plugin.changes import Choices, IntegerRange, Value
from kvserving_kernels.plugin.controller import REMEMBERED_CHANGES, RuntimeController
from kvserving_kernels.plugin.document import (
    Capacity,
    Effective,
    EngineState,
    Startup,
    Versions,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


class FakeEngine:
    """An engine with four live knobs, of which one may fail."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "max_active_seqs": 64,
            "max_scheduled_tokens": 2048,
            "kv_cache_dtype": "bfloat16",
            "eviction": NO_EVICTION,
        }
        self.laid_out: list[dict[str, Value]] = []
        self.writes: list[tuple[str, Value]] = []
        self.fails: str | None = None
        self.impossible: Mapping[str, Value] | None = None
        self.ends = False
        self.now = 0.0
        self.seconds = 0.0

    def get(self, knob: str) -> Value:
        """Value in force."""
        value: Value = self.values[knob]
        return value

    def check(self, values: Mapping[str, Value]) -> None:
        """Refuse what cannot be together."""
        if values == self.impossible:
            raise InvalidChangeError("kv_cache_dtype", "what fits", "int4: too large")

    def set(self, knob: str, value: Value) -> None:
        """Set a knob, or fail halfway."""
        self.values[knob] = value
        self.writes.append((knob, value))
        if knob == self.fails:
            self.fails = None
            raise RuntimeError("out of memory")

    def lay_out(self, values: Mapping[str, Value]) -> None:
        """Set knobs of the cache, or fail halfway."""
        self.now += self.seconds
        if self.ends:
            raise EngineEndsError("a step failed: the engine ends")
        self.laid_out.append(dict(values))
        for knob, value in values.items():
            self.set(knob, value)

    def state(self) -> EngineState:
        """State with all knobs live."""
        return EngineState(
            effective=Effective(
                self.values["kv_cache_dtype"],
                self.values["max_active_seqs"],
                self.values["max_scheduled_tokens"],
                self.values["eviction"],
            ),
            envelope={
                "max_active_seqs": IntegerRange(1, 64),
                "max_scheduled_tokens": IntegerRange(64, 2048),
                "kv_cache_dtype": Choices(("bfloat16", "int4")),
                "eviction": EvictionBounds.of_engine(128, 1024),
            },
            capacity=Capacity(4096, 32, 128, 1024, 4_194_304, 4.0),
            versions=Versions("0.32.0", "0.1.0"),
            startup=Startup(64, 2048, 1024, True, "bfloat16", "a1b2"),
        )


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def controller(engine: FakeEngine) -> RuntimeController:
    return RuntimeController(engine, lambda: NOW, lambda: engine.now)


def _change(change_id: str = "a", **values: object) -> dict[str, Any]:
    return {"change_id": change_id, **values}


def test_the_document_has_the_shape_that_clients_know(controller: RuntimeController) -> None:
    assert controller.describe() == {
        "api_version": "v1",
        "effective": {
            "kv_cache_dtype": "bfloat16",
            "max_active_seqs": 64,
            "max_scheduled_tokens": 2048,
            "eviction": {"policy": "None"},
        },
        "envelope": {
            "max_active_seqs": {"minimum": 1, "maximum": 64},
            "max_scheduled_tokens": {"minimum": 64, "maximum": 2048},
            "kv_cache_dtype": {"values": ["bfloat16", "int4"]},
            "eviction": {
                "values": ["None", "StreamingLLM"],
                "sink_tokens": {"minimum": 0, "maximum": 1024, "default": 4},
                "window_tokens": {"minimum": 128, "maximum": 1024},
            },
        },
        "capacity": {
            "kv_cache_tokens": 4096,
            "blocks": 32,
            "block_size": 128,
            "bytes_per_token": 1024,
            "kv_cache_bytes": 4_194_304,
            "max_concurrency": 4.0,
        },
        "versions": {"vllm": "0.32.0", "plugin": "0.1.0"},
        "startup": {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "max_model_len": 1024,
            "prefix_caching": True,
            "dtype": "bfloat16",
            "weights": "a1b2",
        },
        "counters": {
            "evicted_blocks": 0,
            "nonfinite_values": 0,
            "saturated_values": 0,
            "switches": 0,
            "switch_seconds": 0.0,
            "jit_compiles": 0,
        },
        "last_change": None,
    }


def test_a_change_is_in_force_and_noted(controller: RuntimeController, engine: FakeEngine) -> None:
    answer = controller.apply(_change(max_active_seqs=8))
    assert answer["outcome"] == "Applied"
    assert (
        answer["runtime"]["effective"]["max_active_seqs"] == engine.values["max_active_seqs"] == 8
    )
    assert answer["runtime"]["last_change"] == {
        "change_id": "a",
        "result": "Applied",
        "at": "2026-01-02T03:04:05.678Z",
    }


def test_a_repeated_change_is_answered_but_not_made_again(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    controller.apply(_change("a", max_active_seqs=8))
    controller.apply(_change("b", max_active_seqs=16))
    answer = controller.apply(_change("a", max_active_seqs=8))
    assert answer["outcome"] == "Repeated"
    assert answer["runtime"]["effective"]["max_active_seqs"] == 16
    assert engine.writes == [("max_active_seqs", 8), ("max_active_seqs", 16)]


def test_an_id_cannot_name_two_changes(controller: RuntimeController, engine: FakeEngine) -> None:
    controller.apply(_change("a", max_active_seqs=8))
    answer = controller.apply(_change("a", max_active_seqs=9))
    assert (answer["outcome"], answer["error"]["field"]) == ("Invalid", "change_id")
    assert engine.values["max_active_seqs"] == 8


def test_one_wrong_field_leaves_all_as_it_was(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    answer = controller.apply(_change(max_active_seqs=8, max_scheduled_tokens=1))
    assert answer["outcome"] == "Invalid"
    assert answer["error"] == {
        "field": "max_scheduled_tokens",
        "expected": "an integer from 64 to 2048",
        "got": "1",
        "message": "max_scheduled_tokens: expected an integer from 64 to 2048, got 1",
    }
    assert engine.writes == []
    assert controller.describe()["last_change"] is None


@pytest.mark.parametrize("failing", ["max_active_seqs", "max_scheduled_tokens"])
def test_a_failure_at_any_knob_puts_every_knob_back(
    controller: RuntimeController, engine: FakeEngine, failing: str
) -> None:
    before = dict(engine.values)
    engine.fails = failing
    answer = controller.apply(_change(max_active_seqs=8, max_scheduled_tokens=512))
    assert answer["outcome"] == "Failed"
    assert "out of memory" in answer["error"]["message"]
    assert engine.values == before
    last = controller.describe()["last_change"]
    assert (last["result"], "out of memory" in last["error"]) == ("Failed", True)


def test_a_failed_change_may_be_tried_again(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    engine.fails = "max_active_seqs"
    controller.apply(_change("a", max_active_seqs=8))
    assert controller.apply(_change("a", max_active_seqs=8))["outcome"] == "Applied"
    assert engine.values["max_active_seqs"] == 8


def test_remembered_ids_are_bounded(controller: RuntimeController, engine: FakeEngine) -> None:
    for number in range(REMEMBERED_CHANGES + 1):
        controller.apply(_change(f"c{number}", max_active_seqs=1 + number % 64))
    written = len(engine.writes)
    assert controller.apply(_change("c1", max_active_seqs=2))["outcome"] == "Repeated"
    assert controller.apply(_change("c0", max_active_seqs=1))["outcome"] == "Applied"
    assert len(engine.writes) == written + 1


def test_what_empties_the_cache_is_set_last(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    change = _change(kv_cache_dtype="int4", max_scheduled_tokens=512, max_active_seqs=8)
    assert controller.apply(change)["outcome"] == "Applied"
    assert [knob for knob, _ in engine.writes][-1] == "kv_cache_dtype"


def test_a_failed_switch_takes_the_cheap_settings_back(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    before = dict(engine.values)
    engine.fails = "kv_cache_dtype"
    answer = controller.apply(_change(kv_cache_dtype="int4", max_active_seqs=8))
    assert answer["outcome"] == "Failed"
    assert engine.values == before


@pytest.mark.parametrize("values", [{}, {"max_active_seqs": 8}])
def test_of_an_engine_that_ends_nothing_is_said_to_be_in_force(
    controller: RuntimeController, engine: FakeEngine, values: dict[str, object]
) -> None:
    engine.ends = True
    with pytest.raises(EngineEndsError, match=r"^a step failed: the engine ends$"):
        controller.apply({"change_id": "a", "kv_cache_dtype": "int4", **values})


def test_an_engine_that_is_lost_on_the_way_back_is_not_said_to_serve_on(
    controller: RuntimeController, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = iter((RuntimeError("out of memory"), EngineEndsError("the engine ends")))

    def lay_out(values: Mapping[str, Value]) -> None:
        raise next(layouts)

    monkeypatch.setattr(engine, "lay_out", lay_out)
    with pytest.raises(EngineEndsError, match=r"^the engine ends$"):
        controller.apply(_change(kv_cache_dtype="int4"))


STREAMING = {"policy": "StreamingLLM", "sink_tokens": 64, "window_tokens": 512}


def test_format_and_eviction_are_one_layout(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    answer = controller.apply(_change(kv_cache_dtype="int4", eviction=STREAMING))
    assert answer["outcome"] == "Applied"
    assert engine.laid_out == [{"kv_cache_dtype": "int4", "eviction": StreamingLLM(64, 512)}]
    assert answer["runtime"]["effective"]["eviction"] == STREAMING
    again = controller.apply(_change(kv_cache_dtype="int4", eviction=STREAMING))
    assert (again["outcome"], len(engine.laid_out)) == ("Repeated", 1)
    other = controller.apply(_change(kv_cache_dtype="int4", eviction={"policy": "None"}))
    assert other["error"]["field"] == "change_id"
    assert "StreamingLLM with 64 sinks" in other["error"]["message"]


@pytest.mark.parametrize("failing", ["kv_cache_dtype", "eviction"])
def test_of_format_and_eviction_both_or_none_is_changed(
    controller: RuntimeController, engine: FakeEngine, failing: str
) -> None:
    before = dict(engine.values)
    engine.fails = failing
    change = _change(kv_cache_dtype="int4", eviction=STREAMING, max_active_seqs=8)
    assert controller.apply(change)["outcome"] == "Failed"
    assert engine.values == before


def test_a_wrong_eviction_names_its_parameter(controller: RuntimeController) -> None:
    answer = controller.apply(_change(eviction={**STREAMING, "window_tokens": 64}))
    assert answer["error"] == {
        "field": "eviction.window_tokens",
        "expected": "an integer from 128 to 1024",
        "got": "64",
        "message": "eviction.window_tokens: expected an integer from 128 to 1024, got 64",
    }


def test_what_cannot_be_is_refused_before_anything_is_touched(
    engine: FakeEngine, controller: RuntimeController
) -> None:
    engine.impossible = {"kv_cache_dtype": "int4"}
    answer = controller.apply(_change(kv_cache_dtype="int4"))
    assert answer["outcome"] == "Invalid"
    assert answer["error"]["field"] == "kv_cache_dtype"
    assert engine.writes == []
    # Its name was not used up, and with the other setting it is another change.
    together = controller.apply(_change(kv_cache_dtype="int4", eviction={"policy": "None"}))
    assert together["outcome"] == "Applied"
    # A change that was carried out is not judged anew.
    engine.impossible = engine.laid_out[-1]
    again = controller.apply(_change(kv_cache_dtype="int4", eviction={"policy": "None"}))
    assert again["outcome"] == "Repeated"


@pytest.mark.parametrize("fails", [None, "kv_cache_dtype"])
def test_what_was_asked_for_while_a_change_was_carried_out_is_refused(
    controller: RuntimeController, engine: FakeEngine, fails: str | None
) -> None:
    engine.seconds, engine.fails = 30.0, fails
    controller.apply(_change("a", kv_cache_dtype="int4"), 0.0)
    in_force = dict(engine.values)
    # Where it failed, the way back took as long.
    ended = engine.now
    second = _change("b", max_active_seqs=8)
    answer = controller.apply(second, ended - 1.0)
    assert (answer["outcome"], engine.values) == ("Busy", in_force)
    assert "another change" in answer["error"]["message"]
    # Its name was not used up.
    assert controller.apply(second, ended)["outcome"] == "Applied"


def test_a_change_that_is_repeated_while_it_is_carried_out_is_no_other_change(
    controller: RuntimeController, engine: FakeEngine
) -> None:
    engine.seconds = 30.0
    change = _change("a", kv_cache_dtype="int4")
    controller.apply(change, 0.0)
    assert controller.apply(change, 1.0)["outcome"] == "Repeated"
    assert len(engine.laid_out) == 1
