"""How long users keep a bad KV format once its quality is known to be bad, on a real cluster.

Two engines serve a load that their KV cache is too small for. `int2` is offered again and again,
under a policy without screening, so that it does reach users. Each row is one trial: seconds from
the probe whose result crosses the bound, as the operator's audit log has it, to the moment when
the last engine says in its own metrics that it is back at 16 bits or more; and what clients saw.
Needs a cluster with the operator and the models of the local cluster (`make up`):

    PYTHONPATH=hack python hack/testenv.py python benchmarks/rollback_e2e.py
"""

import argparse
import itertools
import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import client_options
import envelope
import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness import chart
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import MODELS_CLAIM
from harness.serving import engine_pods, wait_ready
from harness.trials import TRIAL

NAME, POLICY, NAMESPACE = "rolled-back", "unscreened", "rollback-benchmark"
BAD = "int2"
POLL_SECONDS = 0.1


def main() -> None:
    """Offer the bad format some times and write a row for each."""
    options = _options()
    rows = []
    with Kube() as kube:
        kube.create_namespace(chart.NAMESPACE)
        chart.install(kube.kubeconfig, chart.local_values())
        kube.create_namespace(NAMESPACE)
        for manifest in (MODELS_CLAIM, policy(), serving(options.dtype)):
            kube.apply(manifest, NAMESPACE)
        wait_ready(kube, NAME, NAMESPACE)
        load = ChatLoad(
            kube.service_url(NAME, NAMESPACE), "smollm2", options.clients, options.max_tokens
        )
        with (
            Readback(pod_urls(kube, NAME, NAMESPACE)) as readback,
            in_background(load, 7200, join_seconds=600),
        ):
            time.sleep(options.warm_seconds)
            for number in range(options.runs):
                rows.append({"run": number, **offer(kube, readback, load)})
                print(json.dumps(rows[-1]), flush=True)  # noqa: T201
        kube.run("delete", "namespace", NAMESPACE, "--wait=false")
    envelope.write(options.out, rows, clients=options.clients)


def offer(kube: Kube, readback: "Readback", load: ChatLoad) -> dict[str, Any]:
    """Edit the spec to the bad format, wait for the verdict, and edit it back."""
    before, known = len(load.outcomes), {t["metadata"]["name"] for t in trials(kube)}
    began = time.time()
    edit(kube, BAD)
    ended = wait_for(
        lambda: next(
            (
                trial
                for trial in trials(kube)
                if trial["metadata"]["name"] not in known
                and trial.get("status", {}).get("state") == "Finished"
            ),
            None,
        ),
        f"the trial of {BAD} ends",
        900,
    )
    status = ended["status"]
    line = audit(kube, ended["metadata"]["name"])
    shown = datetime.fromisoformat(line["evidence_at"]).timestamp()
    back = wait_for(lambda: readback.all_back(shown), "every engine is back", 60)
    edit(kube, "auto")
    wait_for(lambda: _rolled_back(kube) == "False", "the edit back is settled", 120)
    seen = load.outcomes[before:]
    evidence = {each["name"]: each for each in status["evidence"]}
    return {
        "format": BAD,
        "verdict": status["verdict"],
        "reason": status["reason"],
        "seconds_to_fallback": round(back - shown, 2),
        "seconds_from_edit": round(back - began, 1),
        "seconds_in_service": round(readback.in_service(began), 1),
        "prompts": {n: e["samples"] for n, e in evidence.items() if "Likelihood" in n},
        "drop_percent": {n: e["value"] for n, e in evidence.items() if "Likelihood" in n},
        "guards": {n: e["outcome"] for n, e in evidence.items() if "Likelihood" not in n},
        "requests": len(seen),
        "client_errors": sum(outcome.error is not None for outcome in seen),
    }


