"""What `spec.kvCache` asks of engines that run, and which of them differ from it; pure.

An engine that offers a format and an eviction policy takes them while it serves. They are then sent
to it instead of entering a new pod template: the template keeps what it was rendered with, and each
container that is started from it gets the rest before it counts as ready.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvserving_operator.api.v1alpha1 import (
    EvictionPolicy,
    EvictionSpec,
    KVCacheDType,
    KVServingSpec,
)
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
        return described(self.kv_cache_dtype, self.evicted)

    @property
    def evicted(self) -> str:
        """Eviction in words."""
        policy, window = str(self.eviction["policy"]), self.eviction.get("window_tokens")
        return policy if window is None else f"{policy} of {window} tokens"

    def key(self, retry: str) -> str:
        """Names one attempt: these settings under one value of the retry annotation."""
        return content_hash({"settings": self.model_dump(mode="json"), "retry": retry})


def described(dtype: str, policy: str) -> str:
    """Format and eviction in words."""
    return dtype if policy == EvictionPolicy.NONE.value else f"{dtype} with {policy}"


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
    return KVSettings(
        kv_cache_dtype=spec.kv_cache.dtype.value,
        eviction=runtime_eviction(spec.kv_cache.eviction),
    )


def asking_for(spec: KVServingSpec, settings: KVSettings) -> KVServingSpec:
    """Give a spec that asks for these settings, and for all else as before."""
    if settings == asked(spec):
        return spec
    policy = EvictionPolicy(settings.eviction["policy"])
    eviction = EvictionSpec.model_construct(**{**settings.eviction, "policy": policy})
    dtype = KVCacheDType(settings.kv_cache_dtype)
    kv_cache = spec.kv_cache.model_copy(update={"dtype": dtype, "eviction": eviction})
    return spec.model_copy(update={"kv_cache": kv_cache})


def runtime_eviction(eviction: EvictionSpec) -> dict[str, Any]:
    """Eviction in the runtime API's words."""
    fields = {
        "policy": eviction.policy.value,
        "sink_tokens": eviction.sink_tokens,
        "window_tokens": eviction.window_tokens,
        "budget_percent": eviction.budget_percent,
    }
    return {name: value for name, value in fields.items() if value is not None}


def offers_of(state: RuntimeState) -> dict[str, Any]:
    """What an engine's envelope says of these fields; no key for one that it does not take live."""
    return {field: state.envelope[field] for field in FIELDS if field in state.envelope}


def offered(settings: KVSettings, offers: Mapping[str, Any]) -> bool:
    """Whether an engine with these offers takes the settings live."""
    evicts_nothing = settings.eviction == NO_EVICTION and "eviction" not in offers
    return _takes(offers, "kv_cache_dtype", settings.kv_cache_dtype) and (
        evicts_nothing or _takes_eviction(offers, settings.eviction)
    )


def why_not_offered(settings: KVSettings, offers: Mapping[str, Any]) -> str:
    """Say what speaks against it where an engine with these offers does not take them live."""
    for field, value in (
        ("kv_cache_dtype", settings.kv_cache_dtype),
        ("eviction", settings.eviction["policy"]),
    ):
        offer = offers.get(field)
        if not isinstance(offer, Mapping):
            continue
        if _refuses(offers, field, value):
            return f"{value}: {offer['unavailable'][value]}"
        if not _takes(offers, field, value):
            names = ", ".join(map(str, offer.get("values") or ())) or "nothing"
            return f"expected one of {names}, got {value}"
    return f"{settings}: out of the bounds that they offer"


def answered(settings: KVSettings, offers: Mapping[str, Any]) -> bool:
    """Whether an engine takes the settings live or says why it can have them in no way.

    Another engine with the same start-up settings could not have them either, so that nothing is
    won by replacing pods: the engine is asked, and its refusal is what the user is told.
    """
    evicts_nothing = settings.eviction == NO_EVICTION and "eviction" not in offers
    return _answers(offers, "kv_cache_dtype", settings.kv_cache_dtype) and (
        evicts_nothing or _answers_eviction(offers, settings.eviction)
    )


def _takes(offers: Mapping[str, Any], field: str, value: object) -> bool:
    offer = offers.get(field)
    values = offer.get("values") if isinstance(offer, Mapping) else None
    return isinstance(values, list | tuple) and value in values


def _refuses(offers: Mapping[str, Any], field: str, value: object) -> bool:
    """Whether an engine says why it does not take a value."""
    offer = offers.get(field)
    reasons = offer.get("unavailable") if isinstance(offer, Mapping) else None
    return isinstance(reasons, Mapping) and value in reasons


def _answers(offers: Mapping[str, Any], field: str, value: object) -> bool:
    return _takes(offers, field, value) or _refuses(offers, field, value)


def _answers_eviction(offers: Mapping[str, Any], eviction: Mapping[str, Any]) -> bool:
    policy = eviction["policy"]
    return _takes_eviction(offers, eviction) or _refuses(offers, "eviction", policy)


def _takes_eviction(offers: Mapping[str, Any], eviction: Mapping[str, Any]) -> bool:
    """Whether policy and each of its sizes lie within what is offered."""
    if not _takes(offers, "eviction", eviction["policy"]):
        return False
    bounds = offers["eviction"]
    for name, value in eviction.items():
        if name == "policy":
            continue
        bound = bounds.get(name)
        if not isinstance(bound, Mapping) or not bound["minimum"] <= value <= bound["maximum"]:
            return False
    return True


def runs(settings: KVSettings, state: RuntimeState) -> bool:
    """Whether an engine reports these very settings."""
    return _runs_dtype(settings, state) and _runs_eviction(settings, state)


def _runs_dtype(settings: KVSettings, state: RuntimeState) -> bool:
    dtype = settings.kv_cache_dtype
    resolved = state.startup.get("dtype") if dtype == AUTO else dtype
    return bool(state.effective.kv_cache_dtype == resolved)


def _runs_eviction(settings: KVSettings, state: RuntimeState) -> bool:
    effective = state.effective.eviction.model_dump()
    return all(effective.get(name) == value for name, value in settings.eviction.items())


def differences(settings: KVSettings, state: RuntimeState) -> dict[str, Any]:
    """What has to be sent to an engine, by field; nothing for what it has no answer to."""
    changes: dict[str, Any] = {}
    offers = offers_of(state)
    dtype = settings.kv_cache_dtype
    if not _runs_dtype(settings, state) and _answers(offers, "kv_cache_dtype", dtype):
        changes["kv_cache_dtype"] = dtype
    if not _runs_eviction(settings, state) and _answers_eviction(offers, settings.eviction):
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
    *,
    at_once: bool = False,
) -> tuple[str, ...]:
    """Pods to send the settings to now.

    Those that serve nobody yet go at once. Of those that serve, one at a time: while it computes
    its requests again, the others take the load. Once one has refused, no other is asked. With
    `at_once` all are asked together.
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
    most = len(serving) if at_once else int(not refused)
    return (*waiting, *serving[:most])
