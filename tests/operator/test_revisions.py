"""When two specs ask for the same pods, and which image a new template gets."""

from typing import Any

import pytest

from kvserving_operator.live import KVSettings, asked, asking_for
from kvserving_operator.memory import Memory, recall
from kvserving_operator.render.children import deployment
from kvserving_operator.revisions import (
    REMEMBERED_VERDICTS,
    RevisionState,
    Verdict,
    inputs_hash,
    render_revision,
)
from kvserving_operator.settings import Settings
from kvserving_tuner.state import TunerState
from operatorkit.specs import REF, engine_spec, spec_of

SETTINGS = Settings()


def hash_of(**spec: Any) -> str:
    return inputs_hash(spec_of(**spec))


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "other", "uri": "pvc://models/tiny-llama"}},
        {"engine": engine_spec(maxNumSeqs=8)},
        {"engine": engine_spec(extraArgs=["--seed=1"])},
        {"engine": engine_spec(image="example.com/engine:1")},
        {"kvCache": {"dtype": "float16"}},
        {"slo": {"ttftMilliseconds": 500}},
        {"rollout": {"drainSeconds": 10}},
        {"podTemplate": {"nodeSelector": {"a": "b"}}},
    ],
)
def test_what_shapes_a_pod_is_an_input(change: dict[str, Any]) -> None:
    assert hash_of() != hash_of(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"tuning": {"mode": "Off"}},
        {"rollout": {"maxSurge": 1}},
        {"slo": {"percentile": 99}},
        {"rollbackPolicyRef": {"name": "strict"}},
        # Defaults that are spelled out: what a field that a later version adds looks like.
        {"kvCache": {"dtype": "auto", "eviction": {"policy": "None"}}},
        {"engine": engine_spec(prefixCaching="Enabled", parallelism={"tensor": 1})},
        {"podTemplate": {"metadata": {"labels": {}}, "resources": {}}},
    ],
)
def test_what_does_not_is_none(change: dict[str, Any]) -> None:
    assert hash_of() == hash_of(**change)


SETTINGS_OF_A_CACHE: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16"},
    {"dtype": "int4"},
    {"dtype": "int8", "eviction": {"policy": "StreamingLLM", "windowTokens": 512}},
    {"eviction": {"policy": "StreamingLLM", "sinkTokens": 0, "windowTokens": 512}},
    {"eviction": {"policy": "H2O", "budgetPercent": 50}},
)


@pytest.mark.parametrize("other", SETTINGS_OF_A_CACHE)
@pytest.mark.parametrize("asked_for", SETTINGS_OF_A_CACHE)
def test_pods_that_start_with_other_settings_are_those_of_a_spec_that_asks_for_them(
    asked_for: dict[str, Any], other: dict[str, Any]
) -> None:
    spec, like = spec_of(kvCache=asked_for), spec_of(kvCache=other)
    made_for = asking_for(spec, asked(like))
    assert (asked(made_for), inputs_hash(made_for)) == (asked(like), inputs_hash(like))
    live = render_revision(REF, made_for, SETTINGS, RevisionState(), 0.0, asked(spec))
    assert (live.start, live.live) == (asked(like), asked(spec))
    assert live.hash == render_revision(REF, like, SETTINGS, RevisionState(), 0.0).hash


def test_engines_without_the_plugin_follow_no_edit() -> None:
    stock = engine_spec(plugin="Disabled", image="vllm/vllm-openai-cpu:v0.32.0")
    revision = render_revision(REF, spec_of(engine=stock), SETTINGS, RevisionState(), 0.0)
    edited = spec_of(engine=stock, kvCache={"dtype": "fp8_e4m3"})
    assert revision.follows(spec_of(engine=stock), proven=True)
    assert not revision.follows(edited, proven=True)


def state_with(image: str) -> RevisionState:
    first = render_revision(REF, spec_of(), Settings(engine_image_cpu=image), RevisionState(), 0.0)
    return RevisionState(current=first)


