"""What a support bundle holds: read from the cluster, and redacted before it is kept.

No Secret and no ConfigMap is read: they hold tokens, and prompts of users' own.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import yaml

from kvserving_kubectl.api import Api, Object
from kvserving_kubectl.bundle.redact import Redactor
from kvserving_kubectl.engines import metrics_text
from kvserving_kubectl.errors import NotInstalled, PluginError
from kvserving_kubectl.history import OPERATOR
from kvserving_kubectl.resources import (
    DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    HTTPROUTES,
    KVPOLICIES,
    KVSERVINGS,
    KVTRIALS,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from kvserving_operator.kinds import API_GROUP
from kvserving_operator.render.names import ENGINE_CONTAINER, SERVING_LABEL

OURS = (KVSERVINGS, KVPOLICIES, KVTRIALS)
CHILDREN = (PODS, SERVICES, DEPLOYMENTS, HTTPROUTES)
OPERATOR_METRICS_PORT = 9090
CONCURRENCY = 4
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T[0-9:.]+(Z|[+-]\d{2}:\d{2})$")


@dataclass
class Bundle:
    """Files by their path, and what could not be had."""

    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """What to collect."""

    namespaces: tuple[str, ...]
    """Empty for all that have a KVServing."""
    name: str
    """One KVServing; empty for all."""
    operator_namespace: str
    log_lines: int


class Collector:
    """Reads a cluster into a bundle; whatever cannot be read is named and left out."""

    def __init__(self, api: Api, redactor: Redactor, wanted: Wanted) -> None:
        self._api = api
        self._redact = redactor
        self._wanted = wanted
        self.bundle = Bundle()

    def collect(self) -> Bundle:
        """Everything that was asked for."""
        self._text("server-version.txt", self._api.server)
        self._definitions()
        self._nodes()
        self._operator()
        for namespace in self._namespaces():
            self._namespace(namespace)
        self.bundle.missing.sort()
        self._keep("missing.txt", "\n".join(self.bundle.missing) or "nothing")
        return self.bundle

    def _namespaces(self) -> tuple[str, ...]:
        if self._wanted.namespaces:
            return self._wanted.namespaces
        found = self._list(KVSERVINGS, "", {})
        return tuple(sorted({each["metadata"]["namespace"] for each in found}))

    def _namespace(self, namespace: str) -> None:
        chosen = self._wanted.name
        for resource in OURS:
            for each in self._list(resource, namespace, {}):
                if not chosen or _is_about(each, chosen):
                    self._object(f"namespaces/{namespace}", resource, each)
        selector = f"{SERVING_LABEL}={chosen}" if chosen else SERVING_LABEL
        for resource in CHILDREN:
            found = self._list(resource, namespace, {"labelSelector": selector})
            for each in found:
                self._object(f"namespaces/{namespace}", resource, each)
            if resource is PODS:
                self._pods(f"namespaces/{namespace}", namespace, found, self._engine_metrics)
        self._events(f"namespaces/{namespace}", namespace)

    def _operator(self) -> None:
        namespace, folder = self._wanted.operator_namespace, "operator"
        pods = self._list(PODS, namespace, OPERATOR)
        for each in pods:
            self._object(folder, PODS, each)
        for each in self._list(DEPLOYMENTS, namespace, OPERATOR):
            self._object(folder, DEPLOYMENTS, each)
        self._pods(folder, namespace, pods, self._operator_metrics)
        self._events(folder, namespace)

    def _pods(
        self,
        folder: str,
        namespace: str,
        pods: Iterable[Object],
        metrics: Callable[[str, str], str],
    ) -> None:
        """Logs of every container, the former ones' too where they have ended, and metrics."""

        def read(pod: Object) -> None:
            name = pod["metadata"]["name"]
            statuses = (pod.get("status") or {}).get("containerStatuses") or ()
            restarted = {s["name"] for s in statuses if s.get("restartCount")}
            for container in pod["spec"].get("containers") or ():
                called = container["name"]
                where = f"{folder}/logs/{name}.{called}"
                self._log(f"{where}.log", namespace, name, called, previous=False)
                if called in restarted:
                    self._log(f"{where}.previous.log", namespace, name, called, previous=True)
            if any(c["name"] in (ENGINE_CONTAINER, "operator") for c in pod["spec"]["containers"]):
                self._text(f"{folder}/metrics/{name}.txt", lambda: metrics(namespace, name))

        with ThreadPoolExecutor(CONCURRENCY) as workers:
            list(workers.map(read, pods))

    def _engine_metrics(self, namespace: str, pod: str) -> str:
        return metrics_text(self._api, namespace, pod)

    def _operator_metrics(self, namespace: str, pod: str) -> str:
        return self._api.text(PODS, namespace, f"{pod}:{OPERATOR_METRICS_PORT}", "proxy/metrics")

    def _log(self, path: str, namespace: str, pod: str, container: str, *, previous: bool) -> None:
        query = {
            "container": container,
            "tailLines": str(self._wanted.log_lines),
            "timestamps": "true",
        }
        query |= {"previous": "true"} if previous else {}
        try:
            text = self._api.text(PODS, namespace, pod, "log", query)
        except PluginError as error:
            self._missing(path, error)
            return
        self.bundle.files[path] = "".join(_logged(self._redact, text))

    def _events(self, folder: str, namespace: str) -> None:
        events = self._list(EVENTS, namespace, {})
        if self._wanted.name and folder != "operator":
            events = [e for e in events if self._wanted.name in e["involvedObject"].get("name", "")]
        if events:
            kept = [self._redact.object(each) for each in events]
            self.bundle.files[f"{folder}/events.yaml"] = yaml.safe_dump_all(kept, sort_keys=False)

    def _definitions(self) -> None:
        """Versions of the CRDs that are installed; their schemas are known."""
        for resource in OURS:
            try:
                found = self._api.get(DEFINITIONS, "", resource.full_name)
            except PluginError as error:
                self._missing(f"definitions/{resource.full_name}", error)
                continue
            status = found.get("status") or {}
            versions = [each["name"] for each in found["spec"]["versions"]]
            kept = {
                "name": resource.full_name,
                "versions": versions,
                "storedVersions": status.get("storedVersions"),
                "conditions": status.get("conditions"),
            }
            self._keep(f"definitions/{resource.full_name}.yaml", yaml.safe_dump(kept))

    def _nodes(self) -> None:
        """What nodes have to offer, without their addresses and labels of others."""
        for each in self._list(NODES, "", {}):
            status = each.get("status") or {}
            info = status.get("nodeInfo") or {}
            kept = {
                "capacity": status.get("capacity"),
                "allocatable": status.get("allocatable"),
                "kubeletVersion": info.get("kubeletVersion"),
                "architecture": info.get("architecture"),
                "kernelVersion": info.get("kernelVersion"),
            }
            self._keep(f"nodes/{each['metadata']['name']}.yaml", yaml.safe_dump(kept))

    def _object(self, folder: str, resource: Resource, body: Object) -> None:
        path = f"{folder}/{resource.plural}/{body['metadata']['name']}.yaml"
        kept = self._redact.object(body)
        self.bundle.files[path] = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)

    def _list(self, resource: Resource, namespace: str, query: dict[str, str]) -> list[Object]:
        try:
            return self._api.list(resource, namespace, query or None)
        except NotInstalled as error:
            # Not every cluster has the Gateway API.
            if resource is not HTTPROUTES:
                self._missing(resource.full_name, error)
            return []
        except PluginError as error:
            self._missing(f"{resource.full_name} of {namespace or 'the cluster'}", error)
            return []

    def _text(self, path: str, read: Callable[[], str]) -> None:
        try:
            self._keep(path, read())
        except PluginError as error:
            self._missing(path, error)

    def _keep(self, path: str, text: str) -> None:
        self.bundle.files[path] = self._redact.text(text)

    def _missing(self, what: str, error: PluginError) -> None:
        self.bundle.missing.append(f"{what}: {self._redact.text(str(error))}")


