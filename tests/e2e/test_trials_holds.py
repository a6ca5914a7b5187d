"""Where evidence stays away a trial holds: it says why, and neither promotes nor rolls back.

Engines are spoiled by a middleware of their own (faults.yaml), as a probe that fails or metrics of
another version would spoil them; Prometheus is taken away for real.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import chart, trials
from harness.kube import KVSERVING, Kube, condition, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_condition, wait_ready
from harness.trials import TRIAL, control, dtypes, wait_trial

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "held"
FOLDER = "e2e-trials-holds"
CHANGE = {"kvCacheDtype": "int8"}
STALL_SECONDS = 60
"""The least that a policy takes."""
FAULTS = (Path(__file__).parent / "faults.yaml").read_text()
PROMETHEUS = (Path(__file__).parent / "prometheus.yaml").read_text()
GPU = "nvidia.com/gpu"
NODE_PATH = "/status/capacity/nvidia.com~1gpu"


def policy(on_stall: str = "Hold", **ab: int) -> dict[str, Any]:
    """Give a policy whose trials would be over in half a minute if nothing held them."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "watchful"},
        "spec": {
            "ab": {
                "steps": [50], "minRequests": 5, "minDurationSeconds": 10,
                "stallTimeoutSeconds": STALL_SECONDS, "onStall": on_stall, **ab,
            },
            "quality": {
                "minSamples": 8, "maxDropPercent": 10, "probes": ["Likelihood"],
                "screening": "Disabled",
            },
            "guards": {
                "ttftMaxIncreasePercent": 1000,
                "tpotMaxIncreasePercent": 1000,
                "throughputMaxDropPercent": 100,
            },
        },
    }  # fmt: skip


class Spoiler:
    """Tells the engines of the volume what to fail."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    @contextmanager
    def spoiling(self, name: str, *lines: str) -> Iterator[None]:
        """Fail something while what is inside runs."""
        file = f"/spoiled/{FOLDER}/told/{name}"
        self.shell('printf "%s\\n" "$@"' + f" >{file}.new && mv {file}.new {file}", *lines)
        try:
            yield
        finally:
            self.shell(f"rm -f {file}")

    def shell(self, script: str, *args: str) -> None:
        """Run a script in the pod that has the volume."""
        command = ("sh", "-c", script, "sh", *args)
        self._kube.run("exec", "faults", "-n", self._namespace, "--", *command)


@pytest.fixture(scope="module")
def spoiler(kube: Kube, namespace: str) -> Iterator[Spoiler]:
    image = kube.run(
        "get", "deployment/kvserving-operator", "-n", chart.NAMESPACE,
        "-o", "jsonpath={.spec.template.spec.containers[0].image}",
    )  # fmt: skip
    kube.apply(FAULTS.replace("OPERATOR_IMAGE", image).replace("FOLDER", FOLDER), namespace)
    kube.run("wait", "--for=condition=Ready", "pod/faults", "-n", namespace, "--timeout=60s")
    spoiler = Spoiler(kube, namespace)
    yield spoiler
    # The volume is a folder of the node that outlives its claim.
    spoiler.shell(f"rm -rf /spoiled/{FOLDER}")


def spoiled_serving(name: str, **spec: Any) -> dict[str, Any]:
    """Give a KVServing whose engines fail what the spoiler says."""
    manifest = tiny_serving(name, **spec)
    manifest["spec"] |= {
        "model": {"name": "tiny", "uri": f"pvc://spoiled/{FOLDER}/tiny-llama"},
        "engine": tiny_engine(extraArgs=["--enforce-eager", "--middleware=faults.Faults"]),
    }
    manifest["spec"]["podTemplate"]["env"].append(
        {"name": "PYTHONPATH", "value": f"/models/{FOLDER}"}
    )
    return manifest


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str, spoiler: Spoiler) -> str:
    kube.apply(PROMETHEUS.replace("advised-engines", f"{NAME}-engines"), namespace)
    kube.apply(policy(), namespace)
    source = {
        "source": "Prometheus",
        "scrapeIntervalSeconds": 5,
        "prometheus": {"url": f"http://prometheus.{namespace}:9090"},
    }
    reference = {"name": "watchful"}
    kube.apply(
        spoiled_serving(NAME, replicas=2, rollbackPolicyRef=reference, monitoring=source), namespace
    )
    kube.run("rollout", "status", "deployment/prometheus", "-n", namespace)
    wait_ready(kube, NAME, namespace)
    wait_condition(kube, NAME, namespace, "MetricsAvailable", "True")
    return namespace


@contextmanager
def clients(url: str) -> Iterator[ChatLoad]:
    """Let people ask all the while; none of their requests may fail."""
    # Connections stay with their pod: of eight, each pod has some.
    load = ChatLoad(url, "tiny", clients=8, max_tokens=8, pause_seconds=2)
    with in_background(load, 600):
        yield load
    assert [] == load.failures


@pytest.fixture
def client(kube: Kube, serving: str) -> Iterator[ChatLoad]:
    with clients(kube.service_url(NAME, serving)) as load:
        yield load


class Tried:
    """A trial that a person has asked for."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self.name = name

    @property
    def status(self) -> Mapping[str, Any]:
        """Status of its KVTrial."""
        found = self._kube.get(TRIAL, self.name, self._namespace) or {}
        status: Mapping[str, Any] = found.get("status", {})
        return status

    def wait(self, what: str, look: Callable[[Mapping[str, Any]], bool], seconds: float) -> None:
        """Wait for something in its status."""
        seen: list[Mapping[str, Any]] = []

        def found() -> bool:
            seen[:] = [self.status]
            return look(seen[0])

        try:
            wait_for(found, f"trial {self.name}: {what}", seconds)
        except Exception as error:
            error.add_note(str(seen))
            raise

    def wait_note(self, *parts: str, seconds: float = 90) -> None:
        """Wait until its message has all of these parts."""
        self.wait(
            f"says {parts}", lambda s: all(part in s.get("message", "") for part in parts), seconds
        )

    def wait_state(self, state: str, seconds: float = 120) -> None:
        """Wait until it is in a state."""
        self.wait(f"is {state}", lambda status: state == status.get("state"), seconds)


