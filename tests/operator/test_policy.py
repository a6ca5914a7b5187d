"""From a KVRollbackPolicy to a trial's plan: every field of the policy counts."""

from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import parse_policy
from kvserving_operator.live import KVSettings
from kvserving_operator.trials.policy import fallback_of, plan_of
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.plan import Guard, OnStall, Plan

INT8 = KVSettings(kv_cache_dtype="int8")
DEFAULTS = {
    Guard.TTFT: 10, Guard.TPOT: 10, Guard.ERRORS: 0.1, Guard.PREEMPTIONS: 50, Guard.THROUGHPUT: 1,
}  # fmt: skip


def plan(settings: KVSettings = INT8, floors: Any = None, **spec: Any) -> Plan:
    policy = parse_policy(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVRollbackPolicy",
            "metadata": {"name": "policy", "namespace": "team", "uid": "u"},
            "spec": spec,
        }
    )
    return plan_of(policy.spec, settings, floors or {}, None, Slo())


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ({"ab": {"steps": [1, 2]}}, "steps", (1, 2)),
        ({"ab": {"minRequests": 7}}, "min_requests", 7),
        ({"ab": {"minDurationSeconds": 8}}, "min_seconds", 8),
        ({"ab": {"stallTimeoutSeconds": 90}}, "stall_seconds", 90),
        ({"ab": {"onStall": "Rollback"}}, "on_stall", OnStall.ROLLBACK),
        ({"ab": {"approval": "Manual"}}, "manual", True),
        ({"ab": {"singleReplica": "Refuse"}}, "single_replica", False),
        ({"quality": {"maxDropPercent": 4}}, "max_drop_percent", 4),
        ({"quality": {"falseRollbackPercent": 5}}, "false_rollback", 0.05),
        ({"quality": {"minSamples": 9}}, "min_samples", 9),
        ({"quality": {"maxSamples": 99}}, "max_samples", 99),
        ({"quality": {"screening": "Disabled"}}, "screened", False),
        ({"quality": {"probes": ["Needle"]}}, "tasks", (Probe.NEEDLE,)),
        ({"quality": {"probes": ["Needle"]}}, "likelihood", False),
    ],
)
def test_every_field_of_a_policy_counts(spec: dict[str, Any], field: str, value: object) -> None:
    assert getattr(plan(), field) != value
    assert getattr(plan(**spec), field) == value


@pytest.mark.parametrize(
    ("field", "guard", "percent"),
    [
        ("ttftMaxIncreasePercent", Guard.TTFT, 3),
        ("tpotMaxIncreasePercent", Guard.TPOT, 3),
        ("errorRateMaxIncreaseBasisPoints", Guard.ERRORS, 0.03),
        ("preemptionRateMaxIncreasePercent", Guard.PREEMPTIONS, 3),
        ("throughputMaxDropPercent", Guard.THROUGHPUT, 3),
    ],
)
def test_every_guard_has_its_bound_unless_it_is_disabled(
    field: str, guard: Guard, percent: float
) -> None:
    assert plan().guards == DEFAULTS
    assert plan(guards={field: 3}).guards == DEFAULTS | {guard: percent}
    # The API server puts a default in the place of null, so that a null is not off.
    assert plan(guards={field: None}).guards == DEFAULTS
    off = plan(guards={field: 3, "disabled": [guard.value]})
    assert off.guards == {each: at for each, at in DEFAULTS.items() if each is not guard}
    assert not off.guarding & {guard, f"{guard}Target"}


def test_a_policy_can_have_no_guard_at_all() -> None:
    assert plan(guards={"disabled": [each.value for each in Guard]}).guards == {}


@pytest.mark.parametrize("field", ["throughputMaxDropPercent", "errorRateMaxIncreaseBasisPoints"])
def test_a_loss_of_everything_is_no_bound(field: str) -> None:
    everything = 100 if "Percent" in field else 10_000
    assert len(plan(guards={field: everything}).guards) == len(DEFAULTS) - 1


def test_floors_are_asked_whatever_the_policy_lists() -> None:
    floors = {Probe.RECALL: 80.0}
    found = plan(floors=floors, quality={"probes": ["Likelihood"]})
    assert (found.tasks, found.floors) == ((Probe.RECALL,), floors)


@pytest.mark.parametrize("drop", [99, 100])
def test_a_drop_of_everything_asks_no_tasks(drop: int) -> None:
    assert bool(plan(quality={"maxDropPercent": drop}).tasks) == (drop < 100)


def test_likelihoods_say_nothing_of_eviction_alone() -> None:
    evicting = KVSettings(eviction={"policy": "StreamingLLM", "window_tokens": 512})
    assert not plan(evicting).likelihood
    assert not plan(evicting).screened
    both = evicting.model_copy(update={"kv_cache_dtype": "int8"})
    assert plan(both).likelihood


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_the_fallback_is_the_policys(dtype: str) -> None:
    policy = parse_policy(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVRollbackPolicy",
            "metadata": {"name": "policy", "namespace": "team", "uid": "u"},
            "spec": {"fallback": {"kvCacheDtype": dtype}},
        }
    )
    assert fallback_of(policy.spec) == KVSettings(kv_cache_dtype=dtype)
