"""Where the API serves what the plugin reads and writes."""

from dataclasses import dataclass
from urllib.parse import quote

from kvserving_operator.kinds import API_GROUP, API_VERSION


@dataclass(frozen=True)
class Resource:
    """A resource by group, version and plural."""

    group: str
    version: str
    plural: str
    singular: str
    namespaced: bool = True

    @property
    def full_name(self) -> str:
        """As kubectl and roles name it: with its group, which no other one shares."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of one object, or of a collection: of a namespace, or of the whole cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"namespaces/{_part(namespace)}" if namespace and self.namespaced else ""
        return "/".join(
            part for part in (root, within, self.plural, _part(name), subresource) if part
        )


def _part(text: str) -> str:
    """One part of a path, whatever a user has typed; a pod's port may stand behind a colon."""
    return quote(text, safe=":")


KVSERVINGS = Resource(API_GROUP, API_VERSION, "kvservings", "KVServing")
KVPOLICIES = Resource(API_GROUP, API_VERSION, "kvrollbackpolicies", "KVRollbackPolicy")
KVTRIALS = Resource(API_GROUP, API_VERSION, "kvtrials", "KVTrial")
PODS = Resource("", "v1", "pods", "pod")
EVENTS = Resource("", "v1", "events", "event")
SERVICES = Resource("", "v1", "services", "service")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "deployment")
HTTPROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes", "httproute")
NODES = Resource("", "v1", "nodes", "node", namespaced=False)
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "definition", namespaced=False
)
