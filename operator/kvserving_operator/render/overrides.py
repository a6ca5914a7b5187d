"""`spec.podTemplate` laid over the rendered template.

Placement, resources and credentials are the user's.
"""

from typing import Any

from kvserving_operator.api.v1alpha1 import PodTemplateSpec
from kvserving_operator.render.names import ENGINE_CONTAINER


def apply_overrides(template: dict[str, Any], overrides: PodTemplateSpec) -> dict[str, Any]:
    """Template with the user's part in it; the user's value wins wherever both set one."""
    chosen = overrides.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    metadata = template["metadata"]
    spec = {
        **template["spec"],
        **{
            key: chosen[key]
            for key in (
                "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints",
                "runtimeClassName", "priorityClassName", "imagePullSecrets",
            )
            if key in chosen
        },
    }  # fmt: skip
    spec["containers"] = [
        _container(container, chosen) if container["name"] == ENGINE_CONTAINER else container
        for container in spec["containers"]
    ]
    return {
        "metadata": {
            key: {**chosen.get("metadata", {}).get(key, {}), **metadata[key]}
            for key in ("labels", "annotations")
        },
        "spec": spec,
    }


def _container(container: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    added = chosen.get("env", [])
    names = {entry["name"] for entry in added}
    kept = [entry for entry in container["env"] if entry["name"] not in names]
    wanted = chosen.get("resources", {})
    ours, limits = container["resources"], wanted.get("limits", {})
    # A limit of the user's is also the request, as Kubernetes has it, unless the user says more.
    requests = {key: value for key, value in ours["requests"].items() if key not in limits}
    resources = {
        "requests": {**requests, **wanted.get("requests", {})},
        "limits": {**ours.get("limits", {}), **limits},
    }
    resources = {key: entries for key, entries in resources.items() if entries}
    return {**container, "env": [*kept, *added], "resources": resources}
