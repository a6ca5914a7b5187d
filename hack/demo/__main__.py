"""`make demo`: serve a real model on a cluster, load it, watch the tuner, and compare."""

import argparse
import asyncio
import secrets
import sys
from typing import Any

import yaml
from rich.console import Console

from demo.show import Show
from demo.summary import table, traded
from harness import chart
from harness.errors import HarnessError
from harness.kube import KUBECTL, KVSERVING, ROOT, Kube
from harness.manifests import MODELS_CLAIM
from harness.serving import complete, wait_ready
from kvserving_tuner.settings import Slo

MANIFEST = ROOT / "examples/01-quickstart/kvserving.yaml"
NAMESPACE = "demo"
KEY_OBJECT = "chat-key"


WHY = (
    "Why it acts all the same: a preempted request is computed again from its first token. So many "
    "clients are too many for this cache under any cap; a larger cache, a quantized KV format or "
    "another replica is what shortens the wait for the first token."
)


def main() -> int:
    """Run the demo; give the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--phase-seconds", type=float, default=45, help="length of each measured phase"
    )
    parser.add_argument(
        "--with-key", action="store_true", help="let nobody in without an API key from a Secret"
    )
    arguments = parser.parse_args()
    api_key = f"sk-{secrets.token_hex(24)}" if arguments.with_key else ""
    console = Console()
    try:
        with Kube() as kube:
            _run(kube, console, arguments.phase_seconds, api_key)
    except HarnessError as error:
        console.print(f"[bold red]The demo stopped:[/] {error}")
        return 1
    return 0


def _run(kube: Kube, console: Console, phase_seconds: float, api_key: str) -> None:
    manifest: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    if api_key:
        manifest["spec"]["apiKeyRef"] = {"name": KEY_OBJECT}
    name, model = manifest["metadata"]["name"], manifest["spec"]["model"]["name"]

    console.rule("Install the operator with its Helm chart")
    kube.create_namespace(chart.NAMESPACE)
    chart.install(kube.kubeconfig, chart.local_values())
    console.print(kube.run("get", "deployment", "-n", chart.NAMESPACE).rstrip(), soft_wrap=True)

    console.rule(f"kubectl apply -f {MANIFEST.relative_to(ROOT)}")
    kube.create_namespace(NAMESPACE)
    kube.apply(MODELS_CLAIM, NAMESPACE)
    # A demo that was stopped half-way left its settings behind: begin from the manifest.
    removed = kube.run(
        "delete",
        KVSERVING,
        name,
        "-n",
        NAMESPACE,
        "--ignore-not-found",
        "--wait",
        timeout_seconds=180,
    )
    if removed:
        console.print(f"removed what an earlier run left: {removed.rstrip()}", soft_wrap=True)
    if api_key:
        metadata = {"name": KEY_OBJECT}
        data = {"api-key": api_key}
        kube.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data},
            NAMESPACE,
        )
    console.print(kube.apply(manifest, NAMESPACE).rstrip(), soft_wrap=True)
    with console.status("The engine loads the model …"):
        wait_ready(kube, name, NAMESPACE)
    url = kube.service_url(name, NAMESPACE)
    answer = complete(url, model, "The capital of France is", max_tokens=8, api_key=api_key)
    console.print(kube.run("get", "kvs", "-n", NAMESPACE).rstrip(), soft_wrap=True)
    console.print(f'"The capital of France is" … [bold]{answer.strip()}[/]')

    console.rule("Chat load; the KV cache is too small for it")
    spec = manifest["spec"]
    slo = Slo(ttft_ms=spec["slo"]["ttftMilliseconds"], tpot_ms=spec["slo"]["tpotMilliseconds"])
    clients = spec["engine"]["maxNumSeqs"]
    show = Show(kube, console, name, NAMESPACE, model, clients, slo, api_key)
    result = asyncio.run(show.run(phase_seconds))
    console.print()
    console.print(
        table(result.before, result.after, result.cap_before, result.cap_after, result.lost)
    )
    console.print(traded(result.before, result.after), highlight=False)
    console.print(WHY, highlight=False)
    _look_around(console, kube, name, model, bool(api_key))
    if result.lost:
        msg = f"{result.lost} requests failed; the first: {result.first_error}"
        raise HarnessError(msg)


def _look_around(console: Console, kube: Kube, name: str, model: str, keyed: bool) -> None:
    key = (
        f'-H "Authorization: Bearer $(kubectl get secret {KEY_OBJECT} -n {NAMESPACE} '
        "-o jsonpath='{.data.api-key}' | base64 -d)\" "
        if keyed
        else ""
    )
    console.rule("Look around")
    console.print(
        f"export KUBECONFIG={kube.kubeconfig} PATH={KUBECTL.parent}:$PATH\n"
        f"kubectl get kvs -n {NAMESPACE}\n"
        f"kubectl describe kvs {name} -n {NAMESPACE}      # conditions, last decision, Events\n"
        f"kubectl logs -n {chart.NAMESPACE} deployment/kvserving-operator   # audit lines in JSON\n"
        f"kubectl port-forward -n {NAMESPACE} service/{name} 8000   # then, in another shell:\n"
        "curl -s localhost:8000/v1/completions -H 'Content-Type: application/json' "
        f"{key}"
        f'-d \'{{"model": "{model}", "prompt": "Hello", "max_tokens": 8}}\'\n'
        f"kubectl edit kvs {name} -n {NAMESPACE}   # try spec.tuning.mode: Recommend\n"
        f"kubectl delete kvs {name} -n {NAMESPACE}   # its pods and Services go with it\n"
        "make down                                  # takes the cluster away; caches stay\n"
        "examples/01-quickstart/README.md and docs/operations.md say more",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
