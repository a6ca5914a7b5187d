"""One look at a KVServing: observe, step, apply, tune, report; the shell around the pure parts."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import httpx

from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.v1alpha1 import KVServing, PromotedValue, parse_serving
from kvserving_operator.api_key import read_api_key
from kvserving_operator.cluster import Cluster
from kvserving_operator.errors import ApiRejected
from kvserving_operator.executor import Announcer, Executor, StatusWriter, is_owned
from kvserving_operator.exported import measure, measure_status
from kvserving_operator.facts import Facts
from kvserving_operator.fence import FencedCluster
from kvserving_operator.fleet import Fleet
from kvserving_operator.kinds import Kind, Object
from kvserving_operator.live import asked, asking_for
from kvserving_operator.looks import Look, Watcher, Watchers
from kvserving_operator.memory import recall
from kvserving_operator.metrics import OperatorMetrics
from kvserving_operator.observe import PodView, check_view, is_check, pod_view
from kvserving_operator.promoted import KNOB
from kvserving_operator.render.names import RETRY_ANNOTATION, SERVING_LABEL, ServingRef
from kvserving_operator.reporting import (
    audit,
    decision_event,
    new_decision,
    switch_events,
    trouble,
)
from kvserving_operator.rollout import Phase, Step, advance
from kvserving_operator.session import Session
from kvserving_operator.settings import Settings
from kvserving_operator.situation import Situation
from kvserving_operator.starting import starting, tried_on
from kvserving_operator.status import build_status, invalid_status, parse_status
from kvserving_operator.switching import Switcher
from kvserving_operator.traffic.router import Router, Sleep
from kvserving_operator.trials.asking import Asking
from kvserving_operator.trials.audit import trial_line
from kvserving_operator.trials.learning import learned
from kvserving_operator.trials.probing import Probing
from kvserving_operator.trials.reference import read_policy
from kvserving_operator.trials.report import events
from kvserving_operator.trials.runner import TrialRunner
from kvserving_operator.tuning import Judge, ServingTuner, Turn, new_basis
from kvserving_tuner.audit import audit_line
from kvserving_tuner.decision import Reason
from kvserving_tuner.loop import decide
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.runtime_client import RuntimeClient
from kvserving_tuner.state import TunerState

logger = logging.getLogger(__name__)


class Controller:
    """Looks after every KVServing; one look at a time for each."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        http: httpx.AsyncClient,
        metrics: OperatorMetrics,
        announce: Announcer,
        may_act: Callable[[], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        new_token: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        judge: Judge = decide,
        sleep: Sleep = asyncio.sleep,
        watchers: Iterable[Watcher] = (),
    ) -> None:
        self._sleep = sleep
        self._watchers = Watchers(watchers)
        self._judge = judge
        self._cluster = FencedCluster(cluster, may_act)
        self._settings = settings
        self._http = http
        self._metrics = metrics
        self._announce = announce
        self._may_act = may_act
        self._clock = clock
        self._monotonic = monotonic
        self._executor = Executor(self._cluster, settings, announce, monotonic, new_token)
        self._fleet = Fleet(self._executor, Router(self._cluster, sleep), clock)
        self._sessions: dict[tuple[str, str], Session] = {}
        self._last_success = monotonic()

    @property
    def seconds_since_success(self) -> float:
        """Age of the last look that succeeded; 0 while there is nothing to look at."""
        return self._monotonic() - self._last_success if self._sessions else 0.0

    async def tick(self, namespace: str, name: str) -> None:
        """Look at a KVServing once; does nothing while another look at it is under way."""
        session = self._sessions.get((namespace, name))
        if session is not None and session.lock.locked():
            return
        with self._metrics.tick_seconds.time():
            await self._look(namespace, name)
        self._last_success = self._monotonic()

    def touch(self, namespace: str, name: str) -> None:
        """Have every child applied again at the next look."""
        session = self._sessions.get((namespace, name))
        if session is not None:
            session.resync_at = 0.0

    def forget(self, namespace: str, name: str) -> None:
        """Drop what is kept of a KVServing that is gone."""
        session = self._sessions.pop((namespace, name), None)
        if session is not None:
            session.tuner.forget()
            session.trials.forget()
            self._metrics.forget(namespace, name)
        self._watchers.forgotten(namespace, name)
        self._metrics.servings.set(len(self._sessions))

    async def _look(self, namespace: str, name: str) -> None:
        body = await self._cluster.get(Kind.KVServing, namespace, name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            return
        session = self._session(namespace, name, str(body["metadata"]["uid"]))
        async with session.lock:
            writer = StatusWriter(self._cluster, body, parse_status(body))
            await self._handle(session, body, writer)
            if writer.writes:
                self._metrics.status_writes.labels(namespace, name).inc(writer.writes)

    async def _handle(self, session: Session, body: Object, writer: StatusWriter) -> None:
        before = writer.stored
        try:
            serving = parse_serving(body)
        except SpecError as error:
            meta, now = body["metadata"], self._clock()
            status = invalid_status(before, str(error), int(meta.get("generation", 0)), now)
            measure_status(self._metrics, meta["namespace"], meta["name"], status, now)
            self._watchers.refused(meta["namespace"], meta["name"], status, now)
            await writer.write(status)
            return
        facts = await self._reconcile(session, body, serving, writer)
        status = build_status(before, facts)
        decision, decided = new_decision(facts.turn, before.last_decision), None
        if decision is not None:
            serving_name = f"{facts.ref.namespace}/{facts.ref.name}"
            turn = facts.turn
            audit.info(audit_line(decision, serving_name, turn.observation, turn.outcome))
            if decision.reason is not Reason.MODE_OFF:
                decided = decision_event(decision, facts.turn)
                self._announce(body, decided)
            self._metrics.decisions.labels(
                facts.ref.namespace, facts.ref.name, decision.action.value, decision.reason.value
            ).inc()
        announced = switch_events(facts.switched)
        if facts.trial is not None:
            announced += events(facts.trial)
            line = trial_line(facts.trial, f"{facts.ref.namespace}/{facts.ref.name}", facts.now)
            if line:
                audit.info(line)
        announced += facts.shifts
        announced += trouble(before, status, (*facts.step.actions, *announced))
        for announcement in announced:
            self._announce(body, announcement)
        measure(self._metrics, facts, status)
        self._watchers.looked(Look(facts, status, decision, decided, announced))
        await writer.write(status)

    async def _reconcile(
        self, session: Session, body: Object, serving: KVServing, writer: StatusWriter
    ) -> Facts:
        ref = ServingRef(serving.metadata.namespace, serving.metadata.name, session.uid)
        existing = await self._cluster.get(Kind.Deployment, ref.namespace, ref.name)
        found = await self._cluster.list(Kind.Pod, ref.namespace, {SERVING_LABEL: ref.name})
        if session.stored is None:
            stored = await self._cluster.get(Kind.ConfigMap, ref.namespace, ref.state_configmap)
            apart = await self._cluster.get(
                Kind.Deployment, ref.namespace, ref.candidates_deployment
            )
            session.memory = recall(stored, existing, apart if is_owned(apart, ref) else None)
        pods = tuple(pod_view(pod) for pod in found if not is_check(pod))
        start = starting(serving.spec, session.memory.trials)
        session.api_key, no_key = await read_api_key(self._cluster, serving)
        step = advance(
            Situation(
                ref=ref,
                spec=asking_for(serving.spec, start),
                asked=asked(serving.spec),
                state=session.memory.revisions,
                pods=pods,
                checks=tuple(check_view(pod) for pod in found if is_check(pod)),
                retry=serving.metadata.annotations.get(RETRY_ANNOTATION, ""),
                now=self._clock(),
                settings=self._settings,
                tried=tried_on(serving.spec),
                missing=await self._missing(serving) or no_key,
                trials=session.memory.trials,
            )
        )
        problem = ""
        try:
            await self._executor.carry_out(session, ref, body, serving, step, existing)
        except ApiRejected as error:
            problem = str(error)
            logger.error("%s/%s: %s", ref.namespace, ref.name, error)
        turn = await self._tune(session, ref, serving, pods, step, writer)
        policy = await read_policy(self._cluster, serving)
        trial = await self._fleet.try_changes(
            session, ref, serving, pods, turn, policy, step, self._settings
        )
        taught = learned(serving.spec, session.memory.tuner, trial, self._clock())
        if taught != session.memory.tuner:
            memory = session.memory.model_copy(update={"tuner": taught})
            await self._executor.remember(session, ref, memory)
        # Before, so that pods are out of the others' arm when they take a change, and out of both
        # when they give it up; and after, as what they have taken decides about their share.
        traffic, said = await self._fleet.steer(session, ref, serving, pods, turn, policy)
        turn, switched = await self._fleet.bring(session, ref, serving, pods, turn)
        if session.memory.trials.running is not None and serving.spec.routing is not None:
            traffic, more = await self._fleet.steer(session, ref, serving, pods, turn, policy)
            said += more
        return Facts(
            serving=serving,
            ref=ref,
            pods=pods,
            step=step,
            turn=turn,
            switched=switched,
            now=self._clock(),
            policy_problem=policy.problem,
            trials=session.memory.trials,
            trial=trial,
            traffic=traffic,
            shifts=said,
            api_problem=problem,
        )

    async def _tune(
        self,
        session: Session,
        ref: ServingRef,
        serving: KVServing,
        pods: tuple[PodView, ...],
        step: Step,
        writer: StatusWriter,
    ) -> Turn:
        async def commit(promoted: tuple[PromotedValue, ...], state: TunerState) -> None:
            update = {"tuner": state, "basis": new_basis(promoted, serving.spec)}
            memory = session.memory.model_copy(update=update)
            await self._executor.remember(session, ref, memory)
            others = (each for each in writer.stored.promoted if each.field != KNOB.value)
            update = {"promoted": (*promoted, *others)}
            await writer.write(writer.stored.model_copy(update=update))

        turn = await session.tuner.take_turn(
            serving=serving,
            pods=pods,
            token=session.token,
            promoted=tuple(p for p in writer.stored.promoted if p.field == KNOB.value),
            basis=session.memory.basis,
            state=session.memory.tuner,
            now=self._clock(),
            # Engines of two templates do not say what is good for either.
            steady=step.phase is not Phase.ROLLING and step.state.candidates is None,
            commit=commit,
        )
        memory = session.memory.model_copy(update={"tuner": turn.state})
        await self._executor.remember(session, ref, memory)
        return replace(turn, stages=session.tuner.stages)

    async def _missing(self, serving: KVServing) -> str:
        """Name the claim that engines would wait for and no check pod mounts."""
        cache = serving.spec.engine.compile_cache
        if cache is None:
            return ""
        kind, namespace = Kind.PersistentVolumeClaim, serving.metadata.namespace
        if await self._cluster.get(kind, namespace, cache.claim_name) is not None:
            return ""
        field = "spec.engine.compileCache.claimName"
        return f"{field}: {kind.name} {cache.claim_name} does not exist in namespace {namespace}"

    def _session(self, namespace: str, name: str, uid: str) -> Session:
        session = self._sessions.get((namespace, name))
        if session is None or session.uid != uid:
            self.forget(namespace, name)
            client = RuntimeClient(self._http, self._settings.engine_timeout_seconds)
            tuner = ServingTuner(
                self._http,
                client,
                self._may_act,
                self._settings.tick_seconds,
                self._judge,
                self._clock,
            )
            probes = ProbeClient(self._http)
            asking = Asking(probes, self._sleep, self._monotonic, self._clock)
            trials = TrialRunner(self._cluster, Probing(probes, self._clock), asking)
            session = Session(uid, tuner, Switcher(client, self._may_act), trials)
            self._sessions[(namespace, name)] = session
            self._metrics.servings.set(len(self._sessions))
        return session
