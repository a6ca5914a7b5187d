"""The chart's rules against every call that the operator makes: none is missing, none is idle."""

import base64
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from kvserving_operator.acceptance import Acceptance
from kvserving_operator.errors import OperatorError
from kvserving_operator.kinds import Kind
from kvserving_operator.lease import LeaseGuard, LeaseSettings
from kvserving_operator.settings import Settings
from operatorkit.emulator import (
    ApplyingEmulator,
    checks,
    condition,
    fill,
    operator_for,
    running,
    until,
)
from operatorkit.gateway import ROUTING, Proxy
from operatorkit.rights import GuardedCluster, Right, rights_in
from operatorkit.specs import NAMESPACE, engine_spec
from operatorkit.trials import POLICY, put_policy, serve
from operatorkit.world import World

CHART = Path(__file__).parents[2] / "charts" / "kvserving"
VALUES: dict[str, dict[str, Any]] = {
    "cluster-wide": {"gateway": {"enabled": True}},
    "namespaced": {"gateway": {"enabled": True}, "watchNamespaces": [NAMESPACE]},
}
KOPF = {
    Right("kvserving.dev", plural, verb)
    for plural in ("kvservings", "kvrollbackpolicies", "kvtrials")
    for verb in ("list", "watch")
} | {
    Right("kvserving.dev", "kvservings", "patch"),
    Right("", "events", "create"),
    *(Right("", plural, verb) for plural in ("pods", "services") for verb in ("list", "watch")),
    *(Right("apps", "deployments", verb) for verb in ("list", "watch")),
}
"""What kopf itself asks for; no code of ours does."""


def shipped(values: dict[str, Any]) -> list[Right]:
    """Rights of the operator's account: its own roles, and not those for people."""
    chart = helm.Chart.load(str(CHART))
    texts = chart.render(values, name="kvserving", namespace="kvserving-system")
    chart.close()
    return [
        right
        for path, text in texts.items()
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
        and manifest["kind"] in ("ClusterRole", "Role")
        and manifest["metadata"]["name"] in ("kvserving-operator", "kvserving-operator-lease")
        for right in rights_in(manifest["rules"])
    ]


SHIPPED = {name: shipped(values) for name, values in VALUES.items()}


async def life(settings: Settings, granted: Collection[Right] | None) -> tuple[World, set[Right]]:
    """Everything that may happen to a KVServing, by an operator with these rights.

    Gives the world as it ended and what was refused; what the operator could not do is left out.
    """
    world = World(settings)
    guarded = GuardedCluster(world.cluster, granted)
    world.api = guarded
    world.new_controller()
    with suppress(OperatorError, AssertionError, KeyError, ValueError):
        await _life(world, guarded)
    await world.http.aclose()
    asked.update(guarded.asked)
    return world, guarded.refused


asked: set[Right] = set()
"""By every life so far."""


