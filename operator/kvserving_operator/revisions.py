"""Which pod templates a KVServing has: the one in force, the last good one, the next one.

A template is stored as rendered and applied from here word for word. It is rendered anew only when
its *inputs* change: the fields of the spec that shape a pod. So an operator upgrade, which may
render the same inputs differently or bring another default image, changes no running pod.
docs/decisions/0001 tells the whole of it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from kvserving_operator.api.v1alpha1 import KVCacheDType, KVServingSpec, Switch
from kvserving_operator.hashing import content_hash
from kvserving_operator.live import KVSettings, answered, asked, offers_of
from kvserving_operator.observe import PodView
from kvserving_operator.render.children import Inputs
from kvserving_operator.render.engine import Engine, resolve
from kvserving_operator.render.names import ServingRef
from kvserving_operator.render.pod import pod_template, template_hash
from kvserving_operator.settings import Settings
from kvserving_operator.startup import contents, key
from kvserving_tuner.runtime_client import RuntimeState

REMEMBERED_VERDICTS = 10
"""Verdicts kept: enough for a user who goes back and forth between a few settings."""

TEMPLATE_FIELDS: Mapping[str, Any] = {
    "model": True,
    "engine": True,
    "kv_cache": True,
    "profile": True,
    "api_key_ref": True,
    "slo": {"ttft_milliseconds", "tpot_milliseconds"},
    "rollout": {"startup_timeout_seconds", "drain_seconds"},
    "pod_template": True,
}
"""Fields of a spec that shape a pod; the latency targets are edges of the engine's histograms."""


JUDGED_FIELDS: Mapping[str, Any] = {
    "model": {"uri", "revision"},
    "engine": {"accelerator", "parallelism", "weight_quantization", "extra_args"},
}
"""Fields that what a KV format costs in quality may depend on, beside the image: `extraArgs` choose
the attention backend, among other things. `version` only says what the image has."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Revision(_Frozen):
    """One rendered pod template and what it was rendered from."""

    inputs_hash: str
    accelerator: str
    image: str
    template: Mapping[str, Any]
    since: float
    """When it became what it is now (candidate, or in force), in seconds since the epoch."""
    base_hash: str = ""
    """Hash of the inputs without `kvCache`; empty where it is not known."""
    engines_hash: str = ""
    """Hash of what a verdict of a trial on its engines holds for; empty where it is not known."""
    start: KVSettings | None = None
    """What its engines start with; None where that is not known."""
    live: KVSettings | None = None
    """What its engines are asked to run with: the `kvCache` of the last spec that it followed."""
    offers: Mapping[str, Any] | None = None
    """What its engines take live; None before one of them has said so."""
    contents: Mapping[str, str] | None = None
    """What decides about its engines' answers, by field of the spec; None where it is not known."""

    @property
    def hash(self) -> str:
        """Hash of the template, as on its pods."""
        return template_hash(self.template)

    @property
    def plugin(self) -> bool:
        """Whether its engines can be asked by the runtime API."""
        return bool(self.template["spec"].get("readinessGates"))

    @property
    def keys(self) -> frozenset[str]:
        """Names of what a trial may turn down: all of the pod, or what decides about answers."""
        return frozenset({self.base_hash, key(self.contents or {})})

    @property
    def inputs(self) -> Inputs:
        """What the Deployment tells of its inputs."""
        contents = "" if self.contents is None else json.dumps(dict(self.contents))
        return Inputs(self.inputs_hash, self.base_hash, self.image, contents)

    def follows(self, spec: KVServingSpec, proven: bool) -> bool:
        """Whether its pods can run a spec without being replaced.

        Pods that are proven to work are worth waiting for until they say what they take live.
        """
        if self.inputs_hash == inputs_hash(spec):
            return True
        if self.base_hash != base_hash(spec) or spec.engine.plugin is Switch.DISABLED:
            return False
        return proven if self.offers is None else answered(asked(spec), self.offers)

    def heard(self, pods: Iterable[PodView], runtime: Mapping[str, RuntimeState]) -> Self:
        """Give it with what one of its engines has said that it takes live."""
        if self.offers is not None:
            return self
        state = next((runtime[pod.name] for pod in pods if pod.name in runtime), None)
        return self if state is None else self.model_copy(update={"offers": offers_of(state)})

    def following(self, spec: KVServingSpec, live: KVSettings) -> Self:
        """Give it with its engines asked to run these settings; `spec` is what it is made for."""
        update: dict[str, Any] = {"live": live}
        if self.inputs_hash == inputs_hash(spec):
            update |= {
                "base_hash": base_hash(spec),
                "engines_hash": engines_hash(spec, self.image),
                "start": asked(spec),
            }
        if "base_hash" in update or self.base_hash == base_hash(spec):
            # An operator that did not keep them may have rendered it.
            update["contents"] = contents(spec, self.image)
        return self.model_copy(update=update)


