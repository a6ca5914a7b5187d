"""Four KVServings as an operator knows them after an hour, told to a book look by look."""

import math
import random
from dataclasses import replace
from typing import Final

from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import KVServingStatus, KVTrial, RequestedBy
from kvserving_operator.api.v1alpha1.parse import parse_serving, parse_trial
from kvserving_operator.facts import Facts
from kvserving_operator.live import KVSettings
from kvserving_operator.looks import Look
from kvserving_operator.revisions import RevisionState
from kvserving_operator.rollout import Phase, Step
from kvserving_operator.switching import Switched
from kvserving_operator.trials.record import Record, Trials
from kvserving_operator.trials.report import trial_status
from kvserving_operator.trials.turn import Outcome
from kvserving_operator.tuning import Readback, Turn
from kvserving_operator.web.book import Book
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, FleetObservation, Observation
from kvserving_tuner.readings import Known, Unknown
from kvserving_tuner.state import TunerState
from kvserving_tuner.trials.plan import Guard, Plan
from kvserving_tuner.trials.progress import Progress, State
from webkit.courses import Course, courses

START: Final = 1_800_000_000.0
LOOK_SECONDS: Final = 10.0
LOOKS: Final = 330
EDGES: Final = (0.005, 0.01, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6,
                0.8, 1.0, 1.5, math.inf)  # fmt: skip
NOTHING: Final = Unknown("not measured")


def histogram(seconds: float, chance: random.Random) -> Histogram:
    """Latencies of a minute whose 95th percentile is about so many seconds."""
    counts = [0.0] * len(EDGES)
    for _ in range(200):
        value = seconds * math.exp(chance.gauss(-0.8, 0.45))
        counts[next(i for i, edge in enumerate(EDGES) if value <= edge)] += 1
    return Histogram(EDGES, tuple(counts), sum(counts) * seconds)


def observation(course: Course, at: float, number: int, chance: random.Random) -> Observation:
    """Metrics of one look."""
    wave = 0.07 * math.sin(number / 23) + 0.03 * math.sin(number / 5)
    # With int8 on half of the engines there is more room.
    eased = 0.16 if course.name == "chat" and number > 195 else 0.0
    used = min(0.99, max(0.02, course.load + wave - eased + chance.gauss(0, 0.01)))
    strain = 1 + 0.5 * wave / 0.1 * 0.3
    quiet = course.name == "code" and 120 < number < 170
    ttft = NOTHING if quiet else histogram(course.ttft * strain, chance)
    tpot = NOTHING if quiet else histogram(course.tpot * strain, chance)
    known = Known(used, at)
    fleet = FleetObservation(
        2, 2, known, known, known, known, known, known, known, known, known, ttft, tpot
    )
    engine = EngineObservation(
        "pod", at, True, 1, at, None, known, known, known, known, known, known, known,
        NOTHING, NOTHING, NOTHING, NOTHING,
    )  # fmt: skip
    return Observation(at, (engine,), fleet)


def first_record() -> Record:
    """The trial of `chat` as it begins."""
    return Record(
        name="chat-5f0c1d2e",
        requested_by=RequestedBy.TUNER,
        asked=KVSettings(),
        template="t",
        stable=KVSettings(kv_cache_dtype="bfloat16"),
        candidate=KVSettings(kv_cache_dtype="int8"),
        fallback=KVSettings(),
        plan=Plan(steps=(25, 50), guards={Guard.TTFT: 10.0, Guard.TPOT: 10.0}),
        reject_for_seconds=86_400,
        progress=Progress(state=State.SCREENING),
    )


def grown(record: Record, number: int, chance: random.Random) -> Record:
    """The trial one look later."""
    progress, plan = record.progress, record.plan
    if number == 190:
        progress = progress.becomes(State.RUNNING, step=0, candidates=("chat-7d4-x2",),
                                    started_at=START + 1900)  # fmt: skip
    if number == 280:
        progress = progress.becomes(
            State.RUNNING, step=1, candidates=("chat-7d4-x2", "chat-7d4-k9")
        )
    kind = "Served" if number >= 190 else "Screened"
    for length, mean in (("Short", 0.0012), ("Long", 0.0021)):
        criterion = plan.quality(f"{kind}Likelihood{length}")
        progress = progress.compared(criterion, [chance.gauss(mean, 0.02)])
    if number >= 190 and number % 6 == 0:
        progress = progress.compared(plan.guard(Guard.TTFT), [chance.gauss(-0.04, 0.05)])
        progress = progress.compared(plan.guard(Guard.TPOT), [chance.gauss(0.015, 0.03)])
    return record.model_copy(update={"progress": progress})


