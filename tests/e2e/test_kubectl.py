"""Each command of the kubectl plugin against a real cluster, run as its user runs it."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import trials
from harness.kube import KUBECTL, KVSERVING, Kube
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import wait_condition, wait_ready
from harness.trials import TRIAL, wait_trial

pytestmark = pytest.mark.cluster
NAME = "seen"
CANARY = "hf_thisTokenMustNeverLeave0123456789"
CHANGE = {"kvCacheDtype": "int8"}
POLICY: dict[str, Any] = {
    "apiVersion": "kvserving.dev/v1alpha1",
    "kind": "KVRollbackPolicy",
    "metadata": {"name": "patient"},
    "spec": {
        "ab": {"steps": [50], "approval": "Manual", "minDurationSeconds": 600},
        "quality": {"probes": ["Likelihood"], "minSamples": 4000},
    },
}


def manifest() -> dict[str, Any]:
    made = tiny_serving(NAME, tuning={"mode": "Recommend"})
    made["spec"]["podTemplate"]["env"].append({"name": "MY_OWN", "value": CANARY})
    return made


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(POLICY, namespace)
    kube.apply(manifest(), namespace)
    wait_ready(kube, NAME, namespace)
    # The tuner has looked at it.
    wait_condition(kube, NAME, namespace, "MetricsAvailable", "True")
    return namespace


class Plugin:
    """`kubectl kvserving` in a namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        path = f"{KUBECTL.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"KUBECONFIG": kube.kubeconfig, "PATH": path}
        self.namespace = namespace

    def __call__(self, *args: str, stdin: str | None = None, status: int = 0) -> str:
        """What it prints, on both of its outputs."""
        command = [str(KUBECTL), "kvserving", *args, "-n", self.namespace]
        done = subprocess.run(
            command,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            env=self.environment,
            check=False,
        )
        # Shown with a failure.
        sys.stdout.write(f"$ kubectl kvserving {' '.join(args)}\n{done.stdout}")
        assert status == done.returncode, done.stdout
        return done.stdout


@pytest.fixture
def plugin(kube: Kube, serving: str) -> Plugin:
    return Plugin(kube, serving)


def test_the_fleet_and_one_service(plugin: Plugin) -> None:
    fleet = plugin("status")
    assert "REASON" in fleet
    assert NAME in fleet
    one = plugin("status", NAME)
    for word in ("MetricsAvailable", "pvc://models/tiny-llama", "Engines"):
        assert word in one
    document = json.loads(plugin("status", NAME, "-o", "json"))
    assert NAME == document["serving"]["metadata"]["name"]
    assert [] == document["trials"]
    assert NAME in plugin("status", "--watch", "--turns", "2", "--interval", "0.1")


def test_why_and_since_when(plugin: Plugin) -> None:
    assert "Found:" in plugin("explain", NAME)
    assert "TrialMade" not in plugin("history", NAME)
    whats = {entry["what"] for entry in yaml.safe_load(plugin("history", NAME, "-o", "yaml"))}
    assert whats
    assert "no trials" in plugin("trials", "--serving", NAME)


def test_engines_are_read_through_the_proxy(plugin: Plugin) -> None:
    (engine,) = json.loads(plugin("top", NAME, "--interval", "2", "-o", "json"))["engines"]
    assert 0 <= engine["kvUsage"] <= 1
    assert 0 == engine["waiting"]
    assert "KV use" in plugin("top", NAME, "--interval", "1")


def test_a_manifest_is_checked_and_planned(plugin: Plugin) -> None:
    good = yaml.safe_dump(manifest())
    assert "1 valid, none faulty" in plugin("validate", "-", stdin=good)
    assert f"{NAME}: nothing changes" in plugin("plan", "-", stdin=good)
    bad = manifest()
    bad["spec"]["engine"] = tiny_engine(maxNumBatchedTokens=8)
    told = plugin("validate", "-", stdin=yaml.safe_dump(bad), status=1)
    assert "spec.engine.maxNumBatchedTokens: must be at least" in told
    edited = manifest()
    edited["spec"]["engine"] = tiny_engine(maxNumSeqs=8)
    (answer,) = json.loads(plugin("plan", "-o", "json", "-", stdin=yaml.safe_dump(edited)))
    assert [("spec.engine.maxNumSeqs", "Restart")] == [
        (effect["field"], effect["effect"]) for effect in answer["effects"]
    ]


def test_pause_and_resume(kube: Kube, plugin: Plugin) -> None:
    def mode() -> str:
        found = kube.get(KVSERVING, NAME, plugin.namespace)
        assert found is not None
        return str(found["spec"]["tuning"]["mode"])

    assert "nothing was changed" in plugin("pause", NAME, "--dry-run")
    assert "nobody to ask" in plugin("pause", NAME, status=2)
    assert "Recommend" == mode()
    plugin("pause", "--all", "--yes")
    assert "Off" == mode()
    wait_condition(kube, NAME, plugin.namespace, "TuningActive", "False", "TuningOff")
    plugin("resume", NAME, "--yes")
    assert "Recommend" == mode()


