"""Traces of decisions and trials: which spans, in which trace, with which numbers, and no texts."""

from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kvserving_operator.render.names import DECISION_ANNOTATION
from kvserving_operator.tracing.emitter import Emitter, Identity
from kvserving_operator.tracing.tracer import DecisionTracer
from operatorkit.specs import NAME, NAMESPACE
from operatorkit.trials import GUARDED, only_trial, reach, ready, serve, trials
from operatorkit.world import World

WORDS = ("as the test says", "preemptions in", " worse", "takes the change")


@pytest.fixture
def spans(world: World) -> Callable[[], Sequence[ReadableSpan]]:
    """Spans that have ended."""
    memory = InMemorySpanExporter()
    world.watchers = (DecisionTracer(Emitter(SimpleSpanProcessor(memory), "one")),)
    world.new_controller()
    return memory.get_finished_spans


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


async def decided(world: World, cap: int) -> None:
    """Have the tuner change the cap once."""
    world.judge.next_cap = cap
    await world.tick(30)


async def test_a_change_is_one_trace_from_what_was_observed_to_what_is_read_back(
    world: World, spans: Callable[[], Sequence[ReadableSpan]]
) -> None:
    world.put()
    await world.settle()
    before = len(spans())
    await decided(world, 12)
    await world.tick()
    found = spans()[before:]
    root = named(found, "decision")[0]
    mine = [each for each in found if each.context.trace_id == root.context.trace_id]
    assert {"decision", "observe", "diagnose", "propose", "act", "read back"} == {
        each.name for each in mine
    }
    for each in mine:
        if each is not root:
            assert each.parent is not None
            assert each.parent.span_id == root.context.span_id
    assert root.parent is None
    attributes = dict(root.attributes or {})
    assert {
        "k8s.namespace.name": NAMESPACE,
        "kvserving.name": NAME,
        "kvserving.diagnosis": "PreemptionStorm",
        "kvserving.action": "Change",
        "kvserving.knob": "MaxActiveSeqs",
        "kvserving.from": 16,
        "kvserving.to": 12,
        "kvserving.outcome": "Applied",
    }.items() <= attributes.items()
    (diagnosed,) = named(mine, "diagnose")
    assert 7.0 == dict(diagnosed.attributes or {})["kvserving.evidence.preemptions"]
    (read,) = named(mine, "read back")
    found_back = dict(read.attributes or {})
    assert 1 == found_back["kvserving.engines"] == found_back["kvserving.engines.agree"]
    assert read.start_time is not None
    assert root.end_time is not None
    assert read.start_time >= root.end_time


async def test_a_change_that_no_engine_takes_is_an_error_and_not_read_back(
    world: World, spans: Callable[[], Sequence[ReadableSpan]]
) -> None:
    world.put()
    await world.settle()
    world.engines.refusing = set(world.engines.caps)
    await decided(world, 12)
    await world.tick()
    (act,) = named(spans(), "act")
    assert StatusCode.ERROR is act.status.status_code
    assert [] == named(spans(), "read back")


async def test_a_trial_is_told_step_by_step_to_its_verdict(
    world: World, spans: Callable[[], Sequence[ReadableSpan]]
) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 120)
    assert "Promoted" == only_trial(world)["verdict"]
    (trial,) = named(spans(), "trial")
    mine = [each for each in spans() if each.context.trace_id == trial.context.trace_id]
    names = [each.name for each in mine]
    assert ["screen", "trial step", "trial step", "verdict", "act", "read back", "trial"] == [
        name for name in names if name != "wait"
    ]
    steps = [dict(each.attributes or {}) for each in named(mine, "trial step")]
    assert [(0, 50), (1, 100)] == [
        (each["kvserving.step"], each["kvserving.step.percent"]) for each in steps
    ]
    assert all(each.parent and each.parent.span_id == trial.context.span_id
               for each in mine if each is not trial)  # fmt: skip
    verdict = named(mine, "verdict")[0]
    assert "Promoted" == dict(verdict.attributes or {})["kvserving.verdict"]
    criteria = {dict(each.attributes or {})["kvserving.criterion"] for each in verdict.events}
    assert "ServedLikelihoodShort" in criteria
    back = dict(named(mine, "read back")[0].attributes or {})
    assert "int8" == back["kvserving.effective.kv_cache_dtype"]
    assert trial.start_time is not None
    assert trial.end_time is not None
    assert trial.end_time - trial.start_time > 40e9


async def test_a_trial_that_the_tuner_asked_for_is_part_of_its_decision(
    world: World, spans: Callable[[], Sequence[ReadableSpan]]
) -> None:
    await ready(world, tuning={"mode": "Auto", "allowedDtypes": ["int8"]})
    world.judge.next_dtype = "int8"
    await world.tick(30)
    await serve(world, 3)
    (made,) = trials(world).values()
    asked_by = made["metadata"]["annotations"][DECISION_ANNOTATION]
    await reach(world, "Running")
    decisions = [
        each
        for each in named(spans(), "decision")
        if dict(each.attributes or {})["kvserving.decision"] == asked_by
    ]
    screened = named(spans(), "screen")[0]
    assert decisions[0].context.trace_id == screened.context.trace_id


async def test_after_a_restart_what_is_left_of_a_trial_belongs_to_the_same_trace(
    world: World, spans: Callable[[], Sequence[ReadableSpan]]
) -> None:
    await ready(world)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await reach(world, "Running")
    memory = InMemorySpanExporter()
    world.watchers = (DecisionTracer(Emitter(SimpleSpanProcessor(memory), "two")),)
    world.new_controller()
    await serve(world, 120)
    (trial,) = named(memory.get_finished_spans(), "trial")
    (screened,) = named(spans(), "screen")
    assert trial.context.trace_id == screened.context.trace_id
    assert screened.parent is not None
    assert screened.parent.span_id == trial.context.span_id


async def test_no_span_has_anybodys_texts(
    world: World, spans: Callable[[], Sequence[ReadableSpan]]
) -> None:
    await ready(world)
    await decided(world, 12)
    world.put(replicas=2, **GUARDED, kvCache={"dtype": "int8"})
    await serve(world, 60)
    told = [str(value) for span in spans() for value in (span.attributes or {}).values()]
    told += [str(v) for s in spans() for e in s.events for v in (e.attributes or {}).values()]
    assert len(told) > 50
    assert not [each for each in told if len(each) > 64 or any(words in each for words in WORDS)]


def test_identities_follow_from_names() -> None:
    assert Identity.of("a", "b") == Identity.of("a", "b")
    assert Identity.of("a", "b") != Identity.of("ab")
    assert Identity.of("trial", "x").context.is_valid
