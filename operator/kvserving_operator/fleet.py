"""Brings the engines of a KVServing to the KV cache that they are to have, trials among them."""

from collections.abc import Callable

from kvserving_operator.actions import Announce
from kvserving_operator.api.v1alpha1 import KVServing, SplitBy
from kvserving_operator.executor import Executor
from kvserving_operator.groups import grouped
from kvserving_operator.live import Refusal
from kvserving_operator.observe import PodView
from kvserving_operator.promoted import Needs, cap_of, gates
from kvserving_operator.render.names import RETRY_ANNOTATION, ServingRef
from kvserving_operator.rollout import Phase, Step
from kvserving_operator.session import Session
from kvserving_operator.settings import Settings
from kvserving_operator.switching import Request, Switched
from kvserving_operator.traffic.report import Traffic, traffic_events
from kvserving_operator.traffic.router import Router, Situation
from kvserving_operator.trials.record import Trials
from kvserving_operator.trials.reference import Policy
from kvserving_operator.trials.restart import Start
from kvserving_operator.trials.turn import Outcome
from kvserving_operator.tuning import Turn


class Fleet:
    """Engines of any KVServing; what is remembered of one is in its session."""

    def __init__(self, executor: Executor, router: Router, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._router = router
        self._clock = clock

    async def try_changes(
        self,
        session: Session,
        ref: ServingRef,
        serving: KVServing,
        pods: tuple[PodView, ...],
        turn: Turn,
        policy: Policy,
        step: Step,
        settings: Settings,
    ) -> Outcome | None:
        """Take the trials a step on; None while no engine has said what it takes live."""
        revisions, traffic = session.memory.revisions, session.memory.traffic
        current, running = revisions.current, session.memory.trials.running
        if current is None or current.live is None:
            return None

        async def remember(trials: Trials) -> None:
            memory = session.memory.model_copy(update={"trials": trials})
            await self._executor.remember(session, ref, memory)

        start = None
        if step.tries is not None:
            slowest = max(
                settings.rollout_deadline_seconds, serving.spec.rollout.startup_timeout_seconds
            )
            replicas = serving.spec.replicas
            leaving = any(pod.deleting for pod in pods)
            limit = settings.crash_limit
            start = Start(step.tries, current, replicas, limit, slowest, leaving)
        templates = {current.hash, "" if running is None else running.revision}
        return await session.trials.take_turn(
            ref,
            serving,
            current,
            current.live,
            tuple(pod for pod in pods if not pod.deleting and pod.revision in templates),
            turn,
            session.token,
            session.api_key,
            session.memory.trials,
            session.memory.refusals,
            policy,
            step.phase is not Phase.ROLLING,
            traffic.routed,
            traffic.split,
            start,
            frozenset() if revisions.candidate is None else revisions.candidate.keys,
            revisions.candidates is not None,
            self._clock(),
            remember,
        )

    async def steer(
        self,
        session: Session,
        ref: ServingRef,
        serving: KVServing,
        pods: tuple[PodView, ...],
        turn: Turn,
        policy: Policy,
    ) -> tuple[Traffic, tuple[Announce, ...]]:
        """Share users' requests out as the trial under way asks for; with Events about that."""
        record, before = session.memory.trials.running, session.memory.traffic
        if serving.spec.routing is not None and not before.attached:
            # First: what was made for a gateway must be known to go with it.
            before = before.model_copy(update={"attached": True})
            memory = session.memory.model_copy(update={"traffic": before})
            await self._executor.remember(session, ref, memory)
        split_by = SplitBy.SESSION
        if record is not None:
            split_by = record.split_by
        elif policy.spec is not None:
            split_by = policy.spec.ab.split_by
        traffic = await self._router.steer(
            Situation(
                ref=ref,
                serving=serving,
                pods=pods,
                record=record,
                split_by=split_by,
                runtime=turn.readback.runtime,
                observation=turn.observation,
                state=before,
            )
        )
        memory = session.memory.model_copy(update={"traffic": traffic.state})
        await self._executor.remember(session, ref, memory)
        return traffic, traffic_events(before, traffic)

    async def bring(
        self,
        session: Session,
        ref: ServingRef,
        serving: KVServing,
        pods: tuple[PodView, ...],
        turn: Turn,
    ) -> tuple[Turn, Switched]:
        """Bring the engines of the template in force to the KV cache they are to have; open gates.

        Gives what became of those that are no trial's candidates.
        """
        alive = [pod for pod in pods if not pod.deleting]
        fleet = Switched()
        current = session.memory.revisions.current
        if current is not None and current.live is not None:
            mine = [pod for pod in alive if pod.revision == current.hash]
            revisions = session.memory.revisions.with_current(
                current.heard(mine, turn.readback.runtime)
            )
            memory = session.memory.model_copy(update={"revisions": revisions})
            await self._executor.remember(session, ref, memory)
        retry = serving.metadata.annotations.get(RETRY_ANNOTATION, "")
        groups = grouped(alive, current, session.memory.trials, retry)
        keys = {group.key for group in groups}
        for group in groups:
            switched = Switched()
            if group.settings is not None:

                async def remember(refusals: tuple[Refusal, ...], key: str = group.key) -> None:
                    others = (
                        each
                        for each in session.memory.refusals
                        if each.key != key and each.key in keys
                    )
                    update = {"refusals": (*others, *refusals)}
                    memory = session.memory.model_copy(update=update)
                    await self._executor.remember(session, ref, memory)

                request = Request(group.settings, group.key, session.memory.refusals, group.urgent)
                switched = await session.switcher.bring(
                    request,
                    group.pods,
                    turn.readback.runtime,
                    session.token,
                    self._clock(),
                    remember,
                )
                turn = turn.reading({change.pod: change.after for change in switched.changes})
            fleet = fleet.joined(switched, group.aside)
            starts_with_it = current is None or (
                current.start == group.settings
                and all(pod.revision == current.hash for pod in group.pods)
            )
            needs = Needs(
                cap_of(turn.promoted),
                "" if starts_with_it else str(switched.settings or ""),
                frozenset(switched.pending),
            )
            changed = gates(group.pods, turn.readback.runtime, needs)
            await self._executor.set_gates(ref, changed, self._clock())
        return turn, fleet
