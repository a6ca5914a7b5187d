"""The whole operator process, kopf and HTTP client included, against an emulated API server."""

import asyncio
import inspect
import json
import logging
from typing import Any

import aiohttp
import pytest
from kopf._cogs.clients import api as kopf_requests
from kopf._core.actions import loggers as kopf_loggers
from kubernetes.aio import client

from kvserving_operator.cluster import KubernetesCluster
from kvserving_operator.errors import ApiRejected, Conflict
from kvserving_operator.handlers import FINALIZER, RETRIED, retried_is_a_warning
from kvserving_operator.kinds import Kind
from operatorkit.emulator import (
    SERVING,
    ApplyingEmulator,
    checks,
    condition,
    exists,
    fill,
    finish_checks,
    operator_for,
    running,
    until,
)
from operatorkit.specs import NAME, NAMESPACE

DEPLOYMENT = ("apps/v1/deployments", NAMESPACE, NAME)


@pytest.fixture
def kmock_options() -> dict[str, Any]:
    return {"cls": ApplyingEmulator}


@pytest.fixture
def api(kmock: Any) -> Any:
    """An API server that knows our kinds and holds one KVServing."""
    fill(kmock)
    return kmock


async def answer_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


async def delete_serving(api: Any) -> None:
    path = Kind.KVServing.path(NAMESPACE, NAME)
    async with aiohttp.ClientSession(str(api.url)) as session, session.delete(path) as answer:
        assert answer.ok


async def test_from_a_resource_to_its_children_and_away_again(
    api: Any, unused_tcp_port: int
) -> None:
    operator = operator_for(api)
    url = f"http://127.0.0.1:{unused_tcp_port}/healthz"
    async with running(operator, liveness_endpoint=url):
        await until(lambda: checks(api), "a check pod")
        await until(lambda: condition(api, "Progressing"), "a status")
        finish_checks(api)
        await until(lambda: exists(api, DEPLOYMENT), "the Deployment")
        assert exists(api, ("v1/services", NAMESPACE, f"{NAME}-engines"))
        assert exists(api, ("v1/secrets", NAMESPACE, f"{NAME}-token"))
        assert [FINALIZER] == api.objects[SERVING].raw["metadata"]["finalizers"]
        annotations = api.objects[SERVING].raw["metadata"]["annotations"]
        assert "kvserving.dev/last-handled-configuration" in annotations
        assert not any("kopf.zalando.org" in key for key in annotations)
        await until(lambda: "RollingOut" == condition(api, "Progressing")["reason"], "rolling out")

        assert 200 == await answer_of(url)
        await delete_serving(api)
        await until(lambda: not exists(api, SERVING), "the finalizer is gone")
    assert not operator.lost


