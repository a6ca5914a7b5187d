"""Version v1alpha1 of the custom resources."""

from kvserving_kernels.formats import KVCacheDType
from kvserving_operator.api.v1alpha1.engine import (
    Accelerator,
    CompileCache,
    EngineSpec,
    Parallelism,
    Switch,
)
from kvserving_operator.api.v1alpha1.kv_cache import (
    EvictionPolicy,
    EvictionSpec,
    KVCacheSpec,
)
from kvserving_operator.api.v1alpha1.model import ModelSpec
from kvserving_operator.api.v1alpha1.monitoring import (
    MonitoringSource,
    MonitoringSpec,
    PrometheusSpec,
)
from kvserving_operator.api.v1alpha1.parse import (
    PARSERS,
    overridden,
    parse_policy,
    parse_serving,
    parse_trial,
)
from kvserving_operator.api.v1alpha1.pod_template import (
    EnvVar,
    ObjectReference,
    PodTemplateSpec,
    Resources,
    SecretKeyReference,
    Toleration,
)
from kvserving_operator.api.v1alpha1.policy import (
    KVRollbackPolicy,
    KVRollbackPolicySpec,
    KVRollbackPolicyStatus,
    SplitBy,
)
from kvserving_operator.api.v1alpha1.quality import (
    ProbeSetKind,
    ProbeSetReference,
    ServedQualitySpec,
)
from kvserving_operator.api.v1alpha1.rollout import RolloutSpec
from kvserving_operator.api.v1alpha1.routing import GatewayReference, RoutingSpec
from kvserving_operator.api.v1alpha1.serving import KVServing, KVServingSpec
from kvserving_operator.api.v1alpha1.serving_status import (
    MAX_PODS,
    MIXED,
    CapacityStatus,
    CostClass,
    DecisionAction,
    DecisionStatus,
    EffectiveStatus,
    Evidence,
    KVServingStatus,
    PodState,
    PodStatus,
    PreflightState,
    PreflightStatus,
    PromotedValue,
    Recommendation,
    Sessions,
    Split,
    TrafficStatus,
    VerdictStatus,
)
from kvserving_operator.api.v1alpha1.trial import (
    ChangeSpec,
    Control,
    KVTrial,
    KVTrialSpec,
    KVTrialStatus,
    RequestedBy,
    RequiredGain,
    TrialEvidence,
    TrialState,
    Verdict,
)
from kvserving_operator.api.v1alpha1.tuning import (
    CooldownSpec,
    KnobName,
    KnobSpec,
    SLOSpec,
    TuningMode,
    TuningSpec,
)

GROUP = "kvserving.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

__all__ = [
    "API_VERSION",
    "GROUP",
    "MAX_PODS",
    "MIXED",
    "PARSERS",
    "VERSION",
    "Accelerator",
    "CapacityStatus",
    "ChangeSpec",
    "CompileCache",
    "Control",
    "CooldownSpec",
    "CostClass",
    "DecisionAction",
    "DecisionStatus",
    "EffectiveStatus",
    "EngineSpec",
    "EnvVar",
    "EvictionPolicy",
    "EvictionSpec",
    "Evidence",
    "GatewayReference",
    "KVCacheDType",
    "KVCacheSpec",
    "KVRollbackPolicy",
    "KVRollbackPolicySpec",
    "KVRollbackPolicyStatus",
    "KVServing",
    "KVServingSpec",
    "KVServingStatus",
    "KVTrial",
    "KVTrialSpec",
    "KVTrialStatus",
    "KnobName",
    "KnobSpec",
    "ModelSpec",
    "MonitoringSource",
    "MonitoringSpec",
    "ObjectReference",
    "Parallelism",
    "PodState",
    "PodStatus",
    "PodTemplateSpec",
    "PreflightState",
    "PreflightStatus",
    "ProbeSetKind",
    "ProbeSetReference",
    "PrometheusSpec",
    "PromotedValue",
    "Recommendation",
    "RequestedBy",
    "RequiredGain",
    "Resources",
    "RolloutSpec",
    "RoutingSpec",
    "SLOSpec",
    "SecretKeyReference",
    "ServedQualitySpec",
    "Sessions",
    "Split",
    "SplitBy",
    "Switch",
    "Toleration",
    "TrafficStatus",
    "TrialEvidence",
    "TrialState",
    "TuningMode",
    "TuningSpec",
    "Verdict",
    "VerdictStatus",
    "overridden",
    "parse_policy",
    "parse_serving",
    "parse_trial",
]
