"""A trial's share of the requests through a real gateway, with real engines.

In `make test-full`: Envoy Gateway is built the first time, which takes ten minutes and more.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import gateway, trials
from harness.kube import KVSERVING, Kube, wait_for
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import complete, engine_pods, wait_condition, wait_ready
from harness.trials import control
from kvserving_operator.render.names import ENGINE_PORT

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "routed"
HEADER = "x-user-id"
STEPS = (5, 25, 50)
LIGHT_REQUESTS = 6000
CLIENTS = 16
STREAMS = 40
STREAM_SECONDS = 20
STREAM_TOKENS = 7000


def policy() -> dict[str, Any]:
    """Give a policy whose steps are long enough to be paused in."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "quick"},
        "spec": {
            "ab": {"steps": list(STEPS), "minRequests": 1, "minDurationSeconds": 15},
            "guards": {"ttftMaxIncreasePercent": 1000, "tpotMaxIncreasePercent": 1000},
            "quality": {"minSamples": 8, "maxDropPercent": 10},
        },
    }


@pytest.fixture(scope="module")
def url(kube: Kube, namespace: str) -> Iterator[str]:
    gateway.install(kube)
    yield gateway.open_gateway(kube, namespace)
    gateway.close_gateway(kube, namespace)


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str, url: str) -> str:
    kube.apply(policy(), namespace)
    manifest = tiny_serving(
        NAME,
        replicas=2,
        # Room for streams of more than 20 s, and for as many as two engines may hold at once.
        engine=tiny_engine(maxModelLen=8192, kvCacheMemory="256Mi", maxNumSeqs=32),
        rollbackPolicyRef={"name": "quick"},
        routing={"gatewayRef": {"name": gateway.NAME}},
    )
    kube.apply(manifest, namespace)
    wait_ready(kube, NAME, namespace)
    wait_condition(kube, NAME, namespace, "Routed", "True", "RouteAccepted")
    wait_for(lambda: _answers(url), "the gateway leads to an engine", 60)
    return namespace


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def start_trial(kube: Kube, namespace: str, name: str) -> None:
    kube.apply(trials.manifest(name, NAME, {"kvCacheDtype": "int8"}, policy()), namespace)


def go_on(kube: Kube, namespace: str, url: str, trial: str, weight: int) -> None:
    """Let a trial go on to its next step, which takes answers of its candidates, or end it."""
    if weight == STEPS[-1]:
        control(kube, namespace, trial, "RollBack")
        return
    control(kube, namespace, trial, "Run")
    for _ in range(100):
        complete(url, "tiny", max_tokens=1)


def traffic(kube: Kube, namespace: str) -> Mapping[str, Any]:
    """Give the KVServing's status of its traffic."""
    status = (kube.get(KVSERVING, NAME, namespace) or {})["status"]
    found: Mapping[str, Any] = status["traffic"]
    return found


def wait_weight(kube: Kube, namespace: str, weight: int) -> None:
    wait_for(
        lambda: traffic(kube, namespace)["candidateWeightPercent"] == weight,
        f"candidates get {weight} %",
        300,
    )


def candidates(kube: Kube, namespace: str) -> set[str]:
    """Give the addresses of pods on the candidates' track."""
    return {
        pod["status"]["podIP"]
        for pod in engine_pods(kube, NAME, namespace)
        if pod["metadata"]["labels"]["kvserving.dev/track"] == "candidate"
    }


def served(kube: Kube, namespace: str) -> Counter[str]:
    """Give the light requests that each engine has answered, by address, as it counts them."""
    counts: Counter[str] = Counter()
    for pod in engine_pods(kube, NAME, namespace):
        address = pod["status"]["podIP"]
        text = httpx.get(f"http://{address}:{ENGINE_PORT}/metrics", timeout=30).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                light = sample.labels.get("handler") == "/v1/models"
                if sample.name == "http_requests_total" and light:
                    counts[address] += int(sample.value)
    return counts


