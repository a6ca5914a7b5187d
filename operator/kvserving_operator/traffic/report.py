"""What people are told of the way in: a condition, a part of the status, and Events; pure."""

from dataclasses import dataclass, field

from kvserving_operator.actions import Announce
from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import Sessions, Split, TrafficStatus
from kvserving_operator.traffic.arms import Wish
from kvserving_operator.traffic.state import TrafficState

TEXT_LIMIT = 1024


@dataclass(frozen=True)
class Traffic:
    """How users' requests are shared out after a look."""

    state: TrafficState = field(default_factory=TrafficState)
    reason: Reason = Reason.NO_GATEWAY
    message: str = "spec.routing is not set: connections spread over all pods"
    wish: Wish = field(default_factory=Wish)
    sessions_kept: bool = False
    sessions: str = ""
    """Why sessions are not kept."""

    @property
    def accepted(self) -> bool | None:
        """Whether a gateway takes requests in; None while its controller has not answered."""
        if self.reason is Reason.ROUTE_PENDING:
            return None
        return self.reason is Reason.ROUTE_ACCEPTED


def traffic_status(traffic: Traffic) -> TrafficStatus | None:
    """Part of the KVServing's status; None without a gateway."""
    if traffic.reason is Reason.NO_GATEWAY:
        return None
    state, wish = traffic.state, traffic.wish
    notes = [traffic.sessions]
    if wish.raised:
        notes.append(_raised(wish))
    if state.mismatch:
        notes.append(state.mismatch)
    if wish.asked and not wish.takes:
        notes.append("the share does not grow before every candidate has the change")
    share = state.shown_percent if state.weight else None
    return TrafficStatus(
        split=Split.ROUTE if state.routed else Split.CAPACITY,
        step_percent=wish.asked or None,
        candidate_weight_percent=state.weight,
        candidate_share_percent=None if share is None else f"{share:.1f}",
        requests=None if share is None else int(state.shown_requests),
        sessions=Sessions.KEPT if traffic.sessions_kept else Sessions.NOT_KEPT,
        message="; ".join(note for note in notes if note)[:TEXT_LIMIT] or None,
    )


def traffic_events(before: TrafficState, traffic: Traffic) -> tuple[Announce, ...]:
    """Event about a new share, with what the one before it came to."""
    after = traffic.state
    if after.weight == before.weight:
        return ()
    message = f"candidates get {after.weight} % of the requests, {before.weight} % before"
    if traffic.wish.raised:
        message += f" ({_raised(traffic.wish)})"
    requests = before.candidate + before.stable
    if before.weight and requests:
        measured = 100 * before.candidate / requests
        message += f"; those {before.weight} % were {measured:.1f} % of {requests:.0f} requests"
    trial = after.trial or before.trial
    return (Announce(Reason.TRAFFIC_SHIFTED.value, f"trial {trial}: {message}"),)


def _raised(wish: Wish) -> str:
    return (
        f"the step asks for {wish.asked} %, which the pods of one side cannot carry: candidates"
        f" get {wish.weight} %, their part of the pods"
    )
