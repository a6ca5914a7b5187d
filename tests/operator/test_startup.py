"""Which settings decide about answers, and how their change is told."""

from typing import Any

import pytest

from kvserving_operator.live import asked
from kvserving_operator.memory import recall
from kvserving_operator.render.children import deployment
from kvserving_operator.revisions import RevisionState, render_revision
from kvserving_operator.settings import Settings
from kvserving_operator.startup import SHOWN_CHARACTERS, contents, described, differing
from operatorkit.specs import IMAGE, REF, engine_spec, spec_of

SETTINGS = Settings()


def found(image: str = IMAGE, **spec: Any) -> dict[str, str]:
    return contents(spec_of(**spec), image)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": {"name": "tiny", "uri": "pvc://models/other"}}, "model.uri"),
        ({"engine": engine_spec(extraArgs=["--seed=7"])}, "engine.extraArgs"),
        ({"engine": engine_spec(weightQuantization="awq")}, "engine.weightQuantization"),
        ({"podTemplate": {"env": [{"name": "A", "value": "b"}]}}, "podTemplate.env"),
    ],
)
def test_a_field_that_differs_is_named(spec: dict[str, Any], field: str) -> None:
    before, after = found(), found(**spec)
    assert differing(before, after, plain=True) == (field,)
    assert differing(after, before, plain=True) == (field,)
    assert field in described(before, after, (field,))


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": engine_spec(maxNumSeqs=12)},
        {"replicas": 7},
        {"kvCache": {"dtype": "int8"}},
        {"podTemplate": {"resources": {"requests": {"cpu": "1"}}}},
        {"slo": {"ttftMilliseconds": 100}},
    ],
)
def test_what_computes_the_same_does_not_differ(spec: dict[str, Any]) -> None:
    assert found() == found(**spec)


@pytest.mark.parametrize("plain", [True, False])
def test_blocks_count_where_a_cache_has_scales_in_them(plain: bool) -> None:
    after = found(engine=engine_spec(blockSize=64))
    assert bool(differing(found(), after, plain=plain)) is not plain


def test_clients_that_ask_for_another_name_cannot_be_tried() -> None:
    after = found("new", model={"name": "other", "uri": "pvc://models/other"})
    assert differing(found(), after, plain=True) == ()


def test_variables_are_told_without_their_values_and_long_flags_in_part() -> None:
    after = found(
        engine=engine_spec(extraArgs=[f"--flag-{n}=value" for n in range(60)]),
        podTemplate={"env": [{"name": "TOKEN", "value": "hidden-text"}]},
    )
    fields = differing(found(), after, plain=True)
    told = described(found(), after, fields)
    assert "hidden-text" not in told
    assert "hidden-text" not in str(after)
    assert len(told) < 2 * SHOWN_CHARACTERS + 100


def test_they_outlive_a_lost_memory() -> None:
    spec = spec_of(engine=engine_spec(extraArgs=["--seed=7"]))
    revision = render_revision(REF, spec, SETTINGS, RevisionState(), 0.0)
    stored = deployment(REF, revision.template, spec, 1, revision.inputs)
    adopted = recall(None, stored).revisions.current
    assert adopted is not None
    assert adopted.contents == revision.contents
    stored["metadata"]["annotations"]["kvserving.dev/contents"] = "[edited by hand"
    adopted = recall(None, stored).revisions.current
    assert adopted is not None
    assert adopted.contents is None


def test_a_template_of_an_operator_that_did_not_keep_them_gets_them() -> None:
    spec, other = spec_of(), spec_of(kvCache={"dtype": "int8"})
    full = render_revision(REF, spec, SETTINGS, RevisionState(), 0.0)
    old = full.model_copy(update={"contents": None})
    assert old.following(other, asked(other)).contents == full.contents
    assert old.following(spec_of(engine=engine_spec(maxNumSeqs=3)), asked(spec)).contents is None
