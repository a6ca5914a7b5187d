"""After a promotion the gate goes on at a lower rate: what is kept of that between two looks."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from kvserving_operator.live import KVSettings
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.watched import Baseline, Watched

SECONDS_BETWEEN = 60.0
"""A pair of probes of a few hundred tokens takes seconds: a few percent of one engine's time."""
TASK_SECONDS_BETWEEN = 120.0
"""Between two tasks: their prompts are longer, and tokens of an answer come one by one."""
TASK_SHARE = 0.02
"""Most of one engine's time that tasks take, however slow it is."""


class Watch(BaseModel):
    """What was promoted, and what probes have said since."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    trial: str
    settings: KVSettings
    fallback: KVSettings
    plan: Plan
    reject_for_seconds: float
    template: str = ""
    """Hash of the template of the pods that answered in 16 bits."""
    weights: str = ""
    """Hash of the weights that they had; empty where they did not tell."""
    number: int = 0
    """Prompts scored so far."""
    asked_at: float = 0.0
    task_asked_at: float = 0.0
    task_seconds: float = 0.0
    """Time that the last task took."""
    watched: Watched = Watched()
    broken: bool = False
    """Whether a prompt had likelihoods that are no numbers."""
    failed_prompt: str = ""
    """Why the last prompt could not be scored; empty where it was."""
    failed_task: str = ""
    """The same of tasks."""
    note: str = ""
    """What is not watched now, and why; empty where all is."""

    @property
    def asker(self) -> str:
        """Who asks the next task: answers to any other one do not count, and none is cached."""
        return f"{self.trial}-watch-{self.watched.task}"

    def asks(self, now: float) -> bool:
        """Whether the next prompt is due."""
        return self.plan.likelihood and now - self.asked_at >= SECONDS_BETWEEN

    def asks_task(self, now: float) -> bool:
        """Whether the next task is due."""
        pause = max(TASK_SECONDS_BETWEEN, self.task_seconds / TASK_SHARE)
        return now - self.task_asked_at >= pause

    def baselines_of(
        self, settings: KVSettings, template: str, weights: str
    ) -> Mapping[str, Baseline]:
        """What 16 bits gave before these settings were promoted, on pods of this template."""
        engines = settings, template, weights
        same = engines == (self.settings, self.template, self.weights) and self.watched.compares
        return self.watched.baselines if same else {}

    def under(self, template: str, weights: str, floors: Mapping[Probe, float]) -> "Watch":
        """For the pods' template, their weights and the floors that are in force now."""
        watch = self
        reloaded = bool(weights and self.weights) and weights != self.weights
        if (template != self.template or reloaded) and self.watched.compares:
            watch = watch.model_copy(update={"watched": watch.watched.replaced()})
        if dict(floors) == self.plan.floors:
            return watch
        tasks = tuple(each for each in Probe if each in self.plan.tasks or each in floors)
        plan = self.plan.model_copy(update={"floors": dict(floors), "tasks": tasks})
        return watch.model_copy(update={"plan": plan, "watched": watch.watched.with_floors(plan)})