class Readback:
    """What engines say of their KV format in their own metrics, asked all the while."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._seen: list[tuple[float, tuple[str, ...]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "Readback":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def all_back(self, since: float) -> float | None:
        """When no engine had the bad format any more, for good; None while one has it."""
        later = [each for each in self._seen if each[0] >= since]
        with_it = [number for number, (_, dtypes) in enumerate(later) if BAD in dtypes]
        first = with_it[-1] + 1 if with_it else 0
        return later[first][0] if first < len(later) else None

    def in_service(self, since: float, dtype: str = BAD) -> float:
        """Seconds in which some engine served with a format."""
        pairs = itertools.pairwise([each for each in self._seen if each[0] >= since])
        return sum(later[0] - one[0] for one, later in pairs if dtype in one[1])

    def _poll(self) -> None:
        with httpx.Client(timeout=10) as client:
            while not self._stop.wait(POLL_SECONDS):
                dtypes = tuple(dtype_of(client, url) for url in self._urls)
                self._seen.append((time.time(), dtypes))


def dtype_of(client: httpx.Client, url: str) -> str:
    """KV format that an engine says it runs with."""
    text = client.get(f"{url}/metrics").text
    for family in text_string_to_metric_families(text):
        if family.name == "kvserving:kv_cache_info":
            return next(s.labels["dtype"] for s in family.samples if s.value == 1)
    return ""


def audit(kube: Kube, trial: str) -> Mapping[str, Any]:
    """Line of the operator's audit log in which a trial got its verdict."""
    log = kube.run("logs", "-n", chart.NAMESPACE, "deployment/kvserving-operator", "--tail=-1")
    for text in reversed(log.splitlines()):
        if f'"trial":"{trial}"' in text:
            line: dict[str, Any] = json.loads(text)
            if line.get("verdict") and line["state"] == "RollingBack":
                return line
    raise SystemExit(f"the audit log has no verdict of trial {trial}")


def trials(kube: Kube) -> list[dict[str, Any]]:
    """All trials in the namespace."""
    return kube.objects(TRIAL, NAMESPACE)


def edit(kube: Kube, dtype: str) -> None:
    """Edit the spec."""
    kube.patch(KVSERVING, NAME, NAMESPACE, {"spec": {"kvCache": {"dtype": dtype}}})


def _rolled_back(kube: Kube) -> str:
    conditions = (kube.get(KVSERVING, NAME, NAMESPACE) or {})["status"]["conditions"]
    return str(next(each["status"] for each in conditions if each["type"] == "RolledBack"))


def pod_urls(kube: Kube, name: str, namespace: str) -> list[str]:
    """A KVServing's engines by their pods' addresses."""
    pods = engine_pods(kube, name, namespace)
    return [f"http://{pod['status']['podIP']}:8000" for pod in pods]


def policy() -> dict[str, Any]:
    """No screening, and a rejected change may be tried again at once."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVRollbackPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "ab": {"steps": [50], "minRequests": 20, "minDurationSeconds": 60},
            "quality": {
                "maxDropPercent": 2,
                "screening": "Disabled",
                "probes": ["Likelihood"],
                # Engines that are this busy score a few prompts a minute.
                "minSamples": 4,
            },
            "memory": {"rejectForSeconds": 0},
        },
    }


def serving(dtype: str) -> dict[str, Any]:
    """Two engines of a trained model with room for some 1,400 tokens each."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"name": "smollm2", "uri": "pvc://models/SmolLM2-135M-Instruct"},
            "replicas": 2,
            "rollbackPolicyRef": {"name": POLICY},
            "engine": {
                "accelerator": "CPU",
                "maxModelLen": 1024,
                "maxNumSeqs": 16,
                "maxNumBatchedTokens": 1024,
                "blockSize": 32,
                "kvCacheMemory": "64Mi",
                "extraArgs": ["--enforce-eager", f"--dtype={dtype}"],
            },
            "tuning": {"mode": "Off"},
            "podTemplate": {
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                "resources": {
                    "requests": {"cpu": "300m", "memory": "2Gi"},
                    "limits": {"memory": "4Gi"},
                },
            },
        },
    }


def _options() -> argparse.Namespace:
    parser = client_options.parser(
        __doc__, "rollback_e2e.json", clients=8, dtype="float32", warm_seconds=30
    )
    parser.add_argument("--runs", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
