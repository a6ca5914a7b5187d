"""Trials of engines that are slower while they are probed, second by second."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvserving_operator.trials.measuring import with_block
from kvserving_operator.trials.probe_set import ProbeSet
from kvserving_operator.trials.record import Record
from kvserving_operator.trials.seen import Seen
from kvserving_tuner import windows
from kvserving_tuner.aliases import Quantity
from kvserving_tuner.observation import EngineObservation, Window
from kvserving_tuner.readings import Unknown
from kvserving_tuner.snapshot import Cumulative, Rank, Snapshot
from kvserving_tuner.trials.alternation import Alternation
from kvserving_tuner.trials.facts import Facts
from kvserving_tuner.trials.likelihoods import next_prompts, scored
from kvserving_tuner.trials.machine import advance
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import ACTIVE, Progress, State
from operatorkit import trials
from tunerkit.build import engine, observation

LOOK_SECONDS = 5
SLOTS = 16
"""Requests that an engine runs at once."""
SIZE_SECONDS = 16.0
"""What a request takes in the mean where nothing slows it."""
TOKENS = 40
"""Of each answer."""
EDGES = (2.0, 10.0, 30.0, math.inf)
EMPTY = Cumulative(EDGES, (0.0,) * len(EDGES), 0.0)


@dataclass
class Request:
    """A request in an engine."""

    came: int
    left: float
    """Seconds that it still takes."""
    began: int = 0


@dataclass
class BusyEngine:
    """An engine that `clients` ask again and again, or strangers `rate` times a second."""

    name: str
    chance: random.Random
    clients: int = 0
    rate: float = 0.0
    scrape_offset: int = 0
    scrape_seconds: int = 5
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    finished: int = 0
    ttft: Cumulative = EMPTY
    tpot: Cumulative = EMPTY
    scrapes: list[Snapshot] = field(default_factory=list)

    def second(self, now: int, speed: float) -> None:
        """Serve for a second at this speed."""
        come = self.clients - len(self.waiting) - len(self.running)
        if self.rate:
            come = sum(self.chance.random() < self.rate / 4 for _ in range(4))
        for _ in range(come):
            self.waiting.append(Request(now, self.chance.expovariate(1 / SIZE_SECONDS)))
        while self.waiting and len(self.running) < SLOTS:
            request = self.waiting.pop(0)
            self.running.append(replace(request, began=now))
            self.ttft = _with(self.ttft, now - request.came + 1.0)
        for request in self.running:
            request.left -= speed
        for request in [each for each in self.running if each.left <= 0]:
            self.running.remove(request)
            self.finished += 1
            self.tpot = _with(self.tpot, (now - request.began + 1) / TOKENS)
        if now % self.scrape_seconds == self.scrape_offset % self.scrape_seconds:
            self.scrapes = [*self.scrapes[-40:], self._snapshot(now)]

    def observed(self) -> EngineObservation:
        """What the last minute of scrapes says."""
        full = windows.window(self.scrapes, 60, 3, 0.7)
        return engine(full, name=self.name)

    @property
    def in_flight(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.running)

    def _snapshot(self, now: int) -> Snapshot:
        values = {
            Quantity.RUNNING: len(self.running), Quantity.WAITING: len(self.waiting),
            Quantity.KV_USAGE: 0.5, Quantity.PREEMPTIONS: 0, Quantity.FINISHED: self.finished,
            Quantity.GENERATION_TOKENS: TOKENS * self.finished, Quantity.PROMPT_TOKENS: 0,
            Quantity.HTTP_REQUESTS: self.finished, Quantity.HTTP_ERRORS: 0, Quantity.FAILED: 0,
            Quantity.PREFIX_QUERIES: 0, Quantity.PREFIX_HITS: 0,
        }  # fmt: skip
        histograms = {Quantity.TTFT: self.ttft, Quantity.TPOT: self.tpot}
        rank = Rank({name: float(each) for name, each in values.items()}, histograms)
        absent = dict.fromkeys((Quantity.PROMPT_LENGTHS, Quantity.ANSWER_LENGTHS), "absent")
        return Snapshot(
            at=float(now), ranks={"0": rank}, gaps=absent, names={}, process={},
            settings=frozenset(), capacity_tokens=None, block_size=None, engine_samples=1,
        )  # fmt: skip


def _with(counted: Cumulative, value: float) -> Cumulative:
    counts = tuple(n + (value <= edge) for n, edge in zip(counted.counts, EDGES, strict=True))
    return Cumulative(EDGES, counts, counted.total + value)


@dataclass
class BusyTrial:
    """A trial of engines under load, of which `a` has the change first."""

    plan: Plan
    seed: int
    slowed: float
    """Part of its speed that an engine loses while it is probed."""
    speed: float = 1.0
    """Of an engine with the change, over that of one without."""
    rise: float = 0.0005
    """Of the negative log-likelihood, with the change."""
    pods: int = 2
    clients: int = 24
    rate: float = 0.0
    scrape_seconds: int = 5
    pair_seconds: int = 20
    """What a pair of probes takes."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.now = 1000
        self.engines = [
            BusyEngine(
                name, self.chance, 0 if self.rate else self.clients, self.rate, 7 * number,
                self.scrape_seconds,
            )
            for number, name in enumerate("abcd"[: self.pods])
        ]  # fmt: skip
        self.changed: frozenset[str] = frozenset()
        self.probed_until = 0
        self.asked = False
        turns = Alternation() if self.pods == 1 else None
        self.record: Record = trials.record("a", plan=self.plan, alternation=turns)
        self.finished: dict[str, int] = {}
        self.probed_blocks: list[float] = []

    @property
    def progress(self) -> Progress:
        """Of the trial."""
        return self.record.progress

    def run(self, seconds: int) -> Progress:
        """Look until it has ended, or so much time has passed."""
        end = self.now + seconds
        while self.now < end and self.progress.state in ACTIVE:
            self.look()
        return self.progress

    def restart(self) -> None:
        """Start the operator anew: what was stored is kept, and what was asked is hung up on."""
        self.record = Record.model_validate_json(self.record.model_dump_json())
        self.asked, self.probed_until = False, min(self.now, self.probed_until)

    def look(self) -> None:
        """Five seconds and a look."""
        for _ in range(LOOK_SECONDS):
            self.now += 1
            for each in self.engines:
                speed = self.speed if each.name in self.changed else 1.0
                probed = self.now <= self.probed_until and each.name in self.changed
                each.second(self.now, speed * (1 - self.slowed if probed else 1))
        pairs = 0
        if self.asked and self.now >= self.probed_until:
            self.asked, pairs = False, 1
        found = self._facts()
        progress = self.progress
        if pairs:
            # Some prompts differ more than others.
            rise = self.rise + self.chance.gauss(0, 0.003)
            progress = scored(self.plan, progress, "Served", "Medium", [rise])
        before = progress.schedule
        record = self.record.model_copy(update={"progress": progress})
        record = with_block(record, found, self._seen())
        if record.progress.schedule.quiet > before.quiet:
            self._check_quiet(record)
        progress = advance(self.plan, record.progress, found)
        self.record = record.model_copy(update={"progress": progress})
        self.changed = frozenset(progress.candidates)
        if progress.state is State.RUNNING and not self.asked and next_prompts(
            self.plan, progress, replace(found, changed=self.changed)
        ):  # fmt: skip
            self.asked, self.probed_until = True, self.now + self.pair_seconds

    def _check_quiet(self, record: Record) -> None:
        """No probe may have been under way in a block that counts."""
        windows_ = [each.observed().full for each in self.engines]
        starts = [each.start for each in windows_ if isinstance(each, Window)]
        if self.progress.alternation is None or self.progress.alternation.with_change:
            self.probed_blocks += [start for start in starts if start < self.probed_until]

    def _facts(self) -> Facts:
        mine = [each for each in self.engines if each.name in self.changed]
        others = [each for each in self.engines if each.name not in self.changed]
        new = sum(each.finished - self.finished.get(each.name, each.finished) for each in mine)
        self.finished = {each.name: each.finished for each in mine}
        return Facts(
            float(self.now),
            tuple(each.name for each in self.engines),
            self.changed,
            settled=self.changed == set(self.progress.candidates),
            finished=float(new),
            probing=self.asked,
            in_flight=float(sum(each.in_flight for each in mine)),
            queue=_mean_queue(mine),
            others_queue=_mean_queue(others),
            prompts=400,
        )

    def _seen(self) -> Seen:
        found = [each.observed() for each in self.engines]
        ready = all(not isinstance(each.full, Unknown) for each in found)
        return Seen(
            pods=(), runtime={}, targets={}, refusals=(), pairs=(), answers=(), steady=True,
            observation=observation(*found, at=float(self.now)) if ready else None,
            probe_set=ProbeSet(), model="m", max_tokens=2048, now=float(self.now),
        )  # fmt: skip


def _mean_queue(engines: Sequence[BusyEngine]) -> float | None:
    return sum(len(each.waiting) for each in engines) / len(engines) if engines else None
