"""A controller in a cluster in memory; tests play the Deployment controller and the kubelet."""

import copy
from collections.abc import Mapping
from typing import Any

import httpx

from kvserving_operator.actions import Announce
from kvserving_operator.cluster import Cluster
from kvserving_operator.controller import Controller
from kvserving_operator.kinds import Kind
from kvserving_operator.looks import Watcher
from kvserving_operator.metrics import OperatorMetrics
from kvserving_operator.render.names import (
    ENGINE_CONTAINER,
    PREFLIGHT_CONTAINER,
    SETTINGS_GATE,
)
from kvserving_operator.settings import Settings
from operatorkit.cluster import Clock, MemoryCluster
from operatorkit.engines import Engines
from operatorkit.judge import ScriptedJudge
from operatorkit.specs import NAME, NAMESPACE, serving_body


class World:
    """A controller with its cluster, and what a Deployment controller and a kubelet would do."""

    def __init__(self, settings: Settings) -> None:
        self.clock = Clock()
        self.cluster = MemoryCluster(self.clock)
        self.api: Cluster = self.cluster
        """What the controller calls: the cluster itself, or something in front of it."""
        self.engines = Engines()
        self.engines.clock = self.clock
        self.events: list[Announce] = []
        self.fence: Exception | None = None
        self.metrics = OperatorMetrics()
        self.settings = settings
        self.judge = ScriptedJudge()
        self.rests: list[float] = []
        """Seconds for which task probes left engines alone."""
        self.watchers: tuple[Watcher, ...] = ()
        """Told of each look by controllers that are made from here on."""
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self.engines), trust_env=False)
        self.controller = self.new_controller()
        self._pods = 0
        self.room: int | None = None
        """Engine pods that the cluster has room for; None for any number."""

    def new_controller(self, settings: Settings | None = None) -> Controller:
        """Start the operator anew: nothing but the cluster is kept."""
        self.controller = Controller(
            self.api,
            settings or self.settings,
            self.http,
            self.metrics,
            lambda _, announcement: self.events.append(announcement),
            self._may_act,
            clock=self.clock,
            monotonic=self.clock,
            new_token=lambda: f"token-{len(self.cluster.changes)}",
            judge=self.judge,
            sleep=self._sleep,
            watchers=self.watchers,
        )
        return self.controller

    async def _sleep(self, seconds: float) -> None:
        """Let the time of a pause pass at once."""
        self.rests.append(seconds)
        self.clock.advance(seconds)

    def _may_act(self) -> None:
        if self.fence is not None:
            raise self.fence

    def put(self, **spec: Any) -> None:
        """Apply a KVServing as a user would."""
        body = serving_body(**spec)
        key = (Kind.KVServing, NAMESPACE, NAME)
        old = self.cluster.objects.get(key)
        if old is not None:
            changed = old["spec"] != body["spec"]
            body["metadata"]["generation"] = old["metadata"]["generation"] + int(changed)
            body["status"] = old.get("status", {})
        self.cluster.objects[key] = body

    async def tick(self, seconds: float = 5.0) -> None:
        """One look, some time after the last one."""
        self.clock.advance(seconds)
        await self.controller.tick(NAMESPACE, NAME)

    async def settle(self, looks: int = 6) -> None:
        """Looks with a kubelet that lets every check pass and every engine come up."""
        for _ in range(looks):
            await self.tick()
            self.finish_check(code=0)
            self.roll()
            for pod in self.engine_pods().values():
                if is_scheduled(pod):
                    self.come_up(pod)

    def roll(self) -> None:
        """Be the Deployment controller: pods of the present template, as many as wanted."""
        deployments = self.cluster.of(Kind.Deployment)
        for name in (NAME, f"{NAME}-candidate"):
            self._roll(deployments.get(name), apart=name != NAME)
        self._schedule()

    def _roll(self, found: Mapping[str, Any] | None, *, apart: bool) -> None:
        if found is None and not apart:
            return
        template, wanted, label = {}, 0, None
        if found is not None:
            template, wanted = found["spec"]["template"], found["spec"]["replicas"]
            label = template["metadata"]["labels"]["kvserving.dev/revision"]
        mine = []
        for name, pod in list(self.engine_pods().items()):
            if is_apart(pod) is not apart:
                continue
            if pod["metadata"]["labels"]["kvserving.dev/revision"] == label:
                mine.append(name)
            else:
                self.remove(name)
        for name in mine[wanted:]:
            self.remove(name)
        for _ in range(wanted - len(mine)):
            self._new_pod(template)

    def _schedule(self) -> None:
        """Be the scheduler: pods that there is no room for wait."""
        for number, pod in enumerate(self.engine_pods().values()):
            if "containerStatuses" in pod["status"]:
                continue
            if self.room is None or number < self.room:
                set_condition(pod, "PodScheduled", "True")
            else:
                why = {"reason": "Unschedulable", "message": "0/1 nodes: 1 Insufficient cpu"}
                set_condition(pod, "PodScheduled", "False", **why)

    def add_pod(self) -> None:
        """Add one pod of the present template."""
        self._new_pod(self.deployment["spec"]["template"])

    def remove(self, name: str) -> None:
        """Let an engine pod go."""
        del self.cluster.objects[(Kind.Pod, NAMESPACE, name)]

    def engine_pods(self) -> dict[str, dict[str, Any]]:
        """Engine pods by name."""
        return {n: p for n, p in self.cluster.of(Kind.Pod).items() if "preflight" not in n}

    def checks(self) -> dict[str, dict[str, Any]]:
        """Check pods by name."""
        return {n: p for n, p in self.cluster.of(Kind.Pod).items() if "preflight" in n}

    def _new_pod(self, template: Mapping[str, Any]) -> None:
        self._pods += 1
        name, address = f"{NAME}-{self._pods}", f"10.0.0.{self._pods}"
        self.cluster.objects[(Kind.Pod, NAMESPACE, name)] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"pod-{self._pods}",
                "creationTimestamp": self.clock.timestamp,
                "labels": dict(template["metadata"]["labels"]),
            },
            "spec": copy.deepcopy(dict(template["spec"])),
            "status": {"phase": "Pending", "podIP": address},
        }

    def come_up(self, pod: dict[str, Any], container: str = "c1") -> None:
        """Let a pod's engine load its model and answer; Ready as far as its gates allow."""
        address = pod["status"]["podIP"]
        self.engines.start(address, pod["spec"]["containers"][0]["args"])
        pod["status"]["containerStatuses"] = [
            {
                "name": ENGINE_CONTAINER,
                "ready": True,
                "restartCount": 0,
                "containerID": f"containerd://{container}{pod['metadata']['name']}",
                "state": {"running": {}},
            }
        ]
        gates = pod["spec"].get("readinessGates", [])
        conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
        ready = not gates or conditions.get(SETTINGS_GATE) == "True"
        set_condition(pod, "Ready", "True" if ready else "False")

    def crash(self, pod: dict[str, Any], times: int, message: str, reason: str = "Error") -> None:
        """Let a pod's engine have ended some times."""
        ended = {"exitCode": 1, "reason": reason, "message": message}
        pod["status"]["containerStatuses"] = [
            {
                "name": ENGINE_CONTAINER,
                "ready": False,
                "restartCount": times,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": ended},
            }
        ]
        set_condition(pod, "Ready", "False")

    def finish_check(self, code: int, message: str = "", reason: str = "Completed") -> None:
        """End every check pod in this way."""
        for pod in self.checks().values():
            ended = {"exitCode": code, "reason": reason, "message": message}
            pod["status"] = {
                "phase": "Succeeded" if code == 0 else "Failed",
                "containerStatuses": [
                    {"name": PREFLIGHT_CONTAINER, "state": {"terminated": ended}}
                ],
            }

    @property
    def deployment(self) -> dict[str, Any]:
        """The Deployment as stored."""
        return self.cluster.of(Kind.Deployment)[NAME]

    @property
    def status(self) -> dict[str, Any]:
        """Status of the KVServing as stored."""
        return dict(self.cluster.of(Kind.KVServing)[NAME].get("status", {}))

    def condition(self, type: str) -> dict[str, Any]:
        """One condition of the KVServing."""
        return next(c for c in self.status["conditions"] if c["type"] == type)

    def said(self, reason: str) -> list[str]:
        """Messages of the Events with this reason."""
        return [event.message for event in self.events if event.reason == reason]


def is_apart(pod: Mapping[str, Any]) -> bool:
    """Whether a pod was started for a trial."""
    return "kvserving.dev/deployment" in pod["metadata"]["labels"]


def is_scheduled(pod: Mapping[str, Any]) -> bool:
    """Whether a node has taken a pod."""
    found = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return found.get("PodScheduled") != "False"


def set_condition(pod: dict[str, Any], type: str, status: str, **more: str) -> None:
    """Set a condition of a pod."""
    stored = pod.setdefault("status", {})
    others = [c for c in stored.get("conditions", []) if c["type"] != type]
    stored["conditions"] = [*others, {"type": type, "status": status, **more}]