async def _life(world: World, api: GuardedCluster) -> None:
    lease = LeaseGuard(api, LeaseSettings("system", "operator", "one", 15), monotonic=world.clock)
    await lease._try_hold()
    await lease._try_hold()
    if lease.held:
        await lease.release()
    Proxy(world.cluster)
    put_policy(world, ab={"steps": [25], "minRequests": 1, "minDurationSeconds": 0})
    body = world.cluster.objects[(Kind.KVRollbackPolicy, NAMESPACE, "policy")]
    body["metadata"]["resourceVersion"] = "1"
    acceptance = Acceptance(api, world.clock)
    await acceptance.policy(body)
    _put(world, Kind.PersistentVolumeClaim, "compiled", {})
    lines = (json.dumps({"prompt": f"Of {n} the sky is blue. " * 40}) for n in range(40))
    text = base64.b64encode("\n".join(lines).encode()).decode()
    _put(world, Kind.Secret, "probes", {"data": {"prompts.jsonl": text}})
    for number in range(11):
        _put(world, Kind.KVTrial, f"old-{number:02}", _ended(f"2026-01-{number + 1:02}"))
    spec: dict[str, Any] = {
        "replicas": 2,
        "rollbackPolicyRef": {"name": "policy"},
        "routing": ROUTING | {"sessionHeader": "x-user"},
        "quality": {"probeSet": {"kind": "Secret", "name": "probes", "key": "prompts.jsonl"}},
        "engine": engine_spec(compileCache={"claimName": "compiled"}),
    }
    world.put(**spec)
    await world.settle()
    if api.refused:
        return
    world.put(**spec, kvCache={"dtype": "int8"})
    for _ in range(100):
        await serve(world)
        # What it was to be refused it has been: the rest of the life would tell nothing.
        if api.refused or "Promoted" in str(world.cluster.of(Kind.KVTrial)):
            break
    world.controller.touch(NAMESPACE, "chat")
    await serve(world, 2)
    # A trial of another image has pods of its own, and leaves nothing behind.
    new = engine_spec(image="registry.example/engine:new", compileCache={"claimName": "compiled"})
    world.put(**{**spec, "engine": new}, kvCache={"dtype": "int8"})
    began = False
    for _ in range(150):
        await serve(world)
        world.finish_check(code=0)
        world.roll()
        for pod in world.engine_pods().values():
            world.come_up(pod)
        apart = "chat-candidate" in world.cluster.of(Kind.Deployment)
        if api.refused or (began and not apart):
            break
        began = began or apart
    # Without a gateway from here on, and another trial that waits for a KVServing.
    world.put(**{**spec, "routing": None}, kvCache={"dtype": "int8"})
    await serve(world, 2)


def _put(world: World, kind: Kind, name: str, more: dict[str, Any]) -> None:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "generation": 1}
    world.cluster.objects[(kind, NAMESPACE, name)] = {
        "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **more,
    }  # fmt: skip


def _ended(day: str) -> dict[str, Any]:
    return {
        "spec": {
            "servingRef": {"name": "chat"},
            "change": {"kvCacheDtype": "int4"},
            "policy": POLICY,
            "requestedBy": "Spec",
        },
        "status": {"state": "Finished", "verdict": "RolledBack", "finishedAt": f"{day}T00:00:00Z"},
    }


@pytest.fixture
def kmock_options() -> dict[str, Any]:
    return {"cls": ApplyingEmulator}


_by_the_process: set[Right] = set()


@pytest.fixture
async def by_the_process(kmock: Any) -> set[Right]:
    """What a whole process asks for, kopf included; one run for all tests."""
    if not _by_the_process:
        fill(kmock)
        ApplyingEmulator.asked.clear()
        async with running(operator_for(kmock)):
            await until(lambda: checks(kmock), "a check pod")
            await until(lambda: condition(kmock, "Progressing"), "a status")
            await until(lambda: ApplyingEmulator.asked >= KOPF, "every watch and an Event")
        _by_the_process.update(ApplyingEmulator.asked)
    return _by_the_process


async def test_the_whole_process_needs_no_more_than_the_rules(by_the_process: set[Right]) -> None:
    for name, rights in SHIPPED.items():
        assert not by_the_process - set(rights), name


@pytest.mark.parametrize("name", VALUES)
async def test_with_the_rules_nothing_is_refused(settings: Settings, name: str) -> None:
    world, refused = await life(settings, SHIPPED[name])
    assert set() == refused
    assert "Serving" == world.status["reason"]
    assert set() == set(SHIPPED[name]) - asked - KOPF, "rules that nothing uses"


@pytest.mark.parametrize("name", VALUES)
def test_no_right_is_given_twice(name: str) -> None:
    assert len(set(SHIPPED[name])) == len(SHIPPED[name])


@pytest.mark.parametrize("missing", sorted(set(SHIPPED["cluster-wide"]) - KOPF), ids=str)
async def test_without_a_right_the_operator_is_refused(settings: Settings, missing: Right) -> None:
    _, refused = await life(settings, set(SHIPPED["cluster-wide"]) - {missing})
    assert missing in refused


@pytest.mark.parametrize("needed", sorted(KOPF), ids=str)
async def test_kopf_asks_for_it(by_the_process: set[Right], needed: Right) -> None:
    assert needed in by_the_process
