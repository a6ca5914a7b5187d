"""The engine's pod template: what a roll-out is about."""

from collections.abc import Mapping
from typing import Any

from kvserving_operator.hashing import content_hash
from kvserving_operator.render.args import engine_args
from kvserving_operator.render.drain import DRAIN_FILE, drain_command, grace_seconds
from kvserving_operator.render.engine import Engine
from kvserving_operator.render.names import (
    API_KEY_VARIABLE,
    ENGINE_CONTAINER,
    ENGINE_PORT,
    REVISION_LABEL,
    SETTINGS_GATE,
    STABLE,
    TOKEN_VARIABLE,
    TRACK_LABEL,
    ServingRef,
)
from kvserving_operator.render.overrides import apply_overrides
from kvserving_operator.render.probes import probes
from kvserving_operator.render.security import container_security, pod_security
from kvserving_operator.render.volumes import cache_folder, volume_mounts, volumes

GPU_RESOURCE = "nvidia.com/gpu"
LEAST_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
"""Keeps an engine for which the user asked nothing out of the class of pods that get what is left
of the CPU and are evicted first; what it really needs depends on the model."""

KEEP_ALIVE_SECONDS = 620
"""Longer than clients and load balancers keep an idle connection (Google's: 600 s). A server that
closes first, as vLLM does after 5 s, loses the request that is just being sent on it."""


def pod_template(ref: ServingRef, engine: Engine) -> dict[str, Any]:
    """Pod template with its own hash as a label, by which its pods are told from another's."""
    template = apply_overrides(_template(ref, engine), engine.spec.pod_template)
    template["metadata"]["labels"][REVISION_LABEL] = content_hash(template)
    return template


def template_hash(template: Mapping[str, Any]) -> str:
    """Hash that a template carries."""
    return str(template["metadata"]["labels"][REVISION_LABEL])


def engine_environment(engine: Engine) -> list[dict[str, Any]]:
    """Environment that engine and check pod share."""
    folder = cache_folder(engine)
    values = {
        "HOME": "/tmp",  # noqa: S108
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
        "VLLM_CACHE_ROOT": f"{folder}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "HF_HOME": "/cache/huggingface",
    }
    if not engine.downloads:
        values["HF_HUB_OFFLINE"] = "1"
    if engine.plugin:
        values["VLLM_PLUGINS"] = "kvserving,kvserving_http"
        values["KVSERVING_DRAIN_FILE"] = DRAIN_FILE
    return [{"name": name, "value": value} for name, value in values.items()]


def _template(ref: ServingRef, engine: Engine) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "serviceAccountName": ref.name,
        "automountServiceAccountToken": False,
        # A Service named `vllm` would otherwise set VLLM_PORT to a URL.
        "enableServiceLinks": False,
        "securityContext": pod_security(engine.spec.engine.compile_cache is not None),
        "terminationGracePeriodSeconds": grace_seconds(engine),
        "containers": [_container(ref, engine)],
        "volumes": volumes(engine),
    }
    if engine.plugin:
        spec["readinessGates"] = [{"conditionType": SETTINGS_GATE}]
    return {
        "metadata": {
            "labels": {**ref.labels, TRACK_LABEL: STABLE},
            "annotations": {
                "kubectl.kubernetes.io/default-container": ENGINE_CONTAINER,
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(ENGINE_PORT),
                "prometheus.io/path": "/metrics",
            },
        },
        "spec": spec,
    }


def _container(ref: ServingRef, engine: Engine) -> dict[str, Any]:
    environment = engine_environment(engine)
    if engine.plugin:
        source = {"secretKeyRef": {"name": ref.token_secret, "key": "token"}}
        environment.append({"name": TOKEN_VARIABLE, "valueFrom": source})
    if engine.spec.api_key_ref is not None:
        reference = engine.spec.api_key_ref
        source = {"secretKeyRef": {"name": reference.name, "key": reference.key}}
        environment.append({"name": API_KEY_VARIABLE, "valueFrom": source})
    return {
        "name": ENGINE_CONTAINER,
        "image": engine.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "kvserving_kernels.serve"]
        if engine.plugin
        else ["vllm", "serve"],
        "args": list(engine_args(engine)),
        "env": environment,
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(engine),
        "volumeMounts": volume_mounts(engine),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"exec": {"command": drain_command(engine)}}},
        **probes(engine),
    }


def _resources(engine: Engine) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": dict(LEAST_REQUESTS)}
    if engine.gpus:
        resources["limits"] = {GPU_RESOURCE: str(engine.gpus)}
    return resources