def test_the_image_in_use_stays_in_use() -> None:
    state = state_with("engine:0.32.0")
    edited = spec_of(engine=engine_spec(maxNumSeqs=4))
    newer = Settings(engine_image_cpu="engine:0.40.0")
    assert "engine:0.32.0" == render_revision(REF, edited, newer, state, 1.0).image


def test_another_accelerator_gets_its_own_default() -> None:
    state = state_with("engine:0.32.0")
    edited = spec_of(engine={"accelerator": "NVIDIA"})
    image = render_revision(REF, edited, SETTINGS, state, 1.0).image
    assert SETTINGS.engine_image_nvidia == image


def test_a_memory_survives_its_configmap() -> None:
    state = state_with("engine:0.32.0").judged(
        Verdict(template_hash="x", ok=False, reason="PreflightFailed", message="no", retry="1")
    )
    memory = Memory(revisions=state, tuner=TunerState(cap=7), basis={"MaxActiveSeqs": "16"})
    assert memory == recall(memory.manifest(REF), None)


def test_a_broken_memory_falls_back_on_the_deployment() -> None:
    state = state_with("engine:0.32.0")
    assert state.current is not None
    current = state.current
    stored = deployment(REF, current.template, spec_of(), 1, current.inputs)
    adopted = recall({"data": {"revisions.json": "{not json"}}, stored).revisions
    assert adopted.current is not None
    assert (current.hash, current.inputs_hash, current.image) == (
        adopted.current.hash,
        adopted.current.inputs_hash,
        adopted.current.image,
    )
    assert adopted.current == adopted.good


def test_a_deployment_that_is_not_ours_is_not_adopted() -> None:
    foreign = {"metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": []}}}}
    assert RevisionState() == recall(None, foreign).revisions


def test_passing_fields_are_not_worth_a_write() -> None:
    memory = Memory()
    counted = Memory(tuner=TunerState(agreeing_count=2, agreeing_at=5.0))
    assert not counted.worth_storing(memory)
    assert Memory(tuner=TunerState(last_change_at=5.0)).worth_storing(memory)


def test_verdicts_are_bounded_and_the_newest_counts() -> None:
    state = RevisionState()
    for number in range(REMEMBERED_VERDICTS + 5):
        state = state.judged(
            Verdict(template_hash=str(number), ok=True, reason="Passed", message="")
        )
    assert REMEMBERED_VERDICTS == len(state.verdicts)
    assert state.verdict("0", "") is None
    refused = Verdict(template_hash="14", ok=False, reason="PreflightFailed", message="", retry="a")
    state = state.judged(refused)
    assert refused == state.verdict("14", "a")
    assert state.verdict("14", "b") is None


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, False),
        ({"engine": engine_spec(maxNumSeqs=8, maxModelLen=512)}, False),
        ({"engine": engine_spec(version="0.32.0")}, False),
        ({"kvCache": {"dtype": "int8"}}, False),
        ({"replicas": 5, "slo": {"ttftMilliseconds": 100}}, False),
        ({"model": {"name": "other", "uri": "pvc://models/tiny-llama"}}, False),
        ({"model": {"name": "tiny", "uri": "pvc://models/other"}}, True),
        ({"engine": engine_spec(image="engine:2")}, True),
        ({"engine": engine_spec(weightQuantization="fp8")}, True),
        ({"engine": engine_spec(extraArgs=["--dtype=float32"])}, True),
        ({"engine": engine_spec(parallelism={"tensor": 2, "pipeline": 1})}, True),
    ],
)
def test_a_verdict_is_of_a_model_and_an_engine(changes: dict[str, Any], others: bool) -> None:
    first, second = (
        render_revision(REF, spec_of(**spec), Settings(), RevisionState(), 0.0)
        for spec in ({}, changes)
    )
    assert first.engines_hash
    assert (first.engines_hash != second.engines_hash) == others
    assert first.following(spec_of(), KVSettings()).engines_hash == first.engines_hash
    # Of an older operator, which kept none.
    known = first.model_copy(update={"engines_hash": ""}).following(spec_of(), KVSettings())
    assert known.engines_hash == first.engines_hash
