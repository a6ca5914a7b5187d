"""What `spec.kvCache` asks of engines that run, and which of them differ from it; pure.

An engine that offers a format and an eviction policy takes them while it serves. They are then sent
to it instead of entering a new pod template: the template keeps what it was rendered with, and each
container that is started from it gets the rest before it counts as ready.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvserving_operator.api.v1alpha1 import EvictionPolicy, KVServingSpec
from kvserving_operator.hashing import content_hash
from kvserving_operator.observe import PodView
from kvserving_tuner.runtime_client import RuntimeState

AUTO = "auto"
NO_EVICTION: Mapping[str, Any] = {"policy": EvictionPolicy.NONE.value}
FIELDS = ("kv_cache_dtype", "eviction")
"""Fields of the runtime API that stand for `spec.kvCache`."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class KVSettings(_Frozen):
    """Format and eviction as asked for, in the runtime API's words."""

    kv_cache_dtype: str = AUTO
    eviction: Mapping[str, Any] = Field(default_factory=lambda: dict(NO_EVICTION))

    def __str__(self) -> str:
        policy = self.eviction["policy"]
        return (
            self.kv_cache_dtype
            if self.eviction == NO_EVICTION
            else (f"{self.kv_cache_dtype} with {policy}")
        )

    def key(self, retry: str) -> str:
        """Names one attempt: these settings under one value of the retry annotation."""
        return content_hash({"settings": self.model_dump(mode="json"), "retry": retry})


class Refusal(_Frozen):
    """A pod whose engine could not take the settings: it serves on with what it had."""

    pod: str
    container: str
    """Container that was asked."""
    key: str
    message: str
    ended: bool = False
    """Noted before the engine was asked: it counts only if the engine ended over it."""


def asked(spec: KVServingSpec) -> KVSettings:
    """What a spec asks for."""
    eviction = spec.kv_cache.eviction
    fields = {
        "policy": eviction.policy.value,
        "sink_tokens": eviction.sink_tokens,
        "window_tokens": eviction.window_tokens,
        "budget_percent": eviction.budget_percent,
    }
    return KVSettings(
        kv_cache_dtype=spec.kv_cache.dtype.value,
        eviction={name: value for name, value in fields.items() if value is not None},
    )


def offers_of(state: RuntimeState) -> dict[str, tuple[str, ...]]:
    """Formats and eviction policies that an engine takes live; no key where it takes none."""
    found = {}
    for field, names in (("kv_cache_dtype", "values"), ("eviction", "policies")):
        offer = state.envelope.get(field)
        values = offer.get(names) if isinstance(offer, Mapping) else None
        if isinstance(values, list):
            found[field] = tuple(str(value) for value in values)
    return found


def offered(settings: KVSettings, offers: Mapping[str, Iterable[str]]) -> bool:
    """Whether an engine with these offers takes the settings live."""
    policy = settings.eviction["policy"]
    policies = offers.get("eviction", (NO_EVICTION["policy"],))
    return settings.kv_cache_dtype in offers.get("kv_cache_dtype", ()) and policy in policies


def differences(settings: KVSettings, state: RuntimeState) -> dict[str, Any]:
    """What has to be sent to an engine, by field; nothing for what it does not take live."""
    changes: dict[str, Any] = {}
    offers = offers_of(state)
    dtype = settings.kv_cache_dtype
    resolved = state.startup.get("dtype") if dtype == AUTO else dtype
    if dtype in offers.get("kv_cache_dtype", ()) and state.effective.kv_cache_dtype != resolved:
        changes["kv_cache_dtype"] = dtype
    effective = state.effective.eviction.model_dump()
    if settings.eviction["policy"] in offers.get("eviction", ()) and any(
        effective.get(name) != value for name, value in settings.eviction.items()
    ):
        changes["eviction"] = dict(settings.eviction)
    return changes


def current_refusals(
    refusals: Iterable[Refusal], pods: Iterable[PodView], key: str
) -> tuple[Refusal, ...]:
    """Refusals of these very settings that still count."""
    containers = {pod.name: pod.container_id for pod in pods}

    def counts(refusal: Refusal) -> bool:
        container = containers.get(refusal.pod)
        asked_before = refusal.key == key and container is not None
        return asked_before and (not refusal.ended or container != refusal.container)

    return tuple(refusal for refusal in refusals if counts(refusal))


def next_to_change(
    pods: Iterable[PodView],
    runtime: Mapping[str, RuntimeState],
    settings: KVSettings,
    refusals: Iterable[Refusal],
) -> tuple[str, ...]:
    """Pods to send the settings to now.

    Those that serve nobody yet go at once. Of those that serve, one at a time: while it computes
    its requests again, the others take the load. Once one has refused, no other is asked.
    """
    refused = {each.pod for each in refusals}
    late = [
        pod
        for pod in pods
        if pod.name in runtime
        and pod.name not in refused
        and differences(settings, runtime[pod.name])
    ]
    waiting = [pod.name for pod in late if not pod.ready]
    serving = sorted(pod.name for pod in late if pod.ready)
    return (*waiting, *serving[: 0 if refused else 1])
