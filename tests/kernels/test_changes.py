"""A change is valid within the envelope or refused with the field at fault."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_kernels.errors import InvalidChangeError
from kvserving_kernels.plugin.adapters.v0_32 import core
from kvserving_kernels.plugin.changes import Choices, IntegerRange, parse_change

ENVELOPE = {"max_active_seqs": IntegerRange(1, 64)}


def test_a_valid_change_keeps_its_values_and_its_id() -> None:
    change = parse_change({"max_active_seqs": 8, "change_id": "tuner-7"}, ENVELOPE)
    assert (change.change_id, dict(change.values)) == ("tuner-7", {"max_active_seqs": 8})


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "body"),
        ([], "body"),
        ({"change_id": "a"}, "body"),
        ({"max_active_seqs": 8}, "change_id"),
        ({"max_active_seqs": 8, "change_id": ""}, "change_id"),
        ({"max_active_seqs": 8, "change_id": 7}, "change_id"),
        ({"max_active_seqs": 8, "change_id": "a" * 129}, "change_id"),
        ({"max_active_seqs": 8, "change_id": "two\nlines"}, "change_id"),
        ({"max_active_seqs": 0, "change_id": "a"}, "max_active_seqs"),
        ({"max_active_seqs": 65, "change_id": "a"}, "max_active_seqs"),
        ({"max_active_seqs": True, "change_id": "a"}, "max_active_seqs"),
        ({"max_active_seqs": 8.0, "change_id": "a"}, "max_active_seqs"),
        ({"max_active_seqs": "8", "change_id": "a"}, "max_active_seqs"),
        ({"max_active_seqs": None, "change_id": "a"}, "max_active_seqs"),
        ({"max_active_seqs": 8, "max_num_seqs": 8, "change_id": "a"}, "max_num_seqs"),
        ({"max_active_seqs": 8, "kv_cache_dtype": "int4", "change_id": "a"}, "kv_cache_dtype"),
        ({"eviction": {"policy": "H2O"}, "change_id": "a"}, "eviction"),
        ({"max_scheduled_tokens": 512, "change_id": "a"}, "max_scheduled_tokens"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field_at_fault(document: object, field: str) -> None:
    with pytest.raises(InvalidChangeError) as refused:
        parse_change(document, ENVELOPE)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: expected ")


def test_a_known_setting_outside_the_envelope_is_called_restart_class() -> None:
    with pytest.raises(InvalidChangeError, match="restart class on this engine"):
        parse_change({"kv_cache_dtype": "fp8_e4m3", "change_id": "a"}, ENVELOPE)


def test_a_name_that_is_unavailable_alone_is_shown_with_its_reason_and_left_to_the_engine() -> None:
    choices = Choices(("int4",), {"auto": "too large"})
    assert choices.to_json() == {"values": ["int4"], "unavailable": {"auto": "too large"}}
    document = {"kv_cache_dtype": "auto", "change_id": "a"}
    assert parse_change(document, {"kv_cache_dtype": choices}).values["kv_cache_dtype"] == "auto"


def test_a_name_is_taken_from_the_choices_alone() -> None:
    envelope = {"kv_cache_dtype": Choices(("auto", "int4"))}
    change = parse_change({"kv_cache_dtype": "int4", "change_id": "a"}, envelope)
    assert dict(change.values) == {"kv_cache_dtype": "int4"}
    for wrong in ("int8", "INT4", 4, None, ["int4"], {"int4": 1}, True):
        with pytest.raises(InvalidChangeError, match="kv_cache_dtype: expected one of auto, int4"):
            parse_change({"kv_cache_dtype": wrong, "change_id": "a"}, envelope)


def test_a_refusal_never_repeats_a_huge_value() -> None:
    with pytest.raises(InvalidChangeError) as refused:
        parse_change({"max_active_seqs": "x" * 10_000, "change_id": "a"}, ENVELOPE)
    assert len(str(refused.value)) < 200


@given(st.integers(), st.integers(1, 100), st.integers(0, 100))
def test_exactly_the_integers_of_a_range_are_in_it(value: int, low: int, span: int) -> None:
    assert (value in IntegerRange(low, low + span)) == (low <= value <= low + span)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["max_active_seqs", "change_id", "kv_cache_dtype", "eviction", "other"])


@given(st.dictionaries(KEYS, JSON) | JSON)
def test_any_json_is_a_valid_change_or_an_invalid_one(document: object) -> None:
    try:
        change = parse_change(document, ENVELOPE)
    except InvalidChangeError:
        return
    assert set(change.values) == {"max_active_seqs"}
    assert change.values["max_active_seqs"] in ENVELOPE["max_active_seqs"]


_apply: Callable[..., Any] = core.apply
EVICTION = {"policy": "StreamingLLM", "sink_tokens": 64, "window_tokens": 1024}


@pytest.mark.parametrize(
    ("document", "outcome", "logged"),
    [
        (
            {"max_active_seqs": 8, "change_id": "a"},
            "Applied",
            'change (change_id: "a", max_active_seqs: 8): Applied',
        ),
        (
            {"kv_cache_dtype": "int4", "eviction": EVICTION, "change_id": "b"},
            "Failed",
            'change (change_id: "b", kv_cache_dtype: "int4", eviction: {"policy": "StreamingLLM", '
            '"sink_tokens": 64, "window_tokens": 1024}): Failed',
        ),
        (
            {"max_active_seqs": 8, "change_id": "c"},
            "Busy",
            'change (change_id: "c", max_active_seqs: 8): Busy',
        ),
        (
            {"kv_cache_dtype": "hunter2\n" * 999, "password": "hunter2", "change_id": "hunter2"},
            "Invalid",
            "change (kv_cache_dtype): Invalid",
        ),
        ({"hunter2": "hunter2"}, "Invalid", "change (no known field): Invalid"),
        (["hunter2"], "Invalid", "change (no known field): Invalid"),
        ("hunter2", "Invalid", "change (no known field): Invalid"),
    ],
)
def test_the_log_has_of_a_change_what_is_known_and_valid(
    caplog: pytest.LogCaptureFixture, document: object, outcome: str, logged: str
) -> None:
    caplog.set_level(logging.INFO)
    controller = SimpleNamespace(apply=lambda *_: {"outcome": outcome})
    _apply(SimpleNamespace(_kvserving_controller=controller), document)
    assert caplog.messages == [f"kvserving: {logged}"]


def test_what_the_log_has_of_a_change_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    controller = SimpleNamespace(apply=lambda *_: {"outcome": "Failed"})
    _apply(
        SimpleNamespace(_kvserving_controller=controller),
        {"change_id": "a" * 128, "kv_cache_dtype": "x" * 9999},
    )
    assert len(caplog.messages[0]) < 300
