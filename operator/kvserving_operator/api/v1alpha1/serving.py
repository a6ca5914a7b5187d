"""KVServing: one served model."""

from typing import Annotated

from pydantic import Field

from kvserving_kernels.formats import NATIVE, KVCacheDType
from kvserving_operator.api.base import ApiModel
from kvserving_operator.api.metadata import ObjectMeta, ResourceModel
from kvserving_operator.api.quantity import quantity_value
from kvserving_operator.api.rules import Rule, cel_string
from kvserving_operator.api.v1alpha1.engine import Accelerator, EngineSpec, Switch
from kvserving_operator.api.v1alpha1.kv_cache import EvictionPolicy, KVCacheSpec
from kvserving_operator.api.v1alpha1.model import ModelSpec
from kvserving_operator.api.v1alpha1.monitoring import MonitoringSpec
from kvserving_operator.api.v1alpha1.pod_template import (
    ObjectReference,
    PodTemplateSpec,
    SecretKeyReference,
)
from kvserving_operator.api.v1alpha1.policy import PolicyOverrides
from kvserving_operator.api.v1alpha1.quality import ServedQualitySpec
from kvserving_operator.api.v1alpha1.rollout import RolloutSpec
from kvserving_operator.api.v1alpha1.routing import RoutingSpec
from kvserving_operator.api.v1alpha1.serving_status import KVServingStatus
from kvserving_operator.api.v1alpha1.tuning import SLOSpec, TuningSpec
from kvserving_tuner.profiles import ProfileName

# The longest name of a Service is `<name>-candidate`, a DNS label of at most 63 characters.
MAX_NAME_LENGTH = 52


def _dtype_allowed(spec: "KVServingSpec") -> bool:
    allowed = spec.tuning.allowed_dtypes
    return (
        allowed is None
        or spec.kv_cache.dtype is KVCacheDType.AUTO
        or spec.kv_cache.dtype in allowed
    )


def _knobs_inside(spec: "KVServingSpec") -> bool:
    return all(
        bound is None or bound <= spec.engine.max_num_seqs
        for knob in spec.tuning.knobs
        for bound in (knob.minimum, knob.maximum)
    )


def _plugin_evicts(spec: "KVServingSpec") -> bool:
    policy = spec.kv_cache.eviction.policy
    return policy is EvictionPolicy.NONE or spec.engine.plugin is Switch.ENABLED


def _plugin_stores(spec: "KVServingSpec") -> bool:
    return spec.kv_cache.dtype in NATIVE or spec.engine.plugin is Switch.ENABLED


def _window_within(spec: "KVServingSpec") -> bool:
    window, length = spec.kv_cache.eviction.window_tokens, spec.engine.max_model_len
    return window is None or length is None or window <= length


def _window_holds_a_block(spec: "KVServingSpec") -> bool:
    window, block = spec.kv_cache.eviction.window_tokens, spec.engine.block_size
    return window is None or block is None or window >= block


def _memory_within(spec: "KVServingSpec") -> bool:
    cache, limit = spec.engine.kv_cache_memory, spec.pod_template.resources.limits.get("memory")
    if spec.engine.accelerator is not Accelerator.CPU or cache is None or limit is None:
        return True
    return quantity_value(cache) < quantity_value(limit)


_OWN_FORMATS = ", ".join(cel_string(dtype) for dtype in KVCacheDType if dtype not in NATIVE)


