"""Tokens, keys and the words of prompts show up nowhere but where they are used."""

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvserving_operator.api_key import read_api_key
from kvserving_operator.kinds import Kind
from kvserving_operator.render.engine import resolve
from kvserving_operator.render.pod import pod_template
from kvserving_operator.render.preflight import preflight_pod
from kvserving_operator.render.probes import COMPLETION_SCRIPT
from kvserving_operator.session import Session
from kvserving_operator.settings import Settings
from kvserving_tuner.sources.base import EngineTarget
from operatorkit.specs import NAME, NAMESPACE, REF, engine_spec, serving, spec_of
from operatorkit.trials import POLICY, begin, put_policy, serve
from operatorkit.world import World

TOKEN, KEY = "canary-token-51c0", "canary-key-8e2d"
PROMPT = "canary prompt 90ab: the patient is called Erika Mustermann. "
CANARIES = (TOKEN, KEY, "canary prompt", "Erika Mustermann")
SPEC: dict[str, Any] = {
    "replicas": 2,
    "rollbackPolicyRef": {"name": "policy"},
    "apiKeyRef": {"name": "users"},
    "quality": {"probeSet": {"kind": "Secret", "name": "probes"}},
}


def put_secret(world: World, name: str, **data: str) -> None:
    world.cluster.objects[(Kind.Secret, NAMESPACE, name)] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


@pytest.fixture
async def filled(world: World) -> World:
    """A KVServing with a key, and a probe set of confidential prompts."""
    put_secret(world, "chat-token", token=TOKEN)
    put_secret(world, "users", **{"api-key": KEY})
    lines = (json.dumps({"prompt": f"{PROMPT * 20} {n}", "name": PROMPT[:30]}) for n in range(40))
    put_secret(world, "probes", **{"prompts.jsonl": "\n".join(lines)})
    put_policy(world)
    await begin(world, **SPEC)
    return world


def everything_said(world: World, log: str) -> str:
    """What others than the readers of Secrets can see."""
    stored = [found for (kind, _, _), found in world.cluster.objects.items() if kind != Kind.Secret]
    events = [[event.reason, event.message] for event in world.events]
    return json.dumps([stored, events], ensure_ascii=False, default=str) + log


QUOTING: dict[str, Callable[[str], httpx.Response]] = {
    "a refusal": lambda said: httpx.Response(
        422, json={"error": {"field": "prompt", "expected": "less", "got": said, "message": ""}}
    ),
    "a refusal in words": lambda said: httpx.Response(
        422, json={"error": {"field": "a", "message": f"cannot score {said}"}}
    ),
    "a bad request": lambda said: httpx.Response(400, json={"error": {"message": said}}),
    "a validation error": lambda said: httpx.Response(400, json={"detail": [{"input": said}]}),
    "a failure": lambda said: httpx.Response(500, json={"error": {"message": said[:90]}}),
    "a page": lambda said: httpx.Response(502, text=f"<html>{said}</html>"),
}


