"""Envoy Gateway in the local cluster: installed through its chart, with one Gateway for tests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from harness.errors import CommandError
from harness.kube import ROOT, Kube, condition, wait_for

NAMESPACE = "envoy-gateway-system"
RELEASE = "eg"
CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
NAME = "gw"
PORT = 8888
GATEWAYS = "gateways.gateway.networking.k8s.io"
MANIFEST = Path(__file__).with_name("gateway.yaml")


def install(kube: Kube, timeout_seconds: int = 180) -> None:
    """Build what is missing, install the chart and a GatewayClass `eg`; nothing where it runs."""
    command = [sys.executable, str(ROOT / "hack" / "localcluster"), "gateway"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise CommandError(command, done.returncode, "Envoy Gateway could not be built or loaded")
    made: dict[str, str] = json.loads(done.stdout)
    kube.create_namespace(NAMESPACE)
    with helm.Config(kubeconfig_path=kube.kubeconfig, namespace=NAMESPACE) as config:
        if RELEASE not in {release["name"] for release in config.list()}:
            config.install(
                made["chart"], RELEASE, values(made["gateway_image"]), wait="watcher",
                timeout=timeout_seconds,
            )  # fmt: skip
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        if document["kind"] == "EnvoyProxy":
            deployment = document["spec"]["provider"]["kubernetes"]["envoyDeployment"]
            deployment["container"]["image"] = made["envoy_image"]
        kube.apply(document, NAMESPACE)


def values(image: str) -> dict[str, Any]:
    """Values of the chart: the shutdown manager beside each proxy is of the same image."""
    kubernetes = {"shutdownManager": {"image": image}}
    provider = {"type": "Kubernetes", "kubernetes": kubernetes}
    gateway = {"controllerName": CONTROLLER}
    return {"config": {"envoyGateway": {"gateway": gateway, "provider": provider}}}


def open_gateway(kube: Kube, namespace: str, timeout_seconds: float = 120) -> str:
    """Make a Gateway in a namespace, and give its URL from this machine."""
    listener = {"name": "http", "protocol": "HTTP", "port": PORT}
    kube.apply(
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": NAME},
            "spec": {"gatewayClassName": "eg", "listeners": [listener]},
        },
        namespace,
    )

    def programmed() -> bool:
        found = condition(kube.get(GATEWAYS, NAME, namespace), "Programmed")
        return found.get("status") == "True"

    wait_for(programmed, f"gateway {namespace}/{NAME} is programmed", timeout_seconds)
    owner = "gateway.envoyproxy.io/owning-gateway"
    selector = f"{owner}-name={NAME},{owner}-namespace={namespace}"
    (service,) = kube.objects("services", NAMESPACE, selector)
    return f"http://{service['spec']['clusterIP']}:{PORT}"


def close_gateway(kube: Kube, namespace: str) -> None:
    """Delete the Gateway of a namespace, and with it its proxy."""
    kube.run("delete", GATEWAYS, NAME, "-n", namespace, "--ignore-not-found", "--timeout=60s")
