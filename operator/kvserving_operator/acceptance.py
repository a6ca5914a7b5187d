"""Policies and trials as such: whether one is valid, and what one waits for that nobody looks at.

A trial is told of by its KVServing's looks. One that names no KVServing, or one whose engines have
not yet said what they take live, would be silent without this.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from kvserving_operator.api.conditions import Condition, set_condition
from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_operator.api.v1alpha1 import (
    KVRollbackPolicyStatus,
    KVTrial,
    KVTrialStatus,
    TrialState,
    parse_policy,
    parse_trial,
)
from kvserving_operator.cluster import Cluster, apply_status
from kvserving_operator.errors import Conflict
from kvserving_operator.kinds import Kind, Object


class Acceptance:
    """Says of policies and new trials what it finds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock

    async def policy(self, body: Object) -> None:
        """Say whether a policy is valid, unless that is said already."""
        status = policy_status(body, self._now())
        if body.get("status", {}) != status.to_api():
            await self._write(Kind.KVRollbackPolicy, body, status.to_api())

    async def trial(self, body: Object) -> None:
        """Say what a trial waits for that no look at its KVServing has told of yet."""
        try:
            trial = parse_trial(body)
        except SpecError:
            # The API server checks the same rules: this one is older than they are, and a look
            # at its KVServing logs it.
            return
        if trial.status.state not in (None, TrialState.PENDING):
            return
        reference = trial.spec.serving_ref.name
        serving = await self._cluster.get(Kind.KVServing, trial.metadata.namespace, reference)
        status = waiting_status(trial, serving is not None, self._now())
        if status is not None and trial.status.to_api() != status.to_api():
            await self._write(Kind.KVTrial, body, status.to_api())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    async def _write(self, kind: Kind, body: Object, status: Object) -> None:
        meta = body["metadata"]
        # A look at a KVServing tells of its trials too, and may have done so since.
        with suppress(Conflict):
            await apply_status(
                self._cluster, kind, meta["namespace"], meta["name"], status,
                meta["resourceVersion"],
            )  # fmt: skip


def policy_status(body: Object, now: datetime) -> KVRollbackPolicyStatus:
    """Whether a policy is valid, with the field at fault where it is not."""
    generation = int(body["metadata"].get("generation", 0))
    try:
        parse_policy(body)
    except SpecError as error:
        valid, reason, message = False, Reason.INVALID_SPEC, str(error)
    else:
        valid, reason, message = True, Reason.ACCEPTED, "the policy is valid"
    conditions = tuple(
        Condition.model_validate(each) for each in body.get("status", {}).get("conditions", ())
    )
    return KVRollbackPolicyStatus(
        conditions=set_condition(
            conditions, ConditionType.ACCEPTED, valid, reason, message, generation, now
        ),
        observed_generation=generation,
    )


def waiting_status(trial: KVTrial, has_serving: bool, now: datetime) -> KVTrialStatus | None:
    """What a trial waits for before anybody looks at it; None where its KVServing tells."""
    name, namespace = trial.spec.serving_ref.name, trial.metadata.namespace
    if has_serving and trial.status.state is not None:
        return None
    if has_serving:
        reason = Reason.ACCEPTED
        message = f"waits for engines of KVServing {name} to say what they take while they serve"
    else:
        reason = Reason.SERVING_NOT_FOUND
        message = (
            f"spec.servingRef.name: KVServing {name} does not exist in namespace {namespace}; "
            f"the trial begins once it does"
        )
    return KVTrialStatus(
        conditions=set_condition(
            trial.status.conditions,
            ConditionType.ACCEPTED,
            has_serving,
            reason,
            message,
            trial.metadata.generation,
            now,
        ),
        observed_generation=trial.metadata.generation,
        state=TrialState.PENDING,
        message=message,
    )
