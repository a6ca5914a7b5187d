"""What the operator reads off Kubernetes objects, as small frozen views; pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from kvserving_operator.api.v1alpha1.engine_args import owner_of
from kvserving_operator.kinds import Object
from kvserving_operator.render.names import (
    CANDIDATE,
    DEPLOYMENT_LABEL,
    ENGINE_CONTAINER,
    INPUTS_ANNOTATION,
    PREFLIGHT_CONTAINER,
    REVISION_LABEL,
    SETTINGS_GATE,
    STABLE,
    TRACK_LABEL,
)

IMAGE_PROBLEMS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
    }
)
"""Reasons with which the kubelet says that an image is not to be had."""
CONFIG_PROBLEMS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""Reasons with which the kubelet says that a container cannot be started as described."""
MESSAGE_LIMIT = 600
"""Characters of a crash message that are kept: the end of it, where the cause stands."""


@dataclass(frozen=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str
    message: str

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed for using more memory than it may."""
        return self.reason == "OOMKilled"


@dataclass(frozen=True)
class PodView:
    """One engine pod."""

    name: str
    uid: str
    ip: str | None
    node: str | None
    revision: str
    stable: bool
    created_at: float
    deleting: bool
    ready: bool
    running: bool
    container_ready: bool
    container_id: str
    restarts: int
    waiting_reason: str
    waiting_message: str
    last_exit: Exit | None
    unschedulable: str | None
    gated: bool
    """Whether it waits for promoted values before it counts as ready."""
    gate: bool
    gate_message: str
    apart: bool = False
    """Whether it belongs to the Deployment of a trial's candidates."""

    @property
    def terminations(self) -> int:
        """How often its engine has ended."""
        ended_now = not self.running and self.last_exit is not None and self.restarts == 0
        return max(self.restarts, int(ended_now))

    @property
    def image_problem(self) -> bool:
        """Whether its image cannot be had."""
        return self.waiting_reason in IMAGE_PROBLEMS

    @property
    def config_problem(self) -> bool:
        """Whether its container cannot be started as described."""
        return self.waiting_reason in CONFIG_PROBLEMS

    @property
    def crash_looping(self) -> bool:
        """Whether its engine ends again and again."""
        return self.waiting_reason == "CrashLoopBackOff"


MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
"""What the scheduler says of a claim that does not exist; engines would wait for it too."""


class CheckState(Enum):
    """Where a check pod stands."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(frozen=True)
class CheckView:
    """One check pod; `created_at` in seconds since the epoch."""

    name: str
    uid: str
    created_at: float
    state: CheckState
    exit: Exit | None
    unschedulable: str | None
    waiting_reason: str
    waiting_message: str

    @property
    def image_problem(self) -> bool:
        """Whether its image cannot be had."""
        return self.waiting_reason in IMAGE_PROBLEMS

    @property
    def config_problem(self) -> bool:
        """Whether its container cannot be started as described."""
        return self.waiting_reason in CONFIG_PROBLEMS

    @property
    def missing_claim(self) -> bool:
        """Whether a volume claim that it mounts does not exist."""
        return self.unschedulable is not None and bool(MISSING_CLAIM.search(self.unschedulable))


@dataclass(frozen=True)
class DeploymentView:
    """The Deployment as stored."""

    uid: str
    revision: str
    replicas: int
    inputs_hash: str
    generation: int | None


def pod_view(pod: Object) -> PodView:
    """Read an engine pod."""
    meta, status = pod["metadata"], pod.get("status") or {}
    container = _container_status(status, ENGINE_CONTAINER)
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    gate = _condition(status, SETTINGS_GATE)
    labels = meta.get("labels") or {}
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        ip=status.get("podIP"),
        node=(pod.get("spec") or {}).get("nodeName"),
        revision=labels.get(REVISION_LABEL, ""),
        stable=labels.get(TRACK_LABEL) == STABLE,
        created_at=seconds(meta.get("creationTimestamp")),
        deleting="deletionTimestamp" in meta,
        ready=_condition(status, "Ready").get("status") == "True",
        running="running" in state,
        container_ready=bool(container.get("ready")),
        container_id=str(container.get("containerID") or ""),
        restarts=int(container.get("restartCount") or 0),
        waiting_reason=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or ""),
        last_exit=_exit(state) or _exit(last),
        unschedulable=_unschedulable(status),
        gated=any(
            entry.get("conditionType") == SETTINGS_GATE
            for entry in (pod.get("spec") or {}).get("readinessGates") or ()
        ),
        gate=gate.get("status") == "True",
        gate_message=str(gate.get("message") or ""),
        apart=labels.get(DEPLOYMENT_LABEL) == CANDIDATE,
    )


def check_view(pod: Object) -> CheckView:
    """Read a check pod."""
    meta, status = pod["metadata"], pod.get("status") or {}
    container = _container_status(status, PREFLIGHT_CONTAINER)
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    finished = status.get("phase") in ("Succeeded", "Failed")
    ended = _exit(state)
    if finished and ended is None:
        ended = Exit(-1, str(status.get("reason") or "Unknown"), str(status.get("message") or ""))
    return CheckView(
        name=meta["name"],
        uid=meta["uid"],
        created_at=seconds(meta.get("creationTimestamp")),
        state=_check_state(finished, "running" in state),
        exit=ended,
        unschedulable=_unschedulable(status),
        waiting_reason=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or ""),
    )


def deployment_view(deployment: Object) -> DeploymentView:
    """Read the Deployment."""
    spec = deployment["spec"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    return DeploymentView(
        uid=deployment["metadata"]["uid"],
        revision=labels.get(REVISION_LABEL, ""),
        replicas=int(spec.get("replicas", 1)),
        inputs_hash=(deployment["metadata"].get("annotations") or {}).get(INPUTS_ANNOTATION, ""),
        generation=deployment["metadata"].get("generation"),
    )


_CHECKED_FIELDS = {
    "model": "spec.model.uri",
    "accelerator": "spec.engine.accelerator",
    "engine": "spec.engine.image",
    "kvserving.eviction": "spec.kvCache.eviction",
    "kvserving.kv_cache_dtype": "spec.kvCache.dtype",
    "VLLM_": "spec.podTemplate.env",
}
"""What a check names (`kvserving_kernels.preflight`), by how it begins; flags have their owners."""


def is_check(pod: Object) -> bool:
    """Whether a pod of a KVServing is a check pod, not an engine."""
    return any(c.get("name") == PREFLIGHT_CONTAINER for c in pod["spec"]["containers"])


def refusal(message: str) -> str | None:
    """Sentence of a check's verdict "not ok"; None where the text is no such verdict."""
    for line in reversed(message.splitlines()):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("ok") is False:
            text = str(document.get("message") or document.get("reason") or "refused")
            field = str(document.get("field") or "")
            sentence = text if not field or field in text else f"{field}: {text}"
            asked = spec_field(field)
            return f"{asked}: {sentence}" if asked else sentence
    return None


def spec_field(field: str) -> str | None:
    """Field of a KVServing's spec by which a user sets what a check names; None for none."""
    for start, asked in _CHECKED_FIELDS.items():
        if field.startswith(start):
            return asked
    if not field.startswith("--"):
        return None
    owner = owner_of(field)
    if owner is None:
        return "spec.engine.extraArgs"
    return owner if owner.startswith("spec.") else None


def last_words(message: str) -> str:
    """Line of a crash's log tail that names the cause.

    It is the last one that speaks of an error, else the last one.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() and "Traceback" not in line]
    # vLLM's parent process ends with a hint at the child's error, which stands further up.
    rooted = [line for line in telling if "see root cause above" not in line.lower()]
    chosen = (rooted or telling or lines or ["no message"])[-1]
    return chosen[-MESSAGE_LIMIT:]


def seconds(timestamp: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 for none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _check_state(finished: bool, running: bool) -> CheckState:
    if finished:
        return CheckState.FINISHED
    return CheckState.RUNNING if running else CheckState.WAITING


def _container_status(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Sequence[Mapping[str, Any]] = status.get("containerStatuses") or ()
    return next((entry for entry in found if entry.get("name") == name), {})


def _condition(status: Mapping[str, Any], type: str) -> Mapping[str, Any]:
    found: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((entry for entry in found if entry.get("type") == type), {})


def _unschedulable(status: Mapping[str, Any]) -> str | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "no node can take the pod")
    return None


def _exit(state: Mapping[str, Any]) -> Exit | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return Exit(
        code=int(ended.get("exitCode") or 0),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
    )
