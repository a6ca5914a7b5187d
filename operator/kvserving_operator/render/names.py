"""Names and labels of everything a KVServing owns."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvserving_operator.kinds import API_GROUP, API_VERSION, Kind

ENGINE_CONTAINER = "engine"
PREFLIGHT_CONTAINER = "preflight"
ENGINE_PORT = 8000
READY_PATH = "/kvserving/v1/ready"
TOKEN_VARIABLE = "KVSERVING_TOKEN"  # noqa: S105  a name
"""Environment variable of an engine with the runtime API's bearer token."""
API_KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM's own, with the key that its users must send."""
SETTINGS_GATE = f"{API_GROUP}/settings-applied"
"""Readiness gate of engine pods: promoted live values have been applied to this pod."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "kvserving"}
SERVING_LABEL = f"{API_GROUP}/serving"
TRACK_LABEL = f"{API_GROUP}/track"
REVISION_LABEL = f"{API_GROUP}/revision"
INPUTS_ANNOTATION = f"{API_GROUP}/inputs-hash"
BASE_ANNOTATION = f"{API_GROUP}/base-hash"
CONTENTS_ANNOTATION = f"{API_GROUP}/contents"
IMAGE_ANNOTATION = f"{API_GROUP}/pinned-image"
RETRY_ANNOTATION = f"{API_GROUP}/retry"
"""Set by a user, to any new value, to try a template again that failed."""
DEPLOYMENT_LABEL = f"{API_GROUP}/deployment"
"""Tells the pods of a trial's own Deployment from the others: its selector, for ever."""
DECISION_ANNOTATION = f"{API_GROUP}/decision"
"""Identity of the tuner's decision that asked for a KVTrial, as in the audit log and in traces."""
STABLE, CANDIDATE = "stable", "candidate"
"""Tracks of pods: what the arms of a trial with route weights select."""


@dataclass(frozen=True)
class ServingRef:
    """Identity of one KVServing."""

    namespace: str
    name: str
    uid: str

    @property
    def owner_reference(self) -> Mapping[str, object]:
        """Makes the garbage collector remove a child with its KVServing."""
        return {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": Kind.KVServing.name,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    @property
    def selector(self) -> Mapping[str, str]:
        """Labels of the engine pods; for ever, as a Deployment's selector can never change."""
        return {
            "app.kubernetes.io/name": "kvserving-engine",
            "app.kubernetes.io/instance": self.name,
        }

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of every child."""
        return {**self.selector, **MANAGED_BY, SERVING_LABEL: self.name}

    @property
    def preflight_labels(self) -> Mapping[str, str]:
        """Labels of check pods: never matched by a Service or the Deployment."""
        return {
            "app.kubernetes.io/name": "kvserving-preflight",
            "app.kubernetes.io/instance": self.name,
            **MANAGED_BY,
            SERVING_LABEL: self.name,
        }

    @property
    def engines_service(self) -> str:
        """Headless Service with every engine pod, ready or not."""
        return f"{self.name}-engines"

    def arm_service(self, track: str) -> str:
        """Service with the engine pods of one track, which an HTTPRoute gives its weight to."""
        return f"{self.name}-{track}"

    @property
    def candidates_deployment(self) -> str:
        """Deployment of the pods that are started to try a template."""
        return f"{self.name}-candidate"

    @property
    def candidates_selector(self) -> Mapping[str, str]:
        """Labels of these pods; Services and budgets select them with all others."""
        return {**self.selector, DEPLOYMENT_LABEL: CANDIDATE}

    @property
    def token_secret(self) -> str:
        """Secret with the runtime API's bearer token."""
        return f"{self.name}-token"

    @property
    def state_configmap(self) -> str:
        """ConfigMap with pod templates and the memory of the tuner."""
        return f"{self.name}-state"

    def preflight_pod(self, template_hash: str) -> str:
        """Check pod of one template."""
        return f"{self.name}-preflight-{template_hash[:8]}"

    def metadata(self, name: str) -> dict[str, object]:
        """Metadata of a child."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(self.labels),
            "ownerReferences": [dict(self.owner_reference)],
        }
