"""Runs the trials of one KVServing: reads what they rest on, remembers, asks for probes, tells."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from kvserving_operator.api.errors import SpecError
from kvserving_operator.api.v1alpha1 import (
    KVServing,
    KVTrial,
    KVTrialStatus,
    RequestedBy,
    Switch,
    parse_trial,
)
from kvserving_operator.cluster import Cluster, apply_status
from kvserving_operator.errors import Conflict
from kvserving_operator.kinds import Kind
from kvserving_operator.live import KVSettings, Refusal, runs
from kvserving_operator.observe import PodView
from kvserving_operator.render.names import RETRY_ANNOTATION, ServingRef
from kvserving_operator.revisions import Revision
from kvserving_operator.targets import target_of
from kvserving_operator.trials.asking import Asking
from kvserving_operator.trials.policy import sixteen_bits
from kvserving_operator.trials.probe_set import ProbeSet, read_probe_set
from kvserving_operator.trials.probing import Probing
from kvserving_operator.trials.record import Trials
from kvserving_operator.trials.reference import Policy
from kvserving_operator.trials.report import manifest, superseded_status, trial_status
from kvserving_operator.trials.restart import Start, change_spec
from kvserving_operator.trials.seen import Seen, same_weights
from kvserving_operator.trials.select import Wanted, is_open, trial_spec, tuner_trial
from kvserving_operator.trials.turn import Outcome, look
from kvserving_operator.tuner_settings import slo_of
from kvserving_operator.tuning import Turn
from kvserving_tuner.judge import Split
from kvserving_tuner.runtime_client import RuntimeState

logger = logging.getLogger(__name__)

HISTORY = 10
"""Ended trials of edits, and of the tuner, that are kept."""
DEFAULT_CONTEXT = 2048
"""Tokens of a probe where neither spec nor engine says how long a context may be."""

Remember = Callable[[Trials], Awaitable[None]]


class TrialRunner:
    """Trials of one KVServing."""

    def __init__(self, cluster: Cluster, probing: Probing, asking: Asking) -> None:
        self._cluster = cluster
        self._probing = probing
        self._asking = asking

    async def take_turn(
        self,
        ref: ServingRef,
        serving: KVServing,
        current: Revision,
        asked: KVSettings,
        pods: tuple[PodView, ...],
        turn: Turn,
        token: str | None,
        api_key: str | None,
        trials: Trials,
        refusals: tuple[Refusal, ...],
        policy: Policy,
        steady: bool,
        routed: bool,
        split: Split | None,
        start: Start | None,
        next_keys: frozenset[str],
        apart: bool,
        now: float,
        remember: Remember,
    ) -> Outcome:
        """Look at the trials once; what follows is remembered before anybody acts on it."""
        found = await self._trials(ref)
        wanted = Wanted(
            name=ref.name,
            asked=asked,
            eviction=serving.spec.kv_cache.eviction,
            in_force=_in_force(current, asked, pods, turn.readback.runtime, found.values()),
            template=current.hash,
            build=current.engines_hash,
            generation=serving.metadata.generation,
            has_policy=policy.named,
            policy=policy.spec,
            slo=slo_of(serving.spec),
            floors={
                floor.probe: float(floor.minimum_percent) for floor in serving.spec.quality.floors
            },
            live=serving.spec.engine.plugin is Switch.ENABLED,
            # One pod is in no arm: it is compared with itself, by turns.
            routed=routed and (serving.spec.replicas > 1 or start is not None),
            tries="" if start is None else start.revision.hash,
            next_keys=next_keys,
            retry=serving.metadata.annotations.get(RETRY_ANNOTATION, ""),
            apart=apart,
        )
        seen = Seen(
            pods=pods,
            runtime=turn.readback.runtime,
            targets={pod.name: target_of(pod, token, api_key) for pod in pods},
            refusals=refusals,
            observation=turn.observation,
            pairs=self._probing.collect(),
            answers=self._asking.collect(),
            steady=steady,
            probe_set=await self._probe_set(serving, trials, wanted, found),
            model=serving.spec.model.name or ref.name,
            max_tokens=_longest(serving, turn.readback.runtime),
            now=now,
            start=start,
            split=split,
            probing=self._probing.under_way or self._asking.under_way,
            unanswered_seconds=max(
                self._probing.unanswered_seconds, self._asking.unanswered_seconds
            ),
        )
        wanted = replace(wanted, weights=same_weights(seen))
        asked_for = tuner_trial(wanted, turn.decision)
        if asked_for is not None:
            made = await self._make(manifest(ref, *asked_for, decision_of(turn)))
            found |= {made.metadata.name: made} if made is not None else {}
        outcome = look(trials, wanted, tuple(found.values()), seen)
        if outcome.begun and outcome.record is not None and policy.spec is not None:
            spec = trial_spec(wanted, outcome.record, policy.spec)
            if outcome.record.revision and start is not None:
                change = change_spec(outcome.record, start)
                spec = spec.model_copy(update={"change": change})
            made = await self._make(manifest(ref, outcome.record.name, spec))
            found |= {made.metadata.name: made} if made is not None else {}
        ended = outcome.record is not None and outcome.trials.running is None
        if ended:
            # Told first: a trial that is not remembered any more must not look open.
            await self._tell(ref, outcome, found, now)
            self.forget()
        await remember(outcome.trials)
        if not ended:
            await self._tell(ref, outcome, found, now)
        await self._prune(ref, found)
        if outcome.asks_no_more:
            self._probing.finish()
            self._asking.finish()
        if outcome.probes:
            self._probing.ask(outcome.probes, outcome.prompts)
        if _switches(outcome):
            # An answer of an engine that is switched meanwhile is an answer of neither.
            self._asking.stop()
        if outcome.asks:
            self._asking.ask(outcome.asks)
        return replace(outcome, found=tuple(found.values()))

    def forget(self) -> None:
        """End what is under way."""
        self._probing.stop()
        self._asking.stop()

    async def _probe_set(
        self, serving: KVServing, trials: Trials, wanted: Wanted, found: Mapping[str, KVTrial]
    ) -> ProbeSet:
        """Prompts, read only where something is measured or may begin to be."""
        settled = trials.settled
        asks = settled is None or settled.asked != wanted.asked or bool(wanted.tries)
        measures = trials.running is not None or trials.watch is not None
        if asks or measures or any(is_open(trial) for trial in found.values()):
            return await read_probe_set(self._cluster, serving)
        return ProbeSet()

    async def _trials(self, ref: ServingRef) -> dict[str, KVTrial]:
        """KVTrials of this KVServing by name."""
        found = {}
        for body in await self._cluster.list(Kind.KVTrial, ref.namespace, {}):
            try:
                trial = parse_trial(body)
            except SpecError as error:
                # The API server checks the same rules: this one is older than they are.
                logger.warning("trial %s/%s: %s", ref.namespace, body["metadata"]["name"], error)
                continue
            gone = trial.metadata.deletion_timestamp is not None
            if trial.spec.serving_ref.name == ref.name and not gone:
                found[trial.metadata.name] = trial
        return found

    async def _make(self, wanted: Mapping[str, object]) -> KVTrial | None:
        try:
            return parse_trial(await self._cluster.create(wanted))
        except Conflict:
            return None

    async def _tell(
        self, ref: ServingRef, outcome: Outcome, found: Mapping[str, KVTrial], now: float
    ) -> None:
        """Write the status of the trial that was looked at, and of edits that nobody wants now."""
        record = outcome.record
        for name, trial in found.items():
            status: KVTrialStatus = trial.status
            if record is not None and name == record.name:
                status = trial_status(record, trial.status, trial.metadata.generation, now)
            elif trial.spec.requested_by is RequestedBy.SPEC and is_open(trial):
                message = "the spec was edited before the trial could end"
                status = superseded_status(trial, message, now)
            if status.to_api() != trial.status.to_api():
                await self._write(ref, name, status)

    async def _prune(self, ref: ServingRef, found: Mapping[str, KVTrial]) -> None:
        """Delete the oldest trials that nobody made by hand."""
        ended = sorted(
            (
                trial
                for trial in found.values()
                if trial.spec.requested_by is not RequestedBy.USER and not is_open(trial)
            ),
            key=lambda trial: trial.status.finished_at or "",
        )
        for trial in ended[:-HISTORY]:
            uid = trial.metadata.uid
            await self._cluster.delete(Kind.KVTrial, ref.namespace, trial.metadata.name, uid)

    async def _write(self, ref: ServingRef, name: str, status: KVTrialStatus) -> None:
        where = ref.namespace, name
        await apply_status(self._cluster, Kind.KVTrial, *where, status.to_api())


def _in_force(
    current: Revision,
    asked: KVSettings,
    pods: Iterable[PodView],
    runtime: Mapping[str, RuntimeState],
    found: Iterable[KVTrial],
) -> KVSettings:
    """What engines run with where nothing is remembered of it.

    Where all of them run what the spec asks for, and no trial of it is open, they have been through
    one before the memory was lost.
    """
    states = [runtime[pod.name] for pod in pods if pod.ready and pod.name in runtime]
    in_trial = any(is_open(each) and each.spec.requested_by is RequestedBy.SPEC for each in found)
    if states and not in_trial and all(runs(asked, state) for state in states):
        return asked
    return sixteen_bits(asked) if current.start is None else current.start


def _longest(serving: KVServing, runtime: Mapping[str, RuntimeState]) -> int:
    """Longest context that every engine takes: the spec's, and what they report.

    Those of a former template may take less than the spec says.
    """
    own = serving.spec.engine.max_model_len
    reported = (state.startup.get("max_model_len") for state in runtime.values())
    found = [each for each in (own, *reported) if isinstance(each, int)]
    return min(found, default=DEFAULT_CONTEXT)


def decision_of(turn: Turn) -> str:
    """Identity of the decision of a turn; empty where it has none."""
    return "" if turn.decision is None else turn.decision.id


def _switches(outcome: Outcome) -> bool:
    """Whether other engines are to have the change than before."""
    before, record = outcome.before, outcome.record
    if before is None or record is None:
        return False
    return before.progress.candidates != record.progress.candidates