@contextmanager
def tried(kube: Kube, namespace: str, name: str, **rule: Any) -> Iterator[Tried]:
    """A trial of int8, ended by a person where it has not ended by itself."""
    before = dtypes(kube, NAME, namespace)
    kube.apply(trials.manifest(name, NAME, CHANGE, policy(**rule)), namespace)
    trial = Tried(kube, namespace, name)
    yield trial
    if trial.status.get("state") != "Finished":
        control(kube, namespace, name, "RollBack")
        trial.wait_state("Finished")
    if trial.status["verdict"] == "Promoted":
        return
    wait_for(lambda: before == dtypes(kube, NAME, namespace), "engines run what they did", 60)


def holds(kube: Kube, namespace: str, trial: Tried, *parts: str, on_stall: str) -> None:
    """See a trial hold, its reason in its message and in the condition, until the policy acts."""
    trial.wait_note(*parts)
    wait_for(
        lambda: all(
            part in condition(kube.get(KVSERVING, NAME, namespace), "QualityGate")["message"]
            for part in parts
        ),
        f"condition QualityGate says {parts}",
        30,
    )
    assert "TrialRunning" == reason(kube, namespace, "QualityGate")
    assert trial.status["state"] == "Running"
    assert "verdict" not in trial.status
    assert "False" == condition(kube.get(KVSERVING, NAME, namespace), "RolledBack")["status"]
    began = time.monotonic()
    if on_stall == "Hold":
        trial.wait_note("no usable evidence for", *parts, seconds=STALL_SECONDS + 60)
        assert trial.status["state"] == "Running"
        assert "verdict" not in trial.status
        return
    trial.wait_state("Finished", STALL_SECONDS + 60)
    assert time.monotonic() - began > STALL_SECONDS / 2
    status = trial.status
    assert ("Inconclusive", "Stalled") == (status["verdict"], status["reason"]), status
    assert all(part in status["message"] for part in parts)
    wait_condition(kube, NAME, namespace, "QualityGate", "Unknown", "Inconclusive")


def reason(kube: Kube, namespace: str, kind: str) -> str:
    return str(condition(kube.get(KVSERVING, NAME, namespace), kind)["reason"])


def goes_on(trial: Tried) -> None:
    """See a trial go on to its end once nothing holds it any more."""
    trial.wait_state("Finished", 180)
    status = trial.status
    assert "Promoted" == status["verdict"], status


def spoiled_metrics(kind: str) -> tuple[str, str]:
    name = "vllm:kv_cache_usage_perc"
    if kind == "renamed":
        return f"^(# .* )?{name}", r"\1vllm:kv_usage_renamed"
    return rf"^({name}\S*) .*$", r"\1 NaN"


