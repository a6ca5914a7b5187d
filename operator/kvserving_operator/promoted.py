"""Values that the tuner put in force in place of the spec's, and on which pods they are.

Pure. A promoted value lives in `status.promoted`, never in the pod template: each new pod (and each
restarted container) starts with the spec's value and gets the promoted one through the runtime API
before it counts as ready.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kvserving_operator.api.conditions import timestamp
from kvserving_operator.api.v1alpha1 import KVServingSpec, PromotedValue
from kvserving_operator.observe import PodView
from kvserving_tuner.decision import Decision, Knob
from kvserving_tuner.runtime_client import RuntimeState

KNOB = Knob.MAX_ACTIVE_SEQS


@dataclass(frozen=True)
class Gate:
    """What the readiness gate of a pod should say."""

    pod: str
    open: bool
    message: str


def basis_of(spec: KVServingSpec, field: str) -> str:
    """Value of the spec's field that a promoted value stands in for."""
    return {KNOB.value: str(spec.engine.max_num_seqs)}[field]


def still_promoted(
    promoted: Iterable[PromotedValue], basis: Mapping[str, str], spec: KVServingSpec
) -> tuple[PromotedValue, ...]:
    """Promoted values whose field the user has not edited since."""
    return tuple(
        entry
        for entry in promoted
        if entry.field == KNOB.value and basis.get(entry.field) == basis_of(spec, entry.field)
    )


def cap_of(promoted: Iterable[PromotedValue]) -> int | None:
    """Promoted cap on active sequences, None where the spec's holds."""
    return next((int(entry.value) for entry in promoted if entry.field == KNOB.value), None)


def promote(decision: Decision, generation: int) -> tuple[PromotedValue, ...]:
    """Promoted values after a decision to change."""
    if decision.change is None:
        raise ValueError(f"expected decision {decision.id} to change a knob, got {decision.action}")
    entry = PromotedValue(
        field=decision.change.knob.value,
        value=str(decision.change.to_value),
        decision=decision.id,
        spec_generation=generation,
        at=timestamp(datetime.fromtimestamp(decision.at, UTC)),
    )
    return (entry,)


def behind(
    pods: Iterable[PodView], runtime: Mapping[str, RuntimeState], cap: int | None
) -> dict[str, int]:
    """Cap that each pod with another one should run with: the promoted one, else its start's."""
    wanted = {}
    for pod in pods:
        state = runtime.get(pod.name)
        if state is None:
            continue
        right = state.startup.get("max_num_seqs") if cap is None else cap
        if isinstance(right, int) and state.effective.max_active_seqs != right:
            wanted[pod.name] = right
    return wanted


@dataclass(frozen=True)
class Needs:
    """What a container that was just started lacks of the values in force."""

    cap: int | None = None
    """Promoted cap."""
    kv_cache: str = ""
    """Name of the live settings of the KV cache; empty where engines start with them."""
    unsettled: frozenset[str] = frozenset()
    """Pods that are still to be given these settings."""

    def __str__(self) -> str:
        cap = [] if self.cap is None else [f"{KNOB.value}={self.cap}"]
        return ", ".join([*cap, *([f"kvCache={self.kv_cache}"] if self.kv_cache else [])])


def gates(
    pods: Iterable[PodView], runtime: Mapping[str, RuntimeState], needs: Needs
) -> tuple[Gate, ...]:
    """Gates that have to change.

    An engine that cannot be asked right now keeps its gate: it was opened for the very container
    that runs. Only a container that was started since has to prove again that it has the value.
    """
    changed = []
    for pod in pods:
        if not pod.gated:
            continue
        gate = _gate(pod, runtime.get(pod.name), needs)
        if (gate.open, gate.message) != (pod.gate, pod.gate_message):
            changed.append(gate)
    return tuple(changed)


def _gate(pod: PodView, state: RuntimeState | None, needs: Needs) -> Gate:
    wanted, container = str(needs), pod.container_id[-12:]
    if not wanted:
        return Gate(pod.name, open=True, message=f"the spec's values hold on {container}")
    has_cap = needs.cap is None or (
        state is not None and state.effective.max_active_seqs == needs.cap
    )
    has_format = not needs.kv_cache or (state is not None and pod.name not in needs.unsettled)
    if has_cap and has_format:
        return Gate(pod.name, open=True, message=f"{wanted} on {container}")
    if pod.gate and container and pod.gate_message.endswith(container):
        return Gate(pod.name, open=True, message=pod.gate_message)
    return Gate(pod.name, open=False, message=f"{wanted} has not been applied yet")