def kvtrial(course: Course, record: Record, now: float) -> KVTrial:
    """The trial's KVTrial."""
    body = {
        "apiVersion": "kvserving.dev/v1alpha1", "kind": "KVTrial",
        "metadata": {"name": record.name, "namespace": course.namespace, "uid": record.name,
                     "creationTimestamp": "2027-01-15T08:25:20Z"},
        "spec": {"servingRef": {"name": course.name},
                 "change": {"kvCacheDtype": record.candidate.kv_cache_dtype},
                 "requestedBy": record.requested_by.value},
    }  # fmt: skip
    trial = parse_trial(body)
    return trial.model_copy(update={"status": trial_status(record, trial.status, 1, now)})


def ended_trial(course: Course) -> KVTrial:
    """The trial of `rag`, which ended before this operator began."""
    status = {
        "state": "Finished", "summary": "KVCacheDType bfloat16 -> int4", "verdict": "RolledBack",
        "reason": "QualityDrop", "step": 0, "stepPercent": 25,
        "startedAt": "2027-01-15T08:20:00Z", "finishedAt": "2027-01-15T08:31:10Z",
        "message": course.conditions[-1]["message"],
        "evidence": [{
            "name": "ServedLikelihoodShort", "outcome": "Failed", "value": "4.81", "threshold": "2",
            "lower": "3.02", "upper": "6.6", "samples": 74, "eValue": "312.4",
        }],
    }  # fmt: skip
    return parse_trial(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVTrial",
            "metadata": {"name": "rag-1c77ab90", "namespace": "demo", "uid": "rag-1c77ab90",
                         "creationTimestamp": "2027-01-15T08:18:00Z"},
            "spec": {"servingRef": {"name": "rag"}, "change": {"kvCacheDtype": "int4"},
                     "requestedBy": "Spec"},
            "status": status,
        }
    )  # fmt: skip


def status_of(course: Course, engines: int) -> KVServingStatus:
    """Status of a KVServing."""
    pods = [
        {"name": f"{course.name}-7d4-{end}", "state": "Ready", "kvCacheDtype": "bfloat16",
         "maxActiveSeqs": 18, "restarts": 0}
        for end in ("x2", "k9", "m4", "p1")[:engines]
    ]  # fmt: skip
    return KVServingStatus.model_validate(
        {
            "conditions": course.conditions,
            "replicas": engines,
            "readyReplicas": engines,
            "effective": {"kvCacheDtype": "bfloat16", "eviction": "None", "maxActiveSeqs": 18},
            "capacity": {"kvCacheTokens": 41_216},
            "pods": pods,
            **course.status,
        }
    )


def tell(book: Book, course: Course, looks: int = LOOKS) -> float:
    """Tell a book of a KVServing's hour; gives the moment of the last look."""
    chance = random.Random(course.name)
    engines = {"chat": 4, "rag": 3, "docs": 4, "code": 1}.get(course.name, 2)
    serving = parse_serving(
        {
            "apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing",
            "metadata": {"name": course.name, "namespace": course.namespace, "uid": course.ref.uid},
            "spec": {"model": {"name": course.model, "uri": "pvc://models/m"}, "replicas": engines,
                     "engine": {"accelerator": "CPU", "kvCacheMemory": "64Mi"},
                     "tuning": {"mode": course.mode}, "slo": course.slo, **course.spec},
        }
    )  # fmt: skip
    status, record = status_of(course, engines), None
    trials: tuple[KVTrial, ...] = ()
    now = START
    for number in range(looks):
        now = START + number * LOOK_SECONDS
        if course.name == "chat" and number >= 152:
            record = grown(record or first_record(), number, chance)
            if number % 60 == 0 or number == looks - 1:
                trials = (kvtrial(course, record, now),)
        elif course.name == "rag" and number >= 186:
            trials = (ended_trial(course),)
        facts = Facts(
            serving=serving,
            ref=course.ref,
            pods=(),
            step=Step(RevisionState(), Phase.DONE, Reason.AS_EXPECTED, ""),
            turn=Turn(Readback(), (), TunerState(), observation(course, now, number, chance)),
            switched=Switched(),
            now=now,
            trials=Trials(running=record),
            trial=Outcome(Trials(running=record), record, record, found=trials),
        )
        look = Look(facts, status)
        said = course.said.get(number)
        book.looked(look if said is None else replace(look, announced=(said,)))
    return now


def fleet() -> tuple[Book, float]:
    """All of them, and the moment of the last look."""
    book = Book()
    return book, max(tell(book, course) for course in courses())
