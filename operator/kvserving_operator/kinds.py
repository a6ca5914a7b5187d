"""The Kubernetes kinds the operator touches and where the API serves them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

API_GROUP = "kvserving.dev"
API_VERSION = "v1alpha1"

Object = Mapping[str, Any]
"""A Kubernetes object as the API sends it."""


@dataclass(frozen=True)
class _Route:
    api_version: str
    plural: str


class Kind(Enum):
    """A namespaced kind; the value's name is the `kind` field of its objects."""

    KVServing = _Route(f"{API_GROUP}/{API_VERSION}", "kvservings")
    KVRollbackPolicy = _Route(f"{API_GROUP}/{API_VERSION}", "kvrollbackpolicies")
    KVTrial = _Route(f"{API_GROUP}/{API_VERSION}", "kvtrials")
    Deployment = _Route("apps/v1", "deployments")
    Pod = _Route("v1", "pods")
    Service = _Route("v1", "services")
    ServiceAccount = _Route("v1", "serviceaccounts")
    Secret = _Route("v1", "secrets")
    ConfigMap = _Route("v1", "configmaps")
    PersistentVolumeClaim = _Route("v1", "persistentvolumeclaims")
    PodDisruptionBudget = _Route("policy/v1", "poddisruptionbudgets")
    NetworkPolicy = _Route("networking.k8s.io/v1", "networkpolicies")
    Lease = _Route("coordination.k8s.io/v1", "leases")
    EndpointSlice = _Route("discovery.k8s.io/v1", "endpointslices")
    HTTPRoute = _Route("gateway.networking.k8s.io/v1", "httproutes")
    BackendTrafficPolicy = _Route("gateway.envoyproxy.io/v1alpha1", "backendtrafficpolicies")

    @property
    def api_version(self) -> str:
        """Group and version, as in `apiVersion`."""
        return self.value.api_version

    def path(self, namespace: str, name: str | None = None, subresource: str | None = None) -> str:
        """Path of the collection, of one object, or of a part of it."""
        prefix = "/apis/" if "/" in self.api_version else "/api/"
        parts = [f"{prefix}{self.api_version}/namespaces/{namespace}/{self.value.plural}"]
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def kind_of(manifest: Object) -> Kind:
    """Kind of a manifest; KeyError for one the operator never handles."""
    return Kind[str(manifest["kind"])]
