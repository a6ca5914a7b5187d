"""What is remembered of trials: the one under way, and what the ones before it left in force."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from kvserving_operator.api.v1alpha1 import RequestedBy, SplitBy
from kvserving_operator.live import KVSettings, differences
from kvserving_operator.observe import PodView
from kvserving_operator.trials.watch import Watch
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import Progress, Verdict

DTYPE_FIELD, EVICTION_FIELD = "KVCacheDType", "Eviction"
START_UP_FIELD = "StartUp"
"""Stands for all settings that an engine is started with."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Engines(_Frozen):
    """What a verdict on a change holds for; empty where it is not known."""

    build: str = ""
    """Hash of model, image, parallelism and accelerator (`Revision.engines_hash`)."""
    weights: str = ""
    """Hash of the weights that all of them have."""

    def differ(self, other: Self) -> bool:
        """Whether these are known to be others."""
        pairs = (self.build, other.build), (self.weights, other.weights)
        return any(one and two and one != two for one, two in pairs)


class Record(_Frozen):
    """A trial under way."""

    name: str
    """Of its KVTrial."""
    requested_by: RequestedBy
    asked: KVSettings
    """`spec.kvCache` while it runs; an edit voids it."""
    template: str
    """Hash of the pods' template; other pods are another trial's."""
    build: str = ""
    """What else is known of its engines, as `Engines` has it."""
    weights: str = ""
    """Hash of the weights that its engines have; empty where they do not tell."""
    stable: KVSettings
    """In force when it began."""
    candidate: KVSettings
    fallback: KVSettings
    """Where the fleet goes when quality fell."""
    plan: Plan
    reject_for_seconds: float
    split_by: SplitBy = SplitBy.SESSION
    revision: str = ""
    """Hash of the template that candidates are started from; empty where pods that run take the
    change, and the fields after it then mean nothing."""
    base: str = ""
    """Names all of that template but the KV cache, and `content` what decides about answers."""
    content: str = ""
    start_up: str = ""
    """What is new in it, in words."""
    retry: str = ""
    """Value of the retry annotation: another one asks to try the template again."""
    progress: Progress = Progress()
    containers: Mapping[str, str] = Field(default_factory=dict)
    """Container of each pod that took the change: another one means that the engine ended."""
    finished: Mapping[str, float] = Field(default_factory=dict)
    """Requests that each of these had finished when they were last counted."""
    evidence_at: float = 0.0
    """When the newest answer of a probe that counts was known, in seconds since the epoch."""
    own_tasks: Mapping[str, float] = Field(default_factory=dict)
    """Tasks of the trial that each pod has answered."""
    block_from: float = 0.0
    """Start of the block of time that is being measured, in seconds since the epoch."""
    own_failures: Mapping[str, float] = Field(default_factory=dict)
    """Tasks of the trial itself that engines have failed since then, by pod."""
    garbage: int = 0
    """Tasks in a row that engines with the change gave no answer to, and others a right one."""
    failed_prompt: str = ""
    """Why the last prompt could not be scored; empty where it was."""
    failed_task: str = ""
    """The same of tasks."""
    again: bool = False
    """Whether the same change is to be tried anew: its pods were replaced, and it is wanted still.
    """

    @property
    def engines(self) -> Engines:
        """Engines that its verdict is of."""
        return Engines(build=self.build, weights=self.weights)

    @property
    def remains(self) -> KVSettings:
        """What pods that are no candidates run with."""
        conclusion = self.progress.conclusion
        if conclusion is None or self.revision:
            return self.stable
        if conclusion.verdict is Verdict.PROMOTED:
            return self.candidate
        return self.fallback if conclusion.to_fallback else self.stable

    def settings_of(self, pod: str) -> KVSettings:
        """What a pod is to run with."""
        return self.candidate if pod in self.progress.candidates else self.remains

    @property
    def ready_for_all(self) -> bool:
        """Whether the template is to be put in force."""
        conclusion = self.progress.conclusion
        if conclusion is None or not self.revision:
            return False
        return conclusion.verdict is Verdict.PROMOTED or conclusion.untried

    def has_change(self, pod: PodView, state: RuntimeState) -> bool:
        """Whether an engine has what is tried."""
        if self.revision:
            return pod.revision == self.revision
        return not differences(self.candidate, state)

    @property
    def change(self) -> str:
        """The change in words."""
        if self.revision:
            return self.start_up
        return f"{self.stable} -> {self.candidate}"

    @property
    def field(self) -> str:
        """Setting that is changed."""
        if self.revision:
            return START_UP_FIELD
        return changed_field(self.stable, self.candidate)


