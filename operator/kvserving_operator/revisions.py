"""Which pod templates a KVServing has: the one in force, the last good one, the next one.

A template is stored as rendered and applied from here word for word. It is rendered anew only when
its *inputs* change: the fields of the spec that shape a pod. So an operator upgrade, which may
render the same inputs differently or bring another default image, changes no running pod.
docs/decisions/0001 tells the whole of it.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from kvserving_operator.api.v1alpha1 import KVServingSpec
from kvserving_operator.hashing import content_hash
from kvserving_operator.render.engine import Engine, resolve
from kvserving_operator.render.names import ServingRef
from kvserving_operator.render.pod import pod_template, template_hash
from kvserving_operator.settings import Settings

REMEMBERED_VERDICTS = 10
"""Verdicts kept: enough for a user who goes back and forth between a few settings."""

TEMPLATE_FIELDS: Mapping[str, Any] = {
    "model": True,
    "engine": True,
    "kv_cache": True,
    "slo": {"ttft_milliseconds", "tpot_milliseconds"},
    "rollout": {"startup_timeout_seconds", "drain_seconds"},
    "pod_template": True,
}
"""Fields of a spec that shape a pod; the latency targets are edges of the engine's histograms."""


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

    @property
    def hash(self) -> str:
        """Hash of the template, as on its pods."""
        return template_hash(self.template)


class Verdict(_Frozen):
    """What is known about a template: the check pod's answer, or what became of its pods."""

    template_hash: str
    ok: bool
    reason: str
    message: str
    retry: str = ""
    """Value of the retry annotation when it was judged; another value asks to judge again."""


class RevisionState(_Frozen):
    """Everything that a roll-out has to remember across a restart of the operator."""

    current: Revision | None = None
    good: Revision | None = None
    candidate: Revision | None = None
    verdicts: tuple[Verdict, ...] = ()

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
    chosen = spec.model_dump(
        mode="json", by_alias=False, exclude_defaults=True, include=dict(TEMPLATE_FIELDS)
    )
    return content_hash({key: value for key, value in chosen.items() if value})


def render_revision(
    ref: ServingRef, spec: KVServingSpec, settings: Settings, state: RevisionState, now: float
) -> Revision:
    """Render a spec anew; the image in use stays unless the spec names one."""
    engine = engine_of(ref, spec, settings, state)
    return Revision(
        inputs_hash=inputs_hash(spec),
        accelerator=spec.engine.accelerator.value,
        image=engine.image,
        template=pod_template(ref, engine),
        since=now,
    )


def engine_of(
    ref: ServingRef, spec: KVServingSpec, settings: Settings, state: RevisionState
) -> Engine:
    """Resolve a spec's engine with the image already in use."""
    used = state.current
    same = used is not None and used.accelerator == spec.engine.accelerator.value
    return resolve(ref.name, spec, settings, used.image if used and same else None)
