"""The rollback policy that a KVServing names, with what it wants otherwise."""

from dataclasses import dataclass

from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import (
    KVRollbackPolicySpec,
    KVServing,
    overridden,
    parse_policy,
)
from kvserving_operator.cluster import Cluster
from kvserving_operator.kinds import Kind, Object


@dataclass(frozen=True)
class Policy:
    """The rollback policy of a KVServing."""

    named: bool = False
    spec: KVRollbackPolicySpec | None = None
    """With the KVServing's own overrides; None where none is named or none can be followed."""
    problem: tuple[Reason, str] | None = None
    """Why the one that is named cannot be followed."""


async def read_policy(cluster: Cluster, serving: KVServing) -> Policy:
    """Policy that a KVServing names, as far as it exists and is valid."""
    reference = serving.spec.rollback_policy_ref
    if reference is None:
        return Policy()
    body: Object | None = await cluster.get(
        Kind.KVRollbackPolicy, serving.metadata.namespace, reference.name
    )
    if body is None:
        message = f"spec.rollbackPolicyRef: KVRollbackPolicy {reference.name} does not exist"
        return Policy(named=True, problem=(Reason.POLICY_NOT_FOUND, message))
    where = f"KVRollbackPolicy {reference.name}"
    try:
        policy = parse_policy(body).spec
        where = f"spec.rollbackPolicy together with {where}"
        return Policy(named=True, spec=overridden(policy, serving.spec.rollback_policy))
    except SpecError as error:
        return Policy(named=True, problem=(Reason.POLICY_INVALID, f"{where}: {error}"))
