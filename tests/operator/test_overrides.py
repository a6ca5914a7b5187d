"""What one KVServing wants otherwise than the policy that it names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kvserving_operator.api.base import ApiModel
from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.partial import merged, partial
from kvserving_operator.api.v1alpha1 import KVRollbackPolicySpec, KVServing, overridden
from kvserving_operator.api.v1alpha1 import parse_serving as parse
from kvserving_operator.api.v1alpha1.policy import PolicyOverrides
from operatorkit.trials import GUARDED, POLICY, only_trial, reach, ready, trials
from operatorkit.world import World


def serving(**overrides: Any) -> KVServing:
    return parse(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVServing",
            "metadata": {"name": "chat", "namespace": "team", "uid": "u"},
            "spec": {
                "model": {"uri": "pvc://weights"},
                "engine": {"accelerator": "CPU", "kvCacheMemory": "64Mi"},
                **GUARDED,
                "rollbackPolicy": overrides,
            },
        }
    )


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, ApiModel):
            found |= leaves(kind, (*path, name))
        else:
            found[*path, name] = info
    return found


OTHER: dict[tuple[str, ...], object] = {
    ("ab", "steps"): [7, 8],
    ("ab", "split_by"): "Request",
    ("ab", "single_replica"): "Refuse",
    ("ab", "on_stall"): "Rollback",
    ("ab", "approval"): "Manual",
    ("quality", "screening"): "Disabled",
    ("quality", "probes"): ["Needle"],
    ("guards", "disabled"): ["TTFT"],
    ("fallback", "kv_cache_dtype"): "bfloat16",
}
"""Of fields that are no numbers, something else than the default; numbers are 77."""


@pytest.mark.parametrize("path", leaves(KVRollbackPolicySpec), ids=".".join)
def test_each_field_of_a_policy_can_be_had_otherwise_and_nothing_else_changes(
    path: tuple[str, ...],
) -> None:
    section, field = path
    value = OTHER.get(path, 12 if "percent" in field else 77)
    camel = KVRollbackPolicySpec.model_fields[section].annotation.model_fields[field].alias  # type: ignore[union-attr]
    spec = serving(**{section: {camel: value}}).spec
    policy = KVRollbackPolicySpec()
    found = overridden(policy, spec.rollback_policy)
    changed = [
        each
        for each in leaves(KVRollbackPolicySpec)
        if getattr(getattr(found, each[0]), each[1]) != getattr(getattr(policy, each[0]), each[1])
    ]
    assert changed == [path]


def test_nothing_is_changed_by_nothing() -> None:
    policy = KVRollbackPolicySpec()
    assert overridden(policy, None) is policy
    assert overridden(policy, serving().spec.rollback_policy) == policy
    assert overridden(policy, serving(ab={}, quality={}).spec.rollback_policy) == policy


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"ab": {"steps": [50, 5]}}, "spec.rollbackPolicy.ab.steps"),
        ({"quality": {"maxDropPercent": 101}}, "spec.rollbackPolicy.quality.maxDropPercent"),
        ({"quality": {"maxDrop": 1}}, "spec.rollbackPolicy.quality.maxDrop"),
        ({"guards": {"disabled": ["Speed"]}}, "spec.rollbackPolicy.guards.disabled"),
    ],
)
def test_limits_are_those_of_the_policy(overrides: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        serving(**overrides)


def test_two_that_do_not_go_together_name_the_field() -> None:
    policy = KVRollbackPolicySpec.model_validate_json('{"quality": {"maxSamples": 40}}')
    with pytest.raises(SpecError, match=r"quality.minSamples: must be at most .*40.*, got 50"):
        overridden(policy, serving(quality={"minSamples": 50}).spec.rollback_policy)


plain = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(plain, plain)
def test_merging_keeps_what_is_above_and_all_that_it_does_not_name(below: Any, above: Any) -> None:
    found = merged(below, above)
    if not isinstance(above, dict) or not isinstance(below, dict):
        assert found == above
        return
    assert set(found) == set(below) | set(above)
    for key in found:
        if key in above and key in below:
            assert found[key] == merged(below[key], above[key])
        else:
            assert found[key] == above.get(key, below.get(key))


def test_a_mirror_has_no_defaults_at_any_depth() -> None:
    class Inner(ApiModel):
        number: int = 3

    class Outer(ApiModel):
        inner: Inner = Inner()

    mirror = partial(Outer, "Mirror")
    assert mirror().to_api() == {}
    assert mirror.model_validate({"inner": {}}).to_api() == {"inner": {}}
    assert PolicyOverrides().to_api() == {}


async def test_a_trial_is_pinned_to_the_policy_with_its_overrides(world: World) -> None:
    await ready(world)
    own = {"quality": {"maxDropPercent": 9}}
    world.put(replicas=2, **GUARDED, rollbackPolicy=own, kvCache={"dtype": "int8"})
    await reach(world, "Screening")
    (trial,) = trials(world).values()
    assert trial["spec"]["policy"]["quality"]["maxDropPercent"] == 9
    assert trial["spec"]["policy"]["ab"]["steps"] == POLICY["ab"]["steps"]
    assert only_trial(world)["state"] == "Screening"


async def test_overrides_that_do_not_fit_the_policy_block_and_say_why(world: World) -> None:
    await ready(world)
    own = {"quality": {"minSamples": 5000}}
    world.put(replicas=2, **GUARDED, rollbackPolicy=own, kvCache={"dtype": "int8"})
    await world.settle()
    gate = world.condition("QualityGate")
    assert "PolicyInvalid" == gate["reason"]
    assert "spec.rollbackPolicy together with KVRollbackPolicy policy" in gate["message"]
    assert "quality.minSamples" in gate["message"]
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Screening")