async def test_the_web_view_shows_what_is_looked_after(api: Any, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with running(operator_for(api, web_listen_port=unused_tcp_port)):
        await until(lambda: condition(api, "Progressing"), "a status")
        async with aiohttp.ClientSession(url) as session:
            async with session.get("/") as answer:
                assert f"{NAMESPACE}/{NAME}" in await answer.text()
            async with session.get(f"/servings/{NAMESPACE}/{NAME}") as answer:
                assert condition(api, "Progressing")["reason"] in await answer.text()


async def test_what_is_deleted_during_a_look_goes_as_soon_as_the_look_ends(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = operator_for(api)
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def slow_look(namespace: str, name: str) -> None:
        looking.set()
        await go_on.wait()

    async with running(operator):
        await until(lambda: condition(api, "Progressing"), "a status")
        monkeypatch.setattr(operator, "look", slow_look)
        await asyncio.wait_for(looking.wait(), 10)
        await delete_serving(api)
        await asyncio.sleep(1.0)
        assert exists(api, SERVING)
        go_on.set()
        await until(lambda: not exists(api, SERVING), "the finalizer is gone", seconds=20)


async def test_liveness_fails_when_looks_stop(api: Any, unused_tcp_port: int) -> None:
    operator = operator_for(api, liveness_age_seconds=1.0)
    url = f"http://127.0.0.1:{unused_tcp_port}/healthz"
    async with running(operator, liveness_endpoint=url):
        await until(lambda: condition(api, "Progressing"), "a status")
        assert operator.controller is not None
        async with operator.controller._sessions[(NAMESPACE, NAME)].lock:
            await asyncio.sleep(1.5)
            assert 500 == await answer_of(url)


async def test_a_second_operator_waits_and_takes_over(api: Any) -> None:
    first, second = (
        operator_for(api, identity="first", lease_seconds=10),
        operator_for(api, identity="second", lease_seconds=10),
    )
    async with running(first):
        await until(lambda: condition(api, "Progressing"), "a status")
        async with running(second):
            await asyncio.sleep(1.5)
            assert second.controller is None
            first.stop.set()
            await until(lambda: second.controller is not None, "the second operator acts")
            lease = api.objects[
                ("coordination.k8s.io/v1/leases", "kvserving-system", "kvserving-operator")
            ]
            assert "second" == lease.raw["spec"]["holderIdentity"]


async def test_an_operator_that_loses_the_lease_stops(api: Any) -> None:
    operator = operator_for(api, identity="first", lease_seconds=10)
    key = ("coordination.k8s.io/v1/leases", "kvserving-system", "kvserving-operator")
    async with running(operator) as task:
        await until(lambda: operator.controller is not None, "the operator acts")
        api.objects[key].patch({"spec": {"holderIdentity": "somebody-else"}})
        await asyncio.wait_for(asyncio.shield(task), 60)
    assert operator.lost
    assert "somebody-else" == api.objects[key].raw["spec"]["holderIdentity"]


async def test_answers_of_the_api_become_typed_errors(api: Any) -> None:
    configuration = client.Configuration(host=str(api.url).rstrip("/"))
    async with KubernetesCluster(client.ApiClient(configuration), 5.0) as cluster:
        assert await cluster.get(Kind.Service, NAMESPACE, "nothing") is None
        await cluster.delete(Kind.Service, NAMESPACE, "nothing")
        manifest = {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": NAMESPACE}, "data": {"k": "v"},
        }  # fmt: skip
        applied = await cluster.apply(manifest)
        assert {"k": "v"} == applied["data"]
        with pytest.raises(Conflict):
            await cluster.create(manifest)
        with pytest.raises(ApiRejected) as refusal:
            await cluster.replace({**manifest, "metadata": {"name": "b", "namespace": NAMESPACE}})
        assert 404 == refusal.value.status
        found = await cluster.list(Kind.ConfigMap, NAMESPACE, {})
        assert ["a"] == [each["metadata"]["name"] for each in found]
        await cluster.patch_labels(Kind.ConfigMap, NAMESPACE, "a", {"track": "candidate"})
        await cluster.patch_labels(Kind.ConfigMap, NAMESPACE, "gone", {"track": "candidate"})
        labelled = await cluster.get(Kind.ConfigMap, NAMESPACE, "a")
        assert labelled is not None
        assert ({"track": "candidate"}, {"k": "v"}) == (
            labelled["metadata"]["labels"],
            labelled["data"],
        )


async def test_a_gateway_in_the_spec_gets_a_route_over_the_api(api: Any) -> None:
    api.objects[SERVING].patch({"spec": {"routing": {"gatewayRef": {"name": "gw"}}}})
    key = ("gateway.networking.k8s.io/v1/httproutes", NAMESPACE, NAME)
    async with running(operator_for(api)):
        await until(lambda: exists(api, key), "the route")
        await until(lambda: condition(api, "Routed"), "what became of it")
        assert "RoutePending" == condition(api, "Routed")["reason"]
        answer = {
            "parentRef": {"name": "gw"},
            "controllerName": "example.com/gateway",
            "conditions": [{"type": "Accepted", "status": "True"}],
        }
        api.objects[key].patch({"status": {"parents": [answer]}})
        await until(
            lambda: condition(api, "Routed")["reason"] == "RouteAccepted", "the gateway's answer"
        )
        await delete_serving(api)


@pytest.mark.parametrize(
    ("message", "severity"),
    [
        (f"Request attempt #1/9 {RETRIED}: GET /api", "warn"),
        ("Request attempt #9/9 failed; escalating: GET /api", "error"),
    ],
)
def test_only_the_last_failed_attempt_of_a_call_is_an_error(message: str, severity: str) -> None:
    assert RETRIED in inspect.getsource(kopf_requests)
    record = logging.LogRecord("any", logging.ERROR, __file__, 1, message, None, None)
    assert retried_is_a_warning(record)
    line = kopf_loggers.ObjectJsonFormatter().format(record)
    assert severity == json.loads(line)["severity"]