@pytest.mark.parametrize(
    ("fault", "says", "on_stall"),
    [("refuse", "the probe is out of order", "Hold"), ("hang", "probe", "Rollback")],
)
def test_a_probe_that_fails_holds(
    kube: Kube,
    serving: str,
    spoiler: Spoiler,
    client: ChatLoad,
    fault: str,
    says: str,
    on_stall: str,
) -> None:
    with (
        tried(kube, serving, f"probe-{fault}", on_stall=on_stall) as trial,
        spoiler.spoiling("Probe", fault),
    ):
        trial.wait_state("Running")
        holds(kube, serving, trial, says, on_stall=on_stall)


def test_without_requests_it_holds(kube: Kube, serving: str) -> None:
    with tried(kube, serving, "silence", on_stall="Hold") as trial:
        trial.wait_state("Running")
        holds(kube, serving, trial, "no request", on_stall="Hold")


def test_candidates_that_nobody_asks_hold_it(kube: Kube, serving: str) -> None:
    with tried(kube, serving, "idle", on_stall="Rollback") as trial:
        trial.wait_state("Running")
        wait_for(lambda: "int8" in dtypes(kube, NAME, serving), "one engine runs int8", 60)
        status = (kube.get(KVSERVING, NAME, serving) or {})["status"]
        (other,) = (p["name"] for p in status["pods"] if p["kvCacheDtype"] != "int8")
        pods = {pod["metadata"]["name"]: pod for pod in engine_pods(kube, NAME, serving)}
        with clients(f"http://{pods[other]['status']['podIP']}:8000") as load:
            holds(kube, serving, trial, "no request", on_stall="Rollback")
        assert load.outcomes


@pytest.mark.parametrize(
    ("kind", "because"), [("renamed", "MetricNameUnknown"), ("spoiled", "MetricsMissing")]
)
def test_metrics_that_cannot_be_read_hold_it(
    kube: Kube, serving: str, spoiler: Spoiler, client: ChatLoad, kind: str, because: str
) -> None:
    name = f"metrics-{kind}"
    with tried(kube, serving, name, on_stall="Rollback", minDurationSeconds=40) as trial:
        trial.wait_state("Running")
        with spoiler.spoiling("Metrics", *spoiled_metrics(kind)):
            wait_condition(kube, NAME, serving, "MetricsAvailable", "False", because)
            holds(kube, serving, trial, "kv_cache_usage", on_stall="Rollback")
    wait_condition(kube, NAME, serving, "MetricsAvailable", "True")


def test_new_weights_under_the_same_name_are_tried_anew(
    kube: Kube, serving: str, spoiler: Spoiler, client: ChatLoad
) -> None:
    folder = f"/spoiled/{FOLDER}"
    spoiler.shell(
        f"cp -r {folder}/tiny-llama {folder}/newer && python3 {folder}/weights.py {folder}/newer"
    )
    kube.apply(policy(minRequests=1000), serving)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"kvCache": {"dtype": "int4"}}})
    change = {"kvCacheDtype": "int4"}
    trial = wait_trial(kube, serving, change, state="Running")
    old = Tried(kube, serving, trial["metadata"]["name"])
    old.wait("keeps quality", lambda status: samples(status) >= 8, 120)

    # Old weights have shown all that is needed, and would pass with a few requests more.
    uri = f"pvc://spoiled/{FOLDER}/newer"
    kube.apply(policy(), serving)
    kube.patch(KVSERVING, NAME, serving, {"spec": {"model": {"uri": uri}}})
    old.wait_state("Finished", 240)
    assert ("Void", "Superseded") == (old.status["verdict"], old.status["reason"]), old.status

    def again() -> dict[str, Any] | None:
        found = trials.trials_of(kube, serving, change)
        return next((t for t in found if t["metadata"]["name"] != old.name), None)

    new = Tried(kube, serving, wait_for(again, "the change is tried anew", 240)["metadata"]["name"])
    goes_on(new)
    pods = engine_pods(kube, NAME, serving)
    assert all(f"{FOLDER}/newer" in str(pod["spec"]["containers"][0]["args"]) for pod in pods)
    # All that was measured was measured of new pods.
    assert new.status["startedAt"] > max(pod["status"]["startTime"] for pod in pods)
    assert samples(new.status) >= 8