def listen(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("kvserving_operator", "kvserving_tuner", "kvserving.audit"):
        caplog.set_level(logging.DEBUG, logger=name)


def told(world: World, log: str, *more: str) -> list[str]:
    said = everything_said(world, log)
    return [canary for canary in (*CANARIES, *more) if canary in said]


async def test_a_trial_tells_nothing_confidential(
    filled: World, caplog: pytest.LogCaptureFixture
) -> None:
    listen(caplog)
    filled.put(**SPEC, kvCache={"dtype": "int8"})
    await serve(filled, 40)
    assert any(PROMPT[:20] in text for text in filled.engines.prompts), "prompts were asked"
    assert f"Bearer {TOKEN}" in filled.engines.tokens
    assert [] == told(filled, caplog.text)


@pytest.mark.parametrize("answer", QUOTING)
@pytest.mark.parametrize("path", ["/tokenize", "/kvserving/v1/probe"])
async def test_an_engine_that_quotes_is_not_repeated(
    filled: World, caplog: pytest.LogCaptureFixture, path: str, answer: str
) -> None:
    listen(caplog)
    asked = []

    def engines(request: httpx.Request) -> httpx.Response:
        if request.url.path != path:
            return filled.engines(request)
        asked.append(request)
        return QUOTING[answer](request.content.decode())

    filled.http = httpx.AsyncClient(transport=httpx.MockTransport(engines), trust_env=False)
    filled.new_controller()
    filled.put(**SPEC, kvCache={"dtype": "int8"})
    await serve(filled, 12)
    assert asked
    assert [] == told(filled, caplog.text, "101,102,103", "101, 102, 103")


async def test_a_faulty_secret_set_tells_no_words(
    filled: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    put_secret(filled, "probes", **{"prompts.jsonl": f'{{"prompt": 1, "{PROMPT}": 2}}'})
    filled.put(**SPEC, kvCache={"dtype": "int8"})
    await serve(filled, 10)
    assert "is no prompt" in everything_said(filled, caplog.text)
    assert [] == told(filled, caplog.text)


async def test_users_questions_bear_the_users_key(filled: World) -> None:
    put_policy(filled, quality={**POLICY["quality"], "probes": ["Needle"]})
    seen: list[tuple[str, str]] = []
    inner = filled.engines

    def engines(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, request.headers.get("Authorization", "")))
        return inner(request)

    filled.http = httpx.AsyncClient(transport=httpx.MockTransport(engines), trust_env=False)
    filled.new_controller()
    eviction = {"policy": "StreamingLLM", "windowTokens": 256}
    filled.put(**SPEC, kvCache={"eviction": eviction})
    await serve(filled, 40)
    asked = {(path, bearer) for path, bearer in seen if bearer}
    assert ("/v1/completions", f"Bearer {KEY}") in asked
    assert ("/kvserving/v1/runtime", f"Bearer {TOKEN}") in asked
    assert not [path for path, bearer in asked if KEY in bearer and path.startswith("/kvserving")]
    assert not [path for path, bearer in asked if TOKEN in bearer and "/kvserving" not in path]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "spec.apiKeyRef.name: Secret users does not exist in namespace team"),
        ({"other": "a"}, "spec.apiKeyRef.key: Secret users has no key api-key"),
        ({"api-key": ""}, "has no key api-key, or it is empty"),
        ({"api-key": "canary-key\n"}, "expected printable ASCII"),
        ({"api-key": "canary key\x1b"}, "expected printable ASCII"),
        ({"api-key": "canary-kéy"}, "expected printable ASCII"),
        ({"api-key": " canary"}, "expected printable ASCII"),
    ],
)
async def test_a_key_that_cannot_be_sent_is_told_and_not_shown(
    world: World, data: dict[str, str] | None, words: str
) -> None:
    if data is not None:
        put_secret(world, "users", **data)
    key, problem = await read_api_key(world.cluster, serving(apiKeyRef={"name": "users"}))
    assert key is None
    assert words in problem
    assert "canary" not in problem


async def test_without_the_secret_pods_are_left_as_they_are(world: World) -> None:
    world.put()
    await world.settle()
    before = sorted(world.engine_pods())
    world.put(apiKeyRef={"name": "users"})
    await world.settle()
    assert before == sorted(world.engine_pods())
    assert "Secret users does not exist" in world.condition("Progressing")["message"]
    put_secret(world, "users", **{"api-key": KEY})
    await world.settle()
    assert not set(before) & set(world.engine_pods())
    assert "Serving" == world.status["reason"]


def test_a_key_is_the_engines_alone() -> None:
    template = pod_template(
        REF, resolve(NAME, spec_of(apiKeyRef={"name": "users", "key": "k"}), Settings(), None)
    )
    (entry,) = (e for e in template["spec"]["containers"][0]["env"] if e["name"] == "VLLM_API_KEY")
    assert {"secretKeyRef": {"name": "users", "key": "k"}} == entry["valueFrom"]
    check = preflight_pod(REF, template, "2Gi", 60)
    assert "users" not in json.dumps(check)
    assert "chat-token" not in json.dumps(check)


def test_the_probe_of_a_stock_image_sends_the_key() -> None:
    spec = spec_of(engine=engine_spec(plugin="Disabled"), apiKeyRef={"name": "users"})
    template = pod_template(REF, resolve(NAME, spec, Settings(), None))
    command = template["spec"]["containers"][0]["startupProbe"]["exec"]["command"]
    assert COMPLETION_SCRIPT in command
    assert 'os.environ["VLLM_API_KEY"]' in COMPLETION_SCRIPT
    compile(COMPLETION_SCRIPT, "probe", "exec")


def test_credentials_have_no_place_in_a_repr() -> None:
    target = EngineTarget("a", "http://a", token=TOKEN, api_key=KEY)
    settings = Settings(metrics_token=TOKEN)
    fields = Session.__dataclass_fields__
    assert not fields["token"].repr
    assert not fields["api_key"].repr
    assert TOKEN not in repr(target) + repr(settings)
    assert KEY not in repr(target)
