"""Condition types and reasons that a user meets in `kubectl describe`, with a sentence each.

Reasons are machine-readable and stable: dashboards and scripts may match on them. The generated
reference lists them all.
"""

from enum import StrEnum
from typing import Self


class _Explained(StrEnum):
    """A string enum whose members carry a sentence."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member


class ConditionType(_Explained):
    """Types of the conditions of a KVServing."""

    READY = "Ready", "At least one engine answers completions; it may still run older settings."
    PROGRESSING = "Progressing", "The pods are on their way to the current spec."
    DEGRADED = (
        "Degraded",
        "Something needs a person: part of the service or of the spec is not in force.",
    )
    METRICS_AVAILABLE = "MetricsAvailable", "The numbers that decisions need are present and fresh."
    QUALITY_GATE = "QualityGate", "The last verdict on the output quality of the settings in force."
    TUNING_ACTIVE = "TuningActive", "The tuner may change settings of this service now."
    ROLLED_BACK = (
        "RolledBack",
        "The settings in force differ from the spec because a trial was rolled back.",
    )
    ROUTED = "Routed", "Users' requests come in through a gateway's route, whose weights count."
    ACCEPTED = "Accepted", "The resource is valid and in use (policies and trials)."


class Reason(_Explained):
    """Reasons of conditions and Events."""

    # Ready
    SERVING = "Serving", "All wanted engines answer completions."
    PARTIALLY_READY = "PartiallyReady", "Some engines answer completions, fewer than wanted."
    NO_READY_ENGINE = "NoReadyEngine", "No engine answers completions."
    STARTING = "Starting", "Engines load the model and have not answered yet."
    SCALED_TO_ZERO = "ScaledToZero", "The service has zero replicas by its own spec."
    TERMINATING = "Terminating", "The resource is being deleted and its children are removed."
    # Progressing and Degraded
    ROLLOUT_COMPLETE = "RolloutComplete", "Every pod runs the current spec."
    ROLLING_OUT = "RollingOut", "Pods are being replaced to run the current spec."
    ROLLOUT_FAILED = (
        "RolloutFailed",
        "New pods did not become ready in time; earlier pods serve on.",
    )
    PREFLIGHT_RUNNING = (
        "PreflightRunning",
        "The new engine arguments are being checked before any pod is replaced.",
    )
    PREFLIGHT_FAILED = (
        "PreflightFailed",
        "The engine rejected the new settings; no serving pod was touched.",
    )
    PREFLIGHT_SKIPPED = (
        "PreflightSkipped",
        "The check of the new settings found no room or gave no answer; pods roll unchecked.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "No node can take a pod: the message says which resource is missing.",
    )
    IMAGE_PULL_FAILED = "ImagePullFailed", "The engine image cannot be pulled."
    ENGINE_CRASHED = (
        "EngineCrashed",
        "An engine process ends again and again; the message holds its last words.",
    )
    OUT_OF_MEMORY = "OutOfMemory", "An engine was ended for using more memory than it may."
    INVALID_SPEC = "InvalidSpec", "The spec breaks a rule; the message names the field."
    APPLYING_SETTINGS = (
        "ApplyingSettings",
        "Engines take the spec's KV cache settings while they serve, one after another.",
    )
    SETTINGS_REFUSED = (
        "SettingsRefused",
        "An engine could not take the spec's KV cache settings and serves on with the former ones.",
    )
    API_ERROR = "ApiError", "The Kubernetes API refused or failed a call; it is tried again."
    AS_EXPECTED = "AsExpected", "Nothing is wrong."
    # MetricsAvailable
    METRICS_FRESH = "MetricsFresh", "Every number that decisions need is present and fresh."
    METRICS_MISSING = "MetricsMissing", "An engine's metrics cannot be read."
    METRICS_STALE = "MetricsStale", "The newest numbers are too old to decide on."
    METRIC_NAME_UNKNOWN = (
        "MetricNameUnknown",
        "The engine publishes none of the known names of a metric.",
    )
    PROMETHEUS_ERROR = "PrometheusError", "Prometheus did not answer or refused the query."
    NO_TRAFFIC = "NoTraffic", "No request arrived in the window, so there is nothing to judge."
    NOT_OBSERVED = "NotObserved", "The service has not been observed yet."
    # QualityGate
    PASSED = "Passed", "The quality of the settings in force is within the policy's bounds."
    FAILED = "Failed", "The quality fell below the policy's bounds."
    INCONCLUSIVE = "Inconclusive", "The evidence allows no verdict yet."
    NOT_RUN = "NotRun", "Quality has not been measured for the settings in force."
    POLICY_INVALID = (
        "PolicyInvalid",
        "The rollback policy, or it together with spec.rollbackPolicy, is not valid, so nothing is"
        " tried.",
    )
    POLICY_NOT_FOUND = (
        "PolicyNotFound",
        "The rollback policy that the spec names does not exist, so nothing is tried.",
    )
    # TuningActive
    TUNING_OFF = "TuningOff", "The spec switches tuning off."
    RECOMMEND_ONLY = "RecommendOnly", "The tuner writes recommendations and changes nothing."
    TUNING = "Tuning", "The tuner observes and may act."
    COOLING_DOWN = "CoolingDown", "A recent change must settle first."
    WAITING_FOR_METRICS = "WaitingForMetrics", "The tuner holds because numbers are missing."
    WAITING_FOR_ENGINES = "WaitingForEngines", "The tuner holds until the engines are ready."
    NO_RUNTIME_API = "NoRuntimeAPI", "The engine has no runtime API: live settings need a restart."
    RUNTIME_REJECTED = (
        "RuntimeRejected",
        "The engine refused a live change; the former setting serves on.",
    )
    # RolledBack
    NOT_ROLLED_BACK = "NotRolledBack", "The settings in force are those of the spec."
    TRIAL_ROLLED_BACK = "TrialRolledBack", "A trial of the spec's setting failed and was undone."
    TRIAL_RUNNING = "TrialRunning", "A trial of a change is under way."
    # Routed
    ROUTE_ACCEPTED = "RouteAccepted", "The gateway has taken the operator's HTTPRoute up."
    ROUTE_NOT_ACCEPTED = (
        "RouteNotAccepted",
        "The gateway's controller refuses the HTTPRoute; the message holds its words.",
    )
    ROUTE_PENDING = (
        "RoutePending",
        "No controller has answered the HTTPRoute: the gateway may not exist.",
    )
    ROUTE_REJECTED = (
        "RouteRejected",
        "The Kubernetes API refuses or fails a call that the route needs; it stands as it did.",
    )
    GATEWAY_API_MISSING = "GatewayApiMissing", "The cluster does not have the Gateway API."
    NO_GATEWAY = "NoGateway", "The spec names no gateway: connections spread over all pods."
    # Accepted
    ACCEPTED = "Accepted", "The resource is valid."
    SERVING_NOT_FOUND = (
        "ServingNotFound",
        "The KVServing that a trial names does not exist; the trial begins once it does.",
    )
    # Events
    DECIDED = "Decided", "The tuner took a decision; the message holds the numbers."
    SETTING_CHANGED = "SettingChanged", "A live setting was changed and read back."
    TRIAL_STARTED = "TrialStarted", "A trial of a change has begun."
    TRIAL_STEP = "TrialStep", "A trial gave its change to more engines."
    TRAFFIC_SHIFTED = (
        "TrafficShifted",
        "Candidates of a trial get another share of users' requests.",
    )
    TRIAL_APPROVAL = "TrialApproval", "A trial has passed and waits for a person's approval."
    TRIAL_PROMOTED = "TrialPromoted", "A trial has passed: every engine gets its change."
    TRIAL_INCONCLUSIVE = (
        "TrialInconclusive",
        "A trial ended without a verdict; the settings from before are in force.",
    )
    QUALITY_REGRESSED = (
        "QualityRegressed",
        "What a trial promoted does not keep its quality: every engine goes to the fallback.",
    )
    TRIAL_VOID = "TrialVoid", "A trial is not wanted any more."
    TRIAL_FAILED = "TrialFailed", "A trial's change cannot be judged, or no engine takes it."
    RECOMMENDED = "Recommended", "The tuner recommends a change."