class KVServingSpec(ApiModel):
    """What is served, on which engine, and what the tuner may change."""

    rules = (
        Rule(
            cel="!has(self.tuning.allowedDtypes) || self.kvCache.dtype == 'auto'"
            " || self.kvCache.dtype in self.tuning.allowedDtypes",
            holds=_dtype_allowed,
            message="must hold spec.kvCache.dtype ({self.kvCache.dtype}), which is served now",
            field="tuning.allowedDtypes",
        ),
        Rule(
            cel=f"!(self.kvCache.dtype in [{_OWN_FORMATS}]) || self.engine.plugin == 'Enabled'",
            holds=_plugin_stores,
            message="must be Enabled for spec.kvCache.dtype ({self.kvCache.dtype}), which the"
            " plugin stores",
            field="engine.plugin",
        ),
        Rule(
            cel="self.kvCache.eviction.policy == 'None' || self.engine.plugin == 'Enabled'",
            holds=_plugin_evicts,
            message="must be Enabled for spec.kvCache.eviction.policy"
            " ({self.kvCache.eviction.policy}), which the plugin carries out",
            field="engine.plugin",
        ),
        Rule(
            cel="!has(self.kvCache.eviction.windowTokens) || !has(self.engine.maxModelLen)"
            " || self.kvCache.eviction.windowTokens <= self.engine.maxModelLen",
            holds=_window_within,
            message="must be at most spec.engine.maxModelLen ({self.engine.maxModelLen}),"
            " got {self.kvCache.eviction.windowTokens}",
            field="kvCache.eviction.windowTokens",
        ),
        Rule(
            cel="!has(self.kvCache.eviction.windowTokens) || !has(self.engine.blockSize)"
            " || self.kvCache.eviction.windowTokens >= self.engine.blockSize",
            holds=_window_holds_a_block,
            message="must be at least spec.engine.blockSize ({self.engine.blockSize}),"
            " got {self.kvCache.eviction.windowTokens}",
            field="kvCache.eviction.windowTokens",
        ),
        Rule(
            cel="self.engine.accelerator != 'CPU' || !has(self.engine.kvCacheMemory)"
            " || !has(self.podTemplate.resources.limits)"
            " || !('memory' in self.podTemplate.resources.limits)"
            " || quantity(string(self.engine.kvCacheMemory)).compareTo("
            "quantity(string(self.podTemplate.resources.limits['memory']))) < 0",
            holds=_memory_within,
            message="must be less than spec.podTemplate.resources.limits.memory, which also holds"
            " the weights, got {self.engine.kvCacheMemory}",
            field="engine.kvCacheMemory",
        ),
        Rule(
            cel="self.tuning.knobs.all(knob,"
            " (!has(knob.minimum) || knob.minimum <= self.engine.maxNumSeqs)"
            " && (!has(knob.maximum) || knob.maximum <= self.engine.maxNumSeqs))",
            holds=_knobs_inside,
            message="minimum and maximum of MaxActiveSeqs must be at most"
            " spec.engine.maxNumSeqs ({self.engine.maxNumSeqs})",
            field="tuning.knobs",
        ),
        Rule(
            cel="!has(self.rollbackPolicy) || has(self.rollbackPolicyRef)",
            holds=lambda spec: spec.rollback_policy is None or spec.rollback_policy_ref is not None,
            message="is required by spec.rollbackPolicy, which changes parts of a policy",
            field="rollbackPolicyRef",
        ),
    )

    model: ModelSpec
    """The model that is served."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Engine pods; an autoscaler may own this through the scale subresource."""
    engine: EngineSpec
    """Engine image and start-up settings."""
    kv_cache: KVCacheSpec = Field(default_factory=KVCacheSpec, json_schema_extra={"default": {}})
    """Format and eviction of the KV cache."""
    profile: ProfileName = ProfileName.CUSTOM
    """What the model is used for. Stands in for `tuning.allowedDtypes`, for the tokens of a step on
    GPUs and, with Video, for limits of frames, where they are not set; what is set goes before it.
    Custom assumes nothing. An edit replaces pods."""
    slo: SLOSpec = Field(default_factory=SLOSpec, json_schema_extra={"default": {}})
    """Latency targets of the service."""
    tuning: TuningSpec = Field(default_factory=TuningSpec, json_schema_extra={"default": {}})
    """What the tuner may change."""
    rollback_policy_ref: ObjectReference | None = None
    """KVRollbackPolicy in the same namespace that judges changes; a missing one blocks them with
    a reason."""
    rollback_policy: PolicyOverrides | None = None
    """What this KVServing wants otherwise than its policy says; the rest is the policy's."""
    api_key_ref: SecretKeyReference | None = None
    """Secret with the key that users send as a bearer token to paths below /v1; without it anybody
    who reaches the Service may ask. Engines read it when they start: to change it, name another
    Secret. Metrics and health need no key."""
    quality: ServedQualitySpec = Field(
        default_factory=ServedQualitySpec, json_schema_extra={"default": {}}
    )
    """How output quality is measured."""
    routing: RoutingSpec | None = None
    """The way in through a gateway; without it trials share traffic out by pods."""
    monitoring: MonitoringSpec = Field(
        default_factory=MonitoringSpec, json_schema_extra={"default": {}}
    )
    """Source of observations."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, json_schema_extra={"default": {}})
    """How pods are replaced."""
    pod_template: PodTemplateSpec = Field(
        default_factory=PodTemplateSpec, json_schema_extra={"default": {}}
    )
    """Placement, resources and credentials of the engine pods."""


class KVServing(ResourceModel):
    """One model served on vLLM with a tuned KV cache."""

    rules = (
        Rule(
            cel=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}"
            " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            holds=lambda serving: serving.metadata.is_label(MAX_NAME_LENGTH),
            message=f"metadata.name must be a DNS label that starts with a letter and has at most"
            f" {MAX_NAME_LENGTH} characters, since Services carry it",
        ),
    )

    metadata: ObjectMeta
    """Standard object metadata."""
    spec: KVServingSpec
    """What the user wants."""
    status: KVServingStatus = Field(default_factory=KVServingStatus)
    """What the operator observed and decided."""