class Verdict(_Frozen):
    """What is known about a template: the check pod's answer, or what became of its pods."""

    template_hash: str
    ok: bool
    reason: str
    message: str
    retry: str = ""
    """Value of the retry annotation when it was judged; another value asks to judge again."""


class Candidates(_Frozen):
    """Pods of a template under trial, in a Deployment of their own."""

    revision: Revision
    pods: int = 0
    """How many there are to be."""
    freed: int = 0
    """Engines of the template in force that are not there meanwhile."""


class RevisionState(_Frozen):
    """Everything that a roll-out has to remember across a restart of the operator."""

    current: Revision | None = None
    good: Revision | None = None
    candidate: Revision | None = None
    verdicts: tuple[Verdict, ...] = ()
    candidates: Candidates | None = None
    """Pods that a trial has beside those in force; None for none."""

    @property
    def proven(self) -> bool:
        """Whether the template in force is one whose pods were all ready."""
        return (
            self.good is not None
            and self.current is not None
            and self.good.hash == self.current.hash
        )

    def with_current(self, current: Revision) -> Self:
        """Give the state with the template in force described anew."""
        update = {"current": current, **({"good": current} if self.proven else {})}
        return self.model_copy(update=update)

    def verdict(self, hash: str, retry: str) -> Verdict | None:
        """Verdict on a template, None where it is unknown or to be judged again."""
        found = next((v for v in self.verdicts if v.template_hash == hash), None)
        return None if found and not found.ok and found.retry != retry else found

    def judged(self, verdict: Verdict) -> Self:
        """Give the state with this verdict as the newest one on its template."""
        others = tuple(v for v in self.verdicts if v.template_hash != verdict.template_hash)
        return self.model_copy(update={"verdicts": (*others, verdict)[-REMEMBERED_VERDICTS:]})


def inputs_hash(spec: KVServingSpec) -> str:
    """Hash of what the user asked of a pod.

    Values equal to their defaults are left out: a field that a later operator adds, with a default,
    must not look like an edit.
    """
    return content_hash(_inputs(spec))


def base_hash(spec: KVServingSpec) -> str:
    """Hash of what the user asked of a pod and no engine can change while it runs."""
    return content_hash({key: value for key, value in _inputs(spec).items() if key != "kv_cache"})


def engines_hash(spec: KVServingSpec, image: str) -> str:
    """Hash of model, engine and accelerator: a verdict on a change holds for no others."""
    chosen = spec.model_dump(
        mode="json", by_alias=False, exclude_defaults=True, include=dict(JUDGED_FIELDS)
    )
    return content_hash({"spec": chosen, "image": image})


def _inputs(spec: KVServingSpec) -> dict[str, Any]:
    chosen = spec.model_dump(
        mode="json", by_alias=False, exclude_defaults=True, include=dict(TEMPLATE_FIELDS)
    )
    return {key: value for key, value in chosen.items() if value}


def render_revision(
    ref: ServingRef,
    spec: KVServingSpec,
    settings: Settings,
    state: RevisionState,
    now: float,
    live: KVSettings | None = None,
    tried: Iterable[KVCacheDType] = (),
) -> Revision:
    """Render a spec anew; the image in use stays unless the spec names one.

    Engines start with the spec's `kvCache` and are asked to run `live`, the same if it is left out.
    They are to have blocks that the formats in `tried` can be stored in.
    """
    engine = engine_of(ref, spec, settings, state, tried)
    return Revision(
        inputs_hash=inputs_hash(spec),
        accelerator=spec.engine.accelerator.value,
        image=engine.image,
        template=pod_template(ref, engine),
        since=now,
        base_hash=base_hash(spec),
        engines_hash=engines_hash(spec, engine.image),
        start=asked(spec),
        live=live or asked(spec),
        contents=contents(spec, engine.image),
    )


def engine_of(
    ref: ServingRef,
    spec: KVServingSpec,
    settings: Settings,
    state: RevisionState,
    tried: Iterable[KVCacheDType],
) -> Engine:
    """Resolve a spec's engine with the image already in use."""
    used = state.current
    same = used is not None and used.accelerator == spec.engine.accelerator.value
    return resolve(ref.name, spec, settings, used.image if used and same else None, tried)