def _is_about(body: Object, name: str) -> bool:
    """Whether an object of ours is a KVServing, or belongs to it; policies belong to all."""
    kind = body.get("kind")
    if kind == KVSERVINGS.singular:
        return bool(body["metadata"]["name"] == name)
    if kind == KVTRIALS.singular:
        return bool(body["spec"]["servingRef"]["name"] == name)
    return True


def _logged(redactor: Redactor, text: str) -> Iterator[str]:
    """A log whose lines begin with the time at which the node has seen them."""
    stamps, lines = [], []
    for line in text.splitlines():
        stamp, space, rest = line.partition(" ")
        stamps.append(stamp if space and _STAMP.match(stamp) else "")
        lines.append(rest if stamps[-1] else line)
    yield from (f"{stamp} {line}".strip() + "\n" for stamp, line in redactor.lines(stamps, lines))


def description(bundle: Bundle, wanted: Wanted, version: str, at: str) -> str:
    """`bundle.json`: what this is, of what, and of when."""
    document: dict[str, Any] = {
        "schema": f"{API_GROUP}/support-bundle/v1",
        "pluginVersion": version,
        "at": at,
        "namespaces": list(wanted.namespaces) or "all with a KVServing",
        "serving": wanted.name or "all",
        "files": len(bundle.files),
        "missing": bundle.missing,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
