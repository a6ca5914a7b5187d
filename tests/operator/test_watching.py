"""One look at what was promoted: which answers count, what is due, and what holds."""

import json
import math
from dataclasses import replace
from typing import Any

from kvserving_operator.live import KVSettings
from kvserving_operator.memory import TUNING_KEY, recall
from kvserving_operator.observe import pod_view
from kvserving_operator.trials.asking import Answer
from kvserving_operator.trials.probe_set import ProbeSet
from kvserving_operator.trials.probing import Pair
from kvserving_operator.trials.record import Trials
from kvserving_operator.trials.seen import Seen
from kvserving_operator.trials.watch import SECONDS_BETWEEN, TASK_SECONDS_BETWEEN, Watch
from kvserving_operator.trials.watching import Watching, look_after
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.watched import Baseline, Watched
from operatorkit.engines import runtime_document
from operatorkit.trials import INT8


def seen(**more: Any) -> Seen:
    """Two engines of which the second does not have the change."""
    documents = {
        "chat-1": runtime_document(16, "int8", ("auto", "int8")),
        "chat-2": runtime_document(16, "bfloat16", ("auto", "int8")),
    }
    pods = [
        pod_view({
            "metadata": {"name": name, "uid": name},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        })
        for name in documents
    ]  # fmt: skip
    known: dict[str, Any] = {
        "pods": tuple(pods),
        "runtime": {name: RuntimeState.of(name, each) for name, each in documents.items()},
        "targets": {name: EngineTarget(name, f"http://{name}") for name in documents},
        "refusals": (), "observation": None, "pairs": (), "answers": (), "steady": True,
        "probe_set": ProbeSet(), "model": "m", "max_tokens": 2048, "now": 1000.0,
    }  # fmt: skip
    return Seen(**(known | more))


def promoted(**more: Any) -> Watch:
    """A watch of `int8` that has a floor."""
    plan = Plan(tasks=(Probe.NEEDLE,), floors={Probe.NEEDLE: 50}, min_samples=5)
    known: dict[str, Any] = {
        "trial": "trial", "settings": INT8, "fallback": KVSettings(), "plan": plan,
        "reject_for_seconds": 60, "template": "t",
    }  # fmt: skip
    return Watch(**(known | more))


def look(before: Watch, **more: Any) -> Watching:
    return look_after(before, "t", before.plan.floors, seen(**more))


def test_only_engines_with_the_change_are_asked() -> None:
    for task in range(4):
        found = look(promoted(watched=Watched(task=task)))
        assert [each.candidate.name for each in found.asks if each.candidate] == ["chat-1"]
        assert [each.target.name for each in found.probes] == ["chat-1"]


def test_nothing_is_asked_before_it_is_due() -> None:
    once = look(promoted()).watch
    soon = look(once, now=1000.0 + SECONDS_BETWEEN - 1)
    assert (soon.asks, soon.probes) == ((), ())
    assert look(once, now=1000.0 + SECONDS_BETWEEN).probes
    assert not look(once, now=1000.0 + TASK_SECONDS_BETWEEN - 1).asks
    assert look(once, now=1000.0 + TASK_SECONDS_BETWEEN).asks


def test_an_answer_counts_once_and_only_to_the_task_that_was_asked_last() -> None:
    asked = look(promoted())
    (ask,) = asked.asks
    answer = Answer(ask, grade=1.0, at=1001.0)
    told = look(asked.watch, answers=(answer,)).watch
    assert (told.watched.task, told.task_seconds) == (1, 1.0)
    assert told.watched.runs["WatchedNeedleFloor"].count == 1
    assert look(told, answers=(answer,)).watch.watched == told.watched
    assert look(asked.watch, answers=(answer, answer)).watch.watched == told.watched
    of_the_trial = Answer(replace(ask, trial="trial"), grade=1.0)
    assert look(asked.watch, answers=(of_the_trial,)).watch.watched == asked.watch.watched
    other_length = Answer(replace(ask, cell=replace(ask.cell, tokens=99)), grade=1.0)
    assert look(asked.watch, answers=(other_length,)).watch.watched == asked.watch.watched


def test_an_answer_of_an_engine_that_has_the_change_no_more_does_not_count() -> None:
    asked = look(promoted())
    (ask,) = asked.asks
    elsewhere = replace(ask, candidate=EngineTarget("chat-2", "http://chat-2"))
    told = look(asked.watch, answers=(Answer(elsewhere, grade=1.0),)).watch
    assert told.watched == asked.watch.watched


def test_likelihoods_that_are_no_numbers_need_no_statistics() -> None:
    asked = look(promoted())
    (request,) = asked.probes
    found = look(asked.watch, pairs=(Pair(request, rise=math.nan),))
    assert found.fell == "the engine gives likelihoods that are no numbers"
    failed = look(asked.watch, pairs=(Pair(request, rise=math.nan, error="no answer"),))
    assert not failed.fell
    assert failed.watch.note == "holds: probe: no answer"
    screened = replace(request, kind="Screened")
    assert not look(asked.watch, pairs=(Pair(screened, rise=math.nan),)).fell


def test_what_is_too_short_holds_with_its_name() -> None:
    asked = look(promoted())
    (ask,) = asked.asks
    short = Answer(ask, error="line 3 has 9 tokens", too_short=True)
    found = look(asked.watch, answers=(short,))
    assert found.watch.note == "holds: ProbeSetTooShort: line 3 has 9 tokens"
    # Floors that nothing can be asked for hold as well, and prompts go on.
    found = look(promoted(), max_tokens=200)
    assert "holds: spec.quality.floors: prompts of more than" in found.watch.note
    assert found.probes
    assert not found.asks


def test_grades_of_16_bits_are_those_of_pods_and_settings_that_are_still_there() -> None:
    kept = {"Needle512": Baseline(shown_percent=80)}
    before = promoted(watched=Watched(baselines=kept), weights="w")
    assert before.baselines_of(INT8, "t", "w") == kept
    assert before.baselines_of(KVSettings(), "t", "w") == {}
    assert before.baselines_of(INT8, "other", "w") == {}
    assert before.baselines_of(INT8, "t", "other") == {}
    floors = before.plan.floors
    # Also where the old template comes back: its pods may have loaded other weights by then.
    for template, weights in (("other", "w"), ("t", "other")):
        after = before.under(template, weights, floors).under("t", "w", floors)
        assert after.baselines_of(INT8, "t", "w") == {}
    # Engines that cannot be asked now, or that differ for a while, tell nothing.
    assert before.under("t", "", floors).baselines_of(INT8, "t", "w") == kept


def test_a_part_of_the_watch_that_moves_is_worth_a_write() -> None:
    before = promoted()
    told = before.model_copy(update={"watched": Watched(task=1)})
    assert Trials(watch=before).lasting() != Trials(watch=told).lasting()


def test_what_an_older_operator_has_kept_is_read() -> None:
    settings = {"kv_cache_dtype": "int8"}
    kept = {
        "trial": "t", "settings": settings, "fallback": {}, "plan": {"likelihood": True},
        "reject_for_seconds": 60, "number": 12, "asked_at": 5.0,
        "evidence": {"WatchedLikelihoodShort": {}}, "broken": False,
    }  # fmt: skip
    stored = {"data": {TUNING_KEY: json.dumps({"trials": {"watch": kept}})}}
    found = recall(stored, None).trials.watch
    assert found is not None
    assert found.number == 12