def ask_lightly(url: str, count: int) -> list[int]:
    """Send light requests over a few connections; give every status that was no 200."""

    async def client(share: int, faults: list[int]) -> None:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            for _ in range(share):
                answer = await http.get(f"{url}/v1/models")
                if answer.status_code != 200:
                    faults.append(answer.status_code)

    async def all_clients() -> list[int]:
        faults: list[int] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client(count // CLIENTS, faults))
        return faults

    return asyncio.run(all_clients())


class Streams:
    """Long answers that follow each other all the while; each must come to its end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = Event()
        self.long = 0
        self.faults: list[str] = []

    def run(self) -> None:
        """Stream in one connection until told to stop."""
        body = {
            "model": "tiny", "prompt": "Once", "max_tokens": STREAM_TOKENS, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        while not self._stopping.is_set():
            started, last = time.monotonic(), ""
            try:
                with httpx.stream(
                    "POST", f"{self._url}/v1/completions", json=body, timeout=120, trust_env=False
                ) as answer:
                    for line in answer.iter_lines():
                        last = line or last
            except httpx.HTTPError as error:
                last = repr(error)
            if last != "data: [DONE]":
                self.faults.append(last[:200])
            self.long += time.monotonic() - started > STREAM_SECONDS

    @contextmanager
    def in_background(self, count: int) -> Iterator[None]:
        """Keep so many streams going; what is under way at the end comes to its end."""
        threads = [Thread(target=self.run) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(timeout=600)


def test_weights_are_kept_and_no_stream_ends_early(kube: Kube, serving: str, url: str) -> None:
    streams = Streams(url)
    with streams.in_background(8):
        start_trial(kube, serving, "weights")
        for weight in STEPS:
            wait_weight(kube, serving, weight)
            control(kube, serving, "weights", "Pause")
            before, arm = served(kube, serving), candidates(kube, serving)
            assert 1 == len(arm)
            assert [] == ask_lightly(url, LIGHT_REQUESTS)
            new = served(kube, serving) - before
            share = 100 * sum(new[address] for address in arm) / new.total()
            print(f"weight {weight} %: {share:.2f} % of {new.total()} requests")  # noqa: T201
            assert new.total() >= 0.99 * LIGHT_REQUESTS
            assert abs(share - weight) <= 2
            go_on(kube, serving, url, "weights", weight)
        wait_weight(kube, serving, 0)
        wait_for(lambda: not candidates(kube, serving), "pods are back in one arm", 60)
        wait_for(lambda: streams.long >= STREAMS, f"{STREAMS} long streams", 900)
    print(f"{streams.long} streams of more than {STREAM_SECONDS} s")  # noqa: T201
    assert [] == streams.faults
    said = [event["message"] for event in kube.events(serving, NAME)]
    assert any("candidates get 50 % of the requests, 25 % before" in each for each in said)


def arms_of(url: str, users: range) -> dict[int, set[str]]:
    """Ask three times as each user, over new connections; give the arms that answered."""
    found: dict[int, set[str]] = {}
    for _ in range(3):
        with httpx.Client(timeout=30, trust_env=False) as http:
            for user in users:
                answer = http.get(f"{url}/v1/models", headers={HEADER: f"user-{user}"})
                answer.raise_for_status()
                found.setdefault(user, set()).add(answer.headers["kvserving-track"])
    return found


def test_sessions_stay_on_their_side(kube: Kube, serving: str, url: str) -> None:
    users = range(400)
    routing = {"gatewayRef": {"name": gateway.NAME}, "sessionHeader": HEADER}
    kube.patch(KVSERVING, NAME, serving, {"spec": {"routing": routing}})
    wait_for(lambda: traffic(kube, serving)["sessions"] == "Kept", "sessions are kept", 60)
    # A proxy serves by the former policy until the new clusters are warm.
    time.sleep(20)
    start_trial(kube, serving, "sessions")
    before: set[int] = set()
    for weight in STEPS:
        wait_weight(kube, serving, weight)
        control(kube, serving, "sessions", "Pause")
        arms = arms_of(url, users)
        assert [] == [user for user, seen in arms.items() if len(seen) != 1]
        on_trial = {user for user, seen in arms.items() if seen == {"candidate"}}
        print(f"weight {weight} %: {len(on_trial)} of {len(users)} sessions")  # noqa: T201
        assert abs(100 * len(on_trial) / len(users) - weight) <= 6
        # A larger share takes users over and sends none back.
        assert before <= on_trial
        before = on_trial
        go_on(kube, serving, url, "sessions", weight)
    wait_weight(kube, serving, 0)
    assert {"stable"} == set().union(*arms_of(url, users).values())