def changed_field(before: KVSettings, after: KVSettings) -> str:
    """Setting in which these differ; the format where they differ in both."""
    return EVICTION_FIELD if before.kv_cache_dtype == after.kv_cache_dtype else DTYPE_FIELD


class Ended(_Frozen):
    """How a trial ended, as `status.verdicts` has it."""

    trial: str
    field: str
    value: str
    """What was tried."""
    verdict: Verdict
    reason: str
    at: float
    """In seconds since the epoch."""


class Settled(_Frozen):
    """What engines run with, and for which `spec.kvCache` that was settled."""

    asked: KVSettings
    settings: KVSettings
    template: str = ""
    """Hash of the pods' template then."""
    engines: Engines = Engines()
    """Engines that a verdict is of; of none where a person or the spec settled it."""
    trial: str = ""
    """KVTrial that settled it; empty where the spec did."""
    rolled_back: bool = False
    """Whether the spec asks for something else."""
    verdict: Verdict | None = None
    message: str = ""
    ended: Ended | None = None
    """The trial's end, kept until the KVServing's status surely has it."""

    @classmethod
    def by_spec(cls, asked: KVSettings, template: str) -> Self:
        """What a spec asks for, without a trial."""
        return cls(asked=asked, settings=asked, template=template)


class Restarted(_Frozen):
    """How the last trial of a template ended."""

    trial: str
    verdict: Verdict
    message: str
    ended: Ended


class TurnedDown(_Frozen):
    """A template that a trial has not passed.

    It is not tried again while the spec asks for it, nor before `until`.
    """

    key: str
    """Names the template: one that was judged by what decides about answers, any other by all that
    its pods are."""
    trial: str
    message: str
    until: float
    retry: str = ""


class Rejected(_Frozen):
    """A change that a trial has turned down: on such engines it is not tried until `until`."""

    settings: KVSettings
    engines: Engines = Engines()
    trial: str
    message: str
    until: float


def remembered(rejections: Iterable[Rejected], now: float) -> tuple[Rejected, ...]:
    """Rejections that still count."""
    return tuple(each for each in rejections if each.until > now)


PASSING: Any = {
    **dict.fromkeys(
        (
            "looked_at",
            "step_seconds",
            "step_requests",
            "quiet_seconds",
            "stalled_seconds",
            "note",
            "held",
        ),
        True,
    ),
    "schedule": {"seconds", "waited", "in_flight", "shortest"},
}
"""Parts of a progress that every look moves."""
SECONDS_UNSTORED = 30.0
"""Most time of a trial that a killed operator loses."""


class Trials(_Frozen):
    """All of it, as kept in the operator's memory."""

    running: Record | None = None
    settled: Settled | None = None
    rejected: tuple[Rejected, ...] = ()
    watch: Watch | None = None
    """Of what was promoted last."""
    restarted: Restarted | None = None
    """How the last trial of a template ended."""
    turned_down: tuple[TurnedDown, ...] = ()

    def turned_down_for(self, keys: Collection[str], retry: str) -> TurnedDown | None:
        """Why a template of these names is not tried; None where it may be."""
        found = (each for each in self.turned_down if each.key in keys and each.retry == retry)
        return next(found, None)

    def lasting(self) -> Any:
        """What is worth a write when it changes."""
        running: dict[str, Any] = {
            "progress": PASSING, "finished": True, "evidence_at": True, "own_tasks": True,
            "failed_prompt": True, "failed_task": True,
        }  # fmt: skip
        if self.running is None or self.running.progress.alternation is None:
            # Engines side by side may be compared from any moment on; one that takes turns with
            # itself only from the moment at which its turn began.
            running["block_from"] = True
        exclude: Any = {"running": running}
        looked_at = 0.0 if self.running is None else self.running.progress.looked_at or 0.0
        return self.model_dump(exclude=exclude), looked_at // SECONDS_UNSTORED
