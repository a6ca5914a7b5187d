"""Policies, KVTrials and looks that tests of trials share."""

import asyncio
from collections.abc import Mapping
from typing import Any

from kvserving_operator.api.v1alpha1 import RequestedBy
from kvserving_operator.kinds import Kind
from kvserving_operator.live import KVSettings
from kvserving_operator.trials.record import Record
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import Progress, State
from operatorkit.specs import NAME, NAMESPACE
from operatorkit.world import World

INT8 = KVSettings(kv_cache_dtype="int8")
POLICY: dict[str, Any] = {
    "ab": {"steps": [50, 100], "minRequests": 4, "minDurationSeconds": 20},
    "guards": {},
    "quality": {"minSamples": 5, "probes": ["Likelihood"]},
}
GUARDED = {"rollbackPolicyRef": {"name": "policy"}}


def record(
    *candidates: str, plan: Plan, state: State = State.RUNNING, step: int = 0, **more: Any
) -> Record:
    """A trial of `int8` that an edit asked for, with more of its progress."""
    return Record(
        name="trial",
        requested_by=RequestedBy.SPEC,
        asked=INT8,
        template="t",
        stable=KVSettings(),
        candidate=INT8,
        fallback=KVSettings(),
        plan=plan,
        reject_for_seconds=0,
        progress=Progress(state=state, step=step, candidates=candidates, **more),
    )


def put_policy(world: World, **changes: Any) -> None:
    """Apply the policy, with parts of its spec replaced."""
    spec = {**POLICY, **changes}
    world.cluster.objects[(Kind.KVRollbackPolicy, NAMESPACE, "policy")] = {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "policy", "namespace": NAMESPACE, "uid": "policy-uid"},
        "spec": spec,
    }


def put_trial(world: World, name: str = "by-hand", dtype: str = "int8", **spec: Any) -> None:
    """Apply a KVTrial as a person would."""
    key = (Kind.KVTrial, NAMESPACE, name)
    old = world.cluster.objects.get(key, {})
    world.cluster.objects[key] = {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVTrial",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "generation": 1},
        "spec": {
            "servingRef": {"name": NAME},
            "change": {"kvCacheDtype": dtype},
            "policy": POLICY,
            **spec,
        },
        "status": old.get("status", {}),
    }


def put_probes(world: World, text: str) -> None:
    """Apply a ConfigMap with a probe set."""
    world.cluster.objects[(Kind.ConfigMap, NAMESPACE, "probes")] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "probes", "namespace": NAMESPACE, "uid": "probes-uid"},
        "data": {"prompts.jsonl": text},
    }


def trials(world: World) -> dict[str, dict[str, Any]]:
    """KVTrials by name."""
    return world.cluster.of(Kind.KVTrial)


def only_trial(world: World) -> dict[str, Any]:
    """Status of the only trial."""
    (found,) = trials(world).values()
    status: dict[str, Any] = found.get("status", {})
    return status


def evidence(world: World) -> Mapping[str, Mapping[str, Any]]:
    """Evidence of the only trial by name."""
    return {each["name"]: each for each in only_trial(world).get("evidence", ())}


async def serve(world: World, looks: int = 1, finishes: int = 2, turns: int = 8) -> None:
    """Looks with users' requests, and time for probes in between."""
    for _ in range(looks):
        world.engines.finished += finishes
        await world.tick()
        for _ in range(turns):
            await asyncio.sleep(0)


async def reach(world: World, state: str, looks: int = 40, turns: int = 8) -> None:
    """Look until the only trial is in a state."""
    for _ in range(looks):
        await serve(world, 1, turns=turns)
        if trials(world) and only_trial(world).get("state") == state:
            return
    raise AssertionError(f"not {state}: {trials(world)}")


async def ready(world: World, replicas: int = 2, **spec: Any) -> None:
    """A KVServing under the policy, whose engines answer."""
    put_policy(world)
    await begin(world, replicas=replicas, **GUARDED, **spec)


async def begin(world: World, **spec: Any) -> None:
    """Let engines come up with what the spec asks for, and name its policy then.

    They would start in 16 bits under a policy, and what they are asked for would be tried.
    """
    if "kvCache" in spec:
        world.put(**{name: value for name, value in spec.items() if name not in GUARDED})
        await world.settle()
    world.put(**spec)
    await world.settle()
