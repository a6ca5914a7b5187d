"""The check pod: the engine's image and arguments, no GPU, no weights.

Its verdict is its termination message.
"""

from collections.abc import Mapping
from typing import Any

from kvserving_operator.kinds import Kind
from kvserving_operator.render.names import (
    API_KEY_VARIABLE,
    ENGINE_CONTAINER,
    PREFLIGHT_CONTAINER,
    TOKEN_VARIABLE,
    ServingRef,
)
from kvserving_operator.render.pod import GPU_RESOURCE, template_hash

CREDENTIALS = (TOKEN_VARIABLE, API_KEY_VARIABLE)
GPUS_VARIABLE = "KVSERVING_GPUS"
"""Variable of the check (`kvserving_kernels.preflight.host`)."""


def preflight_pod(
    ref: ServingRef, template: Mapping[str, Any], memory: str, deadline_seconds: float
) -> dict[str, Any]:
    """Check pod of a rendered template: made from it, so that what is checked is what will run."""
    source = template["spec"]
    engine = next(c for c in source["containers"] if c["name"] == ENGINE_CONTAINER)
    spec: dict[str, Any] = {
        key: source[key]
        for key in (
            "nodeSelector", "tolerations", "affinity", "runtimeClassName", "imagePullSecrets",
            "serviceAccountName", "securityContext", "priorityClassName", "schedulerName",
        )
        if key in source
    }  # fmt: skip
    spec |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, round(deadline_seconds)),
        "terminationGracePeriodSeconds": 1,
        "containers": [_container(engine, memory)],
        "volumes": [_harmless(volume) for volume in source["volumes"]],
    }
    metadata = ref.metadata(ref.preflight_pod(template_hash(template)))
    metadata["labels"] = dict(ref.preflight_labels)
    return {
        "apiVersion": Kind.Pod.api_version,
        "kind": Kind.Pod.name,
        "metadata": metadata,
        "spec": spec,
    }


def _container(engine: Mapping[str, Any], memory: str) -> dict[str, Any]:
    kept = {
        key: engine[key]
        for key in ("image", "imagePullPolicy", "volumeMounts", "securityContext")
        if key in engine
    }
    return {
        **kept,
        "name": PREFLIGHT_CONTAINER,
        "command": ["python3", "-m", "kvserving_kernels.preflight", "--"],
        "args": list(engine["args"]),
        # Neither token nor key: the check talks to nobody.
        "env": [
            *(entry for entry in engine["env"] if entry["name"] not in CREDENTIALS),
            *_gpus(engine),
        ],
        "resources": _resources(memory),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _gpus(engine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How many GPUs the engine will have, which the check has not.

    Nothing where the user's own limits leave that open: parts of GPUs, or GPUs without a limit.
    """
    limits = engine["resources"].get("limits", {})
    count = str(limits.get(GPU_RESOURCE, ""))
    if any(name.startswith("nvidia.com/") and name != GPU_RESOURCE for name in limits):
        return []
    return [] if count == "0" else [{"name": GPUS_VARIABLE, "value": count or "0"}]


def _resources(memory: str) -> dict[str, Any]:
    """So small that it finds room on a full node, and without devices: GPUs are what pods hold."""
    return {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": memory}}


def _harmless(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read-only claims stay, everything written to becomes the pod's own."""
    if volume["name"] == "models":
        return volume
    if "persistentVolumeClaim" in volume:
        return {"name": volume["name"], "emptyDir": {}}
    return volume