def test_weights_that_change_where_they_lie_end_what_was_measured(
    kube: Kube, serving: str, spoiler: Spoiler, client: ChatLoad
) -> None:
    wait_ready(kube, NAME, serving)
    with tried(kube, serving, "reloaded", on_stall="Hold", minRequests=1000) as trial:
        trial.wait("keeps quality", lambda status: samples(status) >= 8, 180)
        folder = f"/spoiled/{FOLDER}"
        spoiler.shell(f"python3 {folder}/weights.py {folder}/tiny-llama {folder}/newer")
        first, second = (pod["metadata"]["name"] for pod in engine_pods(kube, NAME, serving))
        kube.run("delete", "pod", first, "-n", serving, "--wait=false")
        # One engine has loaded them, the other has not: what they do is not compared.
        holds(kube, serving, trial, "different weights", on_stall="Hold")
        kube.run("delete", "pod", second, "-n", serving, "--wait=false")
        trial.wait_state("Finished", 180)
        status = trial.status
        assert ("Void", "Superseded") == (status["verdict"], status["reason"]), status
        assert "other weights" in status["message"]
        wait_ready(kube, NAME, serving)


def samples(status: Mapping[str, Any]) -> int:
    """Pairs of the criterion that has the fewest; 0 where there is none yet."""
    served = [e for e in status.get("evidence", ()) if e["name"].startswith("Served")]
    return min((int(each["samples"]) for each in served), default=0)


def test_a_stopped_prometheus_holds_it_until_it_is_back(
    kube: Kube, serving: str, client: ChatLoad
) -> None:
    wait_ready(kube, NAME, serving)
    with tried(kube, serving, "blind", on_stall="Hold", minDurationSeconds=40) as trial:
        trial.wait_state("Running")
        kube.run("scale", "deployment/prometheus", "--replicas=0", "-n", serving)
        try:
            wait_condition(kube, NAME, serving, "MetricsAvailable", "False", "PrometheusError")
            holds(kube, serving, trial, "Prometheus", on_stall="Hold")
        finally:
            kube.run("scale", "deployment/prometheus", "--replicas=1", "-n", serving)
        wait_condition(kube, NAME, serving, "MetricsAvailable", "True")
        goes_on(trial)


@pytest.fixture
def single_gpu(kube: Kube) -> Iterator[None]:
    """A node that advertises one GPU as an extended resource."""
    name = kube.run("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    patch = f'[{{"op": "add", "path": "{NODE_PATH}", "value": "1"}}]'
    kube.run("patch", "node", name, "--subresource=status", "--type=json", "-p", patch)
    yield
    patch = f'[{{"op": "remove", "path": "{NODE_PATH}"}}]'
    kube.run("patch", "node", name, "--subresource=status", "--type=json", "-p", patch)


@pytest.fixture
def alone(kube: Kube, namespace: str, single_gpu: None) -> Iterator[str]:
    """A KVServing whose only engine takes the only GPU."""
    name = "alone"
    kube.apply(policy(), namespace)
    manifest = tiny_serving(name, rollbackPolicyRef={"name": "watchful"})
    manifest["spec"]["podTemplate"]["resources"]["limits"] = {GPU: "1"}
    kube.apply(manifest, namespace)
    wait_ready(kube, name, namespace)
    yield name
    kube.run("delete", KVSERVING, name, "-n", namespace, "--wait", "--timeout=120s")


def test_the_only_engine_on_the_only_gpu_is_tried_and_replaced(
    kube: Kube, namespace: str, alone: str
) -> None:
    (before,) = engine_pods(kube, alone, namespace)
    assert {GPU: "1"} == before["spec"]["containers"][0]["resources"]["limits"]

    def asked() -> str:
        found = trials.trials_of(kube, namespace, CHANGE)
        mine = (t for t in found if t["spec"]["servingRef"]["name"] == alone)
        return next((str(t["metadata"]["name"]) for t in mine), "")

    with clients(kube.service_url(alone, namespace)):
        kube.patch(KVSERVING, alone, namespace, {"spec": {"kvCache": {"dtype": "int8"}}})
        goes_on(Tried(kube, namespace, wait_for(asked, "it is tried", 120)))
    (after,) = engine_pods(kube, alone, namespace)
    assert before["metadata"]["uid"] == after["metadata"]["uid"]
    said = [e["message"] for e in kube.events(namespace, alone) if e["reason"] == "TrialStep"]
    assert all("the only engine takes it" in message for message in said), said
    assert said

    # Another engine does not fit beside it: the new one comes once the old one has gone.
    kube.patch(KVSERVING, alone, namespace, {"spec": {"engine": {"maxNumSeqs": 8}}})
    moving = wait_condition(kube, alone, namespace, "Progressing", "True")
    assert "no engine" in moving["message"], moving
    wait_ready(kube, alone, namespace)
    (replaced,) = engine_pods(kube, alone, namespace)
    assert after["metadata"]["uid"] != replaced["metadata"]["uid"]
    status = (kube.get(KVSERVING, alone, namespace) or {})["status"]
    assert "int8" == status["effective"]["kvCacheDtype"]