@pytest.fixture
def trial(kube: Kube, serving: str) -> Iterator[str]:
    """A trial that goes on until somebody ends it."""
    kube.apply(trials.manifest("tried", NAME, CHANGE, POLICY), serving)
    wait_trial(kube, serving, CHANGE, state="Screening")
    yield "tried"
    kube.run("delete", TRIAL, "tried", "-n", serving, "--wait", "--timeout=60s")


def test_a_trial_is_seen_paused_approved_and_ended(kube: Kube, plugin: Plugin, trial: str) -> None:
    assert "Screening" in plugin("trials")
    assert "KVCacheDType auto -> int8" in plugin("trials", trial)
    assert "TrialMade" in plugin("history", NAME)
    assert f"Trial {trial}" in plugin("explain", NAME)
    plugin("pause", NAME, "--yes")
    wait_trial(kube, plugin.namespace, CHANGE, state="Paused")
    plugin("resume", NAME, "--yes")
    wait_trial(kube, plugin.namespace, CHANGE, state="Screening")
    assert "has not passed yet" in plugin("promote", NAME, "--dry-run")
    plugin("promote", NAME, "--yes")
    plugin("rollback", NAME, "--yes")
    ended = wait_trial(kube, plugin.namespace, CHANGE, state="Finished")["status"]
    assert ("RolledBack", "AskedFor") == (ended["verdict"], ended["reason"])
    assert "nothing to take back" in plugin("rollback", NAME, status=2)


def test_a_bundle_has_what_helps_and_no_secret(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    plugin("support-bundle", NAME, "--file", str(path))
    with tarfile.open(path) as archive:
        files = {
            name.partition("/")[2]: (archive.extractfile(name) or pytest.fail(name)).read().decode()
            for name in archive.getnames()
        }
    assert [] == [name for name, text in files.items() if CANARY in text]
    where = f"namespaces/{plugin.namespace}"
    assert f"{where}/kvservings/{NAME}.yaml" in files
    assert any(name.startswith(f"{where}/logs/{NAME}") and text for name, text in files.items())
    assert any("vllm:kv_cache_usage_perc" in text for text in files.values())
    assert any("kvserving_operator_ticks_total" in text for text in files.values())
    assert any("kvserving.dev/audit/v1" in text for text in files.values())
    assert "forbidden" not in files["missing.txt"]


def test_kubectl_completes_commands_and_names(plugin: Plugin) -> None:
    def completed(*words: str) -> list[str]:
        done = subprocess.run(
            [str(KUBECTL), "__complete", "kvserving", *words],
            capture_output=True, text=True, timeout=120, env=plugin.environment, check=True,
        )  # fmt: skip
        return done.stdout.split()

    assert "status" in completed("sta")
    assert NAME in completed("status", "-n", plugin.namespace, "")


def test_errors_say_what_is_missing(plugin: Plugin, tmp_path: Path) -> None:
    told = plugin("status", "sen", status=1)
    assert f"did you mean {NAME}" in told
    told = plugin("status", "--as", "nobody", status=1)
    assert "the verb list on kvservings.kvserving.dev" in told
    told = plugin("pause", NAME, "--yes", "--as", "nobody", status=1)
    assert "the verb get on kvservings.kvserving.dev" in told
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: "
        "{cluster: a, user: a}}], users: [{name: a}], clusters: [{name: a, cluster: "
        "{server: 'https://127.0.0.1:9'}}]}"
    )
    assert "no connection" in plugin("status", "--kubeconfig", str(nowhere), status=1)


@pytest.fixture
def bound(kube: Kube, serving: str) -> None:
    """Users `viewer` and `editor`, who have the roles of every cluster in this namespace."""
    for user, role in (("viewer", "view"), ("editor", "edit")):
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        kube.apply(binding, serving)


def test_roles_of_every_cluster_are_enough(plugin: Plugin, bound: None) -> None:
    for command in (["status"], ["explain", NAME], ["history", NAME], ["trials"]):
        plugin(*command, "--as", "viewer")
    assert "engines cannot be read" in plugin("top", NAME, "--as", "viewer")
    told = plugin("pause", NAME, "--yes", "--as", "viewer", status=1)
    assert "the verb patch on kvservings.kvserving.dev" in told
    assert "KV use" in plugin("top", NAME, "--interval", "1", "--as", "editor")
    assert "nothing was changed" in plugin("pause", NAME, "--dry-run", "--as", "editor")
