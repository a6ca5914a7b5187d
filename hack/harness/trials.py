"""Trials as tests find them, wait for them and steer them."""

from collections.abc import Mapping
from typing import Any

from harness.kube import KVSERVING, Kube, wait_for

TRIAL = "kvtrials.kvserving.dev"


def manifest(
    name: str, serving: str, change: Mapping[str, Any], policy: Mapping[str, Any]
) -> dict[str, Any]:
    """A KVTrial as a person makes it; `policy` is the whole KVRollbackPolicy."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVTrial",
        "metadata": {"name": name},
        "spec": {
            "servingRef": {"name": serving},
            "change": dict(change),
            "policy": policy["spec"],
        },
    }


def trials_of(kube: Kube, namespace: str, change: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Trials in a namespace whose change has at least these fields."""
    return [
        trial for trial in kube.objects(TRIAL, namespace) if _has(trial["spec"]["change"], change)
    ]


def wait_trial(
    kube: Kube,
    namespace: str,
    change: Mapping[str, Any],
    timeout_seconds: float = 600,
    **wanted: str,
) -> dict[str, Any]:
    """Wait until a trial of a change has these values in its status; give the trial."""

    def look() -> dict[str, Any] | None:
        found = trials_of(kube, namespace, change)
        return next((trial for trial in found if _has(trial.get("status", {}), wanted)), None)

    return wait_for(look, f"the trial of {dict(change)} has {wanted}", timeout_seconds)


def control(kube: Kube, namespace: str, trial: str, wish: str) -> None:
    """Pause a trial, let it run, promote it or roll it back, as a person does."""
    kube.patch(TRIAL, trial, namespace, {"spec": {"control": wish}})


def dtypes(kube: Kube, serving: str, namespace: str) -> list[str]:
    """KV formats of a KVServing's engines, by its status; empty for one that cannot be asked."""
    status = (kube.get(KVSERVING, serving, namespace) or {})["status"]
    return sorted(pod.get("kvCacheDtype", "") for pod in status["pods"])


def _has(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(
        _has(found.get(name, {}), value) if isinstance(value, Mapping) else found.get(name) == value
        for name, value in wanted.items()
    )
