"""What becomes of each KV format that is offered to engines whose KV cache requests queue for.

Two engines serve a trained model to more clients than their KV cache has room for. `int2` is
offered with screening; `int8` and `k8v4` where a gain in goodput is required; `int4` under a bound
of 2 % and under one of 4 %. Goodput counts requests whose first token came within a target that 16
bits miss for most of them; how long it takes them is measured first. A row has the verdict, what
the trial measured, and what clients saw.
Needs a cluster with the operator and the models of the local cluster (`make up`):

    PYTHONPATH=hack python hack/testenv.py python benchmarks/trials_e2e.py
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import client_options
import envelope
import rollback_e2e
from rollback_e2e import Readback, pod_urls

from harness import chart, trials
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import MODELS_CLAIM
from harness.serving import wait_ready

NAME, NAMESPACE = "offered", "trials-benchmark"
ENGINE = {"maxModelLen": 512, "maxNumBatchedTokens": 512, "kvCacheMemory": "14Mi"}
"""Room for some 600 tokens in 16 bits, which are three of the load's requests."""
TPOT_MILLISECONDS = 1000


@dataclass(frozen=True)
class Case:
    """A format, the bound of its policy in percent, and whether it has to bring a gain."""

    name: str
    dtype: str
    bound: int = 2
    gain: bool = False


CASES = (
    Case("int2 screened", "int2"),
    Case("int8 for gain", "int8", gain=True),
    Case("k8v4 for gain", "k8v4", gain=True),
    Case("int4 at 2 %", "int4", bound=2),
    Case("int4 at 4 %", "int4", bound=4),
)


def main() -> None:
    """Offer each format once and write a row for each."""
    options = _options()
    rows = []
    with Kube() as kube:
        kube.create_namespace(chart.NAMESPACE)
        chart.install(kube.kubeconfig, chart.local_values())
        kube.create_namespace(NAMESPACE)
        for manifest in (MODELS_CLAIM, serving(options.dtype, options.ttft_milliseconds)):
            kube.apply(manifest, NAMESPACE)
        wait_ready(kube, NAME, NAMESPACE)
        url = kube.service_url(NAME, NAMESPACE)
        load = ChatLoad(url, "smollm2", options.clients, options.max_tokens, keep_alive=False)
        readback = Readback(pod_urls(kube, NAME, NAMESPACE))
        with readback, in_background(load, 14400, join_seconds=600):
            time.sleep(options.warm_seconds)
            median = statistics.median(waits(load, options.warm_seconds))
            for case in CASES:
                if options.cases and case.name not in options.cases:
                    continue
                rows.append(offer(kube, case, readback, load, options.timeout_seconds))
                print(json.dumps(rows[-1]), flush=True)  # noqa: T201
                envelope.write(
                    options.out, rows, clients=options.clients,
                    ttft_milliseconds_target=options.ttft_milliseconds,
                    ttft_milliseconds_median_before=round(1000 * median),
                )  # fmt: skip
        kube.run("delete", "namespace", NAMESPACE, "--wait=false")


def waits(load: ChatLoad, seconds: float) -> list[float]:
    """Seconds to the first token of requests of the last half of so many seconds."""
    since = time.monotonic() - seconds / 2
    return [
        outcome.first_token - outcome.started
        for outcome in load.outcomes
        if outcome.first_token and outcome.first_token > since
    ]


def offer(
    kube: Kube, case: Case, readback: Readback, load: ChatLoad, timeout_seconds: float
) -> dict[str, Any]:
    """Try a format, and go back to 16 bits."""
    name = case.name.replace(" ", "-").replace("%", "percent")
    change = {"kvCacheDtype": case.dtype}
    trial = trials.manifest(name, NAME, change, policy(case.bound))
    if case.gain:
        trial["spec"]["requiredGain"] = "Faster"
    before, began = len(load.outcomes), time.time()
    kube.apply(trial, NAMESPACE)
    status = wait_for(
        lambda: _finished(kube, name), f"trial {name} ends", timeout_seconds, every_seconds=2
    )
    took = time.time() - began
    in_service = readback.in_service(began, case.dtype)
    back_to_16_bits(kube)
    seen = load.outcomes[before:]
    return {
        "case": case.name,
        "format": case.dtype,
        "max_drop_percent": case.bound,
        "gain_required": case.gain,
        "verdict": status["verdict"],
        "reason": status["reason"],
        "message": status["message"],
        "seconds": round(took),
        "seconds_in_service": round(in_service, 1),
        "evidence": [
            {
                key: each.get(key)
                for key in ("name", "outcome", "value", "lower", "upper", "threshold", "samples")
            }
            for each in status.get("evidence", ())
        ],
        "requests": len(seen),
        "client_errors": sum(outcome.error is not None for outcome in seen),
    }


def back_to_16_bits(kube: Kube) -> None:
    """Edit the field, which ends what was promoted; the way back to 16 bits needs no trial."""
    spec = (kube.get(KVSERVING, NAME, NAMESPACE) or {})["spec"]
    other = {"auto": "bfloat16"}.get(spec.get("kvCache", {}).get("dtype", "auto"), "auto")
    kube.patch(KVSERVING, NAME, NAMESPACE, {"spec": {"kvCache": {"dtype": other}}})
    bits = {"bfloat16", "float32"}
    wait_for(
        lambda: set(trials.dtypes(kube, NAME, NAMESPACE)) <= bits, "engines are in 16 bits", 180
    )


def _finished(kube: Kube, name: str) -> dict[str, Any] | None:
    status: dict[str, Any] = (kube.get(trials.TRIAL, name, NAMESPACE) or {}).get("status", {})
    return status if status.get("state") == "Finished" else None


def policy(bound: int) -> dict[str, Any]:
    """One step of half of the engines, judged by likelihoods and guards.

    More sequences at once make longer steps: within its target, TPOT may double.
    """
    return {
        "spec": {
            "ab": {"steps": [50], "minRequests": 20, "minDurationSeconds": 60},
            "quality": {"maxDropPercent": bound, "probes": ["Likelihood"], "minSamples": 20},
            "guards": {"tpotMaxIncreasePercent": 100},
        }
    }


def serving(dtype: str, ttft_milliseconds: int) -> dict[str, Any]:
    """The engines of the rollback benchmark, with room for a quarter of their clients' requests."""
    manifest = rollback_e2e.serving(dtype)
    manifest["metadata"]["name"] = NAME
    del manifest["spec"]["rollbackPolicyRef"]
    manifest["spec"]["engine"] |= ENGINE
    manifest["spec"]["slo"] = {
        "ttftMilliseconds": ttft_milliseconds,
        "tpotMilliseconds": TPOT_MILLISECONDS,
    }
    return manifest


def _options() -> argparse.Namespace:
    parser = client_options.parser(
        __doc__, "trials_e2e.json", clients=24, dtype="bfloat16", warm_seconds=120
    )
    parser.add_argument("--ttft-milliseconds", type=int, default=2500, help="the target")
    parser.add_argument("--cases", nargs="*", help="names of cases; all of them if left out")
    parser.add_argument("--timeout-seconds", type=float, default=3600)
    return parser.parse_args()


if __name__ == "__main__":
    main()
