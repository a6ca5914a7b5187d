"""Which trial runs, and what engines run with while none does; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic.alias_generators import to_camel

from kvserving_operator.api.v1alpha1 import (
    ChangeSpec,
    EvictionSpec,
    KVCacheDType,
    KVRollbackPolicySpec,
    KVTrial,
    KVTrialSpec,
    ObjectReference,
    RequestedBy,
    TrialState,
)
from kvserving_operator.hashing import content_hash
from kvserving_operator.live import NO_EVICTION, KVSettings
from kvserving_operator.trials.policy import (
    candidate_of,
    fallback_of,
    gain_of,
    is_safe,
    needs_trial,
    plan_of,
    untried,
)
from kvserving_operator.trials.record import (
    Engines,
    Record,
    Rejected,
    Settled,
    Trials,
    remembered,
)
from kvserving_tuner.decision import Action, Decision, Knob
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.plan import Gain
from kvserving_tuner.trials.progress import Verdict

NAME_LIMIT = 63
NAME_HASH = 8
NO_PROBE = "no probe of the policy's quality.probes tells what the change costs"


@dataclass(frozen=True)
class Wanted:
    """What the spec asks for, and by which policy a change has to prove itself."""

    name: str
    """Of the KVServing."""
    asked: KVSettings
    eviction: EvictionSpec
    in_force: KVSettings
    """What engines run with, as far as nothing is settled yet."""
    template: str
    """Hash of the template in force."""
    generation: int
    has_policy: bool
    policy: KVRollbackPolicySpec | None
    """None where the spec names none, or one that does not exist."""
    slo: Slo
    """Targets within which a request counts towards goodput."""
    floors: Mapping[Probe, float] = field(default_factory=dict)
    """Least mean grades of task probes, in percent."""
    live: bool = True
    """Whether engines can take changes while they serve at all."""
    routed: bool = False
    """Whether a gateway's route gives a trial's candidates their share."""
    build: str = ""
    """Hash of model, image, parallelism and accelerator of the engines."""
    weights: str = ""
    """Hash of the weights of all engines; empty where they do not tell or differ."""
    tries: str = ""
    """Hash of the template that is to be tried; empty for none."""
    next_keys: frozenset[str] = frozenset()
    """Names of the template that the spec asks for, where it is not in force."""
    retry: str = ""
    """Value of the retry annotation."""
    apart: bool = False
    """Whether a trial has pods of its own."""

    @property
    def engines(self) -> Engines:
        """Engines that a verdict would be of now."""
        return Engines(build=self.build, weights=self.weights)


def settle(trials: Trials, wanted: Wanted, now: float) -> Trials:
    """With an edit that needs no trial in force, and rejections that are over forgotten."""
    turned_down = tuple(
        each for each in trials.turned_down if each.until > now or each.key in wanted.next_keys
    )
    update: dict[str, object] = {
        "rejected": remembered(trials.rejected, now), "turned_down": turned_down
    }  # fmt: skip
    trials = trials.model_copy(update=update)
    settled, known = trials.settled, rejection(trials.rejected, wanted.asked, wanted.engines)
    if settled is None:
        free = not wanted.has_policy or is_safe(wanted.asked)
        return _by_spec(trials, wanted.asked if free else wanted.in_force, wanted.template)
    running = trials.running
    if running is not None:
        # The way back to 16 bits waits for no template.
        back = running.revision and is_safe(wanted.asked) and settled.asked != wanted.asked
        return _by_spec(trials, wanted.asked, wanted.template) if back else trials
    # A trial that could not be run has judged nothing.
    unjudged = settled.rolled_back and settled.verdict is Verdict.FAILED
    if unjudged and not wanted.has_policy:
        return _by_spec(trials, wanted.asked, wanted.template)
    if wanted.template != settled.template:
        update = {"template": wanted.template}
        # Other pods may be able to do what those before could not.
        if unjudged and known is None:
            update |= {"asked": settled.settings, "rolled_back": False}
        settled = settled.model_copy(update=update)
        trials = trials.model_copy(update={"settled": settled})
    if settled.rolled_back and known is None and settled.engines.differ(wanted.engines):
        # What was found wanting was found of another model or engine.
        settled = settled.model_copy(update={"asked": settled.settings, "rolled_back": False})
        trials = trials.model_copy(update={"settled": settled})
    if settled.asked == wanted.asked:
        return trials
    if not wanted.has_policy or not needs_trial(settled.settings, wanted.asked):
        return _by_spec(trials, wanted.asked, wanted.template)
    if known is not None:
        kept = Settled(
            asked=wanted.asked,
            settings=settled.settings,
            template=wanted.template,
            engines=known.engines,
            trial=known.trial,
            rolled_back=True,
            verdict=Verdict.ROLLED_BACK,
            message=f"{known.message}; it is not tried again for now",
        )
        return trials.model_copy(update={"settled": kept})
    return trials


def _by_spec(trials: Trials, settings: KVSettings, template: str) -> Trials:
    settled = Settled.by_spec(settings, template)
    return trials.model_copy(update={"settled": settled, "watch": None})


def rejection(
    rejections: Iterable[Rejected], settings: KVSettings, engines: Engines
) -> Rejected | None:
    """Rejection of these settings on engines that are not known to be others."""
    return next(
        (
            each
            for each in rejections
            if each.settings == settings and not each.engines.differ(engines)
        ),
        None,
    )


def spec_trial(trials: Trials, wanted: Wanted) -> Record | None:
    """The trial that an edit of the spec asks for; None where it asks for none or may have none."""
    settled = trials.settled
    if trials.running is not None or settled is None or settled.asked == wanted.asked:
        return None
    if wanted.policy is None:
        return None
    return _record(
        trial_name(wanted, settled.settings),
        RequestedBy.SPEC,
        wanted,
        settled.settings,
        wanted.asked,
        wanted.policy,
        gain_of(RequestedBy.SPEC, None),
    )


def trial_spec(wanted: Wanted, record: Record, policy: KVRollbackPolicySpec) -> KVTrialSpec:
    """What the KVTrial of an edit says."""
    eviction = None
    if record.candidate.eviction != record.stable.eviction:
        eviction = wanted.eviction
    return KVTrialSpec(
        serving_ref=ObjectReference(name=wanted.name),
        serving_generation=wanted.generation,
        change=ChangeSpec(
            kv_cache_dtype=KVCacheDType(record.candidate.kv_cache_dtype), eviction=eviction
        ),
        policy=policy,
        requested_by=RequestedBy.SPEC,
    )


def tuner_trial(wanted: Wanted, decision: Decision | None) -> tuple[str, KVTrialSpec] | None:
    """Name and spec of the trial that the tuner asks for; None where it asks for none.

    The name follows from the decision: a killed operator makes it once.
    """
    if decision is None or decision.action is not Action.TRIAL or decision.change is None:
        return None
    if wanted.policy is None or decision.change.knob is not Knob.KV_CACHE_DTYPE:
        return None
    dtype = KVCacheDType(str(decision.change.to_value))
    ending = f"-{content_hash({'decision': decision.id, 'to': dtype.value})[:NAME_HASH]}"
    return wanted.name[: NAME_LIMIT - len(ending)] + ending, KVTrialSpec(
        serving_ref=ObjectReference(name=wanted.name),
        serving_generation=wanted.generation,
        change=ChangeSpec(kv_cache_dtype=dtype),
        policy=wanted.policy,
        requested_by=RequestedBy.TUNER,
    )


def next_trial(trials: Trials, wanted: Wanted, found: Sequence[KVTrial]) -> Record | None:
    """The oldest trial that somebody else has asked for and that has not ended."""
    settled = trials.settled
    if trials.running is not None or settled is None:
        return None
    waiting = sorted(
        (trial for trial in found if is_open(trial)),
        key=lambda trial: (trial.metadata.creation_timestamp or "", trial.metadata.name),
    )
    for trial in waiting:
        if trial.spec.requested_by is RequestedBy.SPEC:
            # Of an edit that is not wanted any more, or whose record was lost: begun anew by it.
            continue
        candidate = candidate_of(trial.spec.change, settled.settings)
        return _record(
            trial.metadata.name,
            trial.spec.requested_by,
            wanted,
            settled.settings,
            candidate,
            trial.spec.policy,
            gain_of(trial.spec.requested_by, trial.spec.required_gain),
        )
    return None


def is_open(trial: KVTrial) -> bool:
    """Whether a trial has not ended."""
    return trial.status.state is not TrialState.FINISHED


def why_not(
    record: Record, wanted: Wanted, trial: KVTrial | None, rejected: Sequence[Rejected]
) -> str:
    """Why a trial cannot be run at all; empty where it can."""
    if record.revision:
        if record.plan.likelihood or record.plan.tasks:
            return ""
        return NO_PROBE
    if trial is not None:
        field = untried(trial.spec.change)
        if field:
            return (
                f"spec.change.{to_camel(field)}: expected kvCacheDtype or eviction, as trials "
                "judge no other yet"
            )
    if not wanted.live:
        return (
            "spec.engine.plugin: expected Enabled, as trials change engines while they serve, got "
            "Disabled"
        )
    if record.candidate == record.stable:
        return f"{record.candidate} is in force already"
    evicts = record.candidate.eviction not in (record.stable.eviction, NO_EVICTION)
    if evicts and not is_safe(record.stable):
        return (
            "eviction: expected 16 bits without eviction in force, as answers are compared with "
            f"those, got {record.stable}"
        )
    if evicts and not record.plan.tasks:
        return "eviction: expected a task probe in the policy's quality.probes, got none"
    if not record.plan.likelihood and not record.plan.tasks:
        return NO_PROBE
    known = rejection(rejected, record.candidate, wanted.engines)
    if known is not None and known.trial != record.name:
        return f"rejected by trial {known.trial}: {known.message}"
    return ""


def trial_name(wanted: Wanted, stable: KVSettings) -> str:
    """Name of an edit's trial: the same after a restart of the operator, so it is made once.

    Another one where the same edit is tried anew on other pods.
    """
    change = {
        "from": stable.model_dump(mode="json"),
        "to": wanted.asked.model_dump(mode="json"),
        "generation": wanted.generation,
        "template": wanted.template,
    }
    if wanted.weights:
        change["weights"] = wanted.weights
    ending = f"-{content_hash(change)[:NAME_HASH]}"
    return wanted.name[: NAME_LIMIT - len(ending)] + ending


def _record(
    name: str,
    requested_by: RequestedBy,
    wanted: Wanted,
    stable: KVSettings,
    candidate: KVSettings,
    policy: KVRollbackPolicySpec,
    gain: Gain | None,
) -> Record:
    plan = plan_of(policy, candidate, wanted.floors, gain, wanted.slo)
    return Record(
        name=name,
        requested_by=requested_by,
        asked=wanted.asked,
        template=wanted.template,
        build=wanted.build,
        stable=stable,
        candidate=candidate,
        fallback=fallback_of(policy),
        plan=plan.with_weights() if wanted.routed else plan,
        reject_for_seconds=policy.memory.reject_for_seconds,
        split_by=policy.ab.split_by,
    )
