"""KVServings, trials and pods as a cluster has them."""

from typing import Any

from kubectlkit.fake import FakeApi
from kvserving_kubectl.resources import EVENTS, KVPOLICIES, KVSERVINGS, KVTRIALS, PODS

API_VERSION = "kvserving.dev/v1alpha1"
THEN = "2027-01-15T07:50:00Z"
"""Ten minutes before the present of the tests."""


def serving(name: str = "chat", namespace: str = "demo", **spec: Any) -> dict[str, Any]:
    """A KVServing that serves."""
    return {
        "apiVersion": API_VERSION,
        "kind": "KVServing",
        "metadata": {
            "name": name, "namespace": namespace, "generation": 3, "creationTimestamp": THEN,
        },
        "spec": {
            "model": {"uri": "pvc://models/tiny"},
            "replicas": 2,
            "engine": {"accelerator": "CPU", "kvCacheMemory": "64Mi", "maxNumSeqs": 16},
            "kvCache": {"dtype": "auto", "eviction": {"policy": "None"}},
            "tuning": {"mode": "Auto"},
            "slo": {"ttftMilliseconds": 500, "percentile": 95},
            **spec,
        },
        "status": {
            "reason": "Serving",
            "readyReplicas": 2,
            "effective": {
                "kvCacheDtype": "bfloat16", "eviction": "None", "maxActiveSeqs": 12,
                "maxNumSeqs": 16,
            },
            "capacity": {"kvCacheTokens": 4096, "kvCacheBytes": 67_108_864},
            "conditions": [
                condition("Ready", "True", "Serving"),
                condition("QualityGate", "Unknown", "NotRun"),
                condition("MetricsAvailable", "False", "MetricsMissing", "engine chat-0 is silent"),
            ],
            "pods": [{"name": "chat-0", "state": "Ready", "kvCacheDtype": "bfloat16"}],
            "lastDecision": decision(),
        },
    }  # fmt: skip


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    """One condition."""
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": THEN,
    }  # fmt: skip


def decision() -> dict[str, Any]:
    """A change that the tuner made."""
    return {
        "id": "d-1", "at": THEN, "diagnosis": "PreemptionStorm", "action": "Change",
        "outcome": "Applied", "knob": "MaxActiveSeqs", "fromValue": "16", "toValue": "12",
        "costClass": "Live", "reason": "PreemptionStorm",
        "message": "14 preemptions in 20 s with 16 sequences",
        "numbers": [{"name": "KVUsageMax", "value": "0.98"}],
    }  # fmt: skip


def trial(
    name: str = "chat-t1", of: str = "chat", namespace: str = "demo", **status: Any
) -> dict[str, Any]:
    """A KVTrial; `status` entries make its status."""
    return {
        "apiVersion": API_VERSION,
        "kind": "KVTrial",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": THEN},
        "spec": {
            "servingRef": {"name": of},
            "change": {"kvCacheDtype": "int8"},
            "control": "Run",
            "requestedBy": "Spec",
            "policy": {"ab": {"steps": [5, 25], "approval": "Manual"}},
        },
        "status": {"summary": "KVCacheDType auto -> int8", **status},
    }


def event(
    reason: str, message: str, kind: str = "KVServing", name: str = "chat", type: str = "Normal"
) -> dict[str, Any]:
    """An Event."""
    return {
        "metadata": {"name": f"{name}.{reason}", "namespace": "demo"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason, "message": message, "type": type, "lastTimestamp": THEN,
    }  # fmt: skip


def pod(name: str = "chat-0", of: str = "chat", **spec: Any) -> dict[str, Any]:
    """An engine pod."""
    labels = {
        "kvserving.dev/serving": of, "kvserving.dev/track": "stable",
        "app.kubernetes.io/name": "kvserving-engine",
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "demo", "labels": labels},
        "spec": {"containers": [{"name": "engine", **spec}]},
        "status": {"containerStatuses": [{"name": "engine", "restartCount": 0}]},
    }  # fmt: skip


def demo() -> FakeApi:
    """One KVServing with a trial that waits for approval, its policy, its Events and its pod."""
    api = FakeApi()
    api.add(KVSERVINGS, serving())
    api.add(
        KVTRIALS,
        trial(
            state="Approval", stepPercent=25, startedAt=THEN, message="passed; waits for approval",
            evidence=[
                {"name": "ServedLikelihood", "outcome": "Passed", "value": "0.1",
                 "threshold": "2", "lower": "-0.2", "samples": 55, "eValue": "0.3"},
            ],
        ),
    )  # fmt: skip
    policy = {
        "apiVersion": API_VERSION,
        "kind": "KVRollbackPolicy",
        "metadata": {"name": "careful", "namespace": "demo"},
        "spec": {"fallback": {"kvCacheDtype": "bfloat16"}},
    }
    api.add(KVPOLICIES, policy)
    api.add(PODS, pod())
    api.add(EVENTS, event("SettingChanged", "PreemptionStorm: cap 16 -> 12"))
    api.add(EVENTS, event("TrialStep", "step 1", kind="KVTrial", name="chat-t1"))
    api.add(EVENTS, event("Scheduled", "of another", kind="Pod", name="other"))
    return api
