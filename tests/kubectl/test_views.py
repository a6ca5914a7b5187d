"""What people are shown: status, explain, history, trials and top, of a cluster in memory."""

import json
from typing import Any

import pytest
import yaml

from kubectlkit.fake import Ran
from kubectlkit.objects import demo, event, pod, serving, trial
from kvserving_kubectl.errors import Forbidden, NotFound, UsageError
from kvserving_kubectl.resources import EVENTS, KVSERVINGS, KVTRIALS, PODS


def test_the_fleet_has_a_line_for_each() -> None:
    api = demo()
    api.add(KVSERVINGS, serving("rag", "other"))
    out = Ran(api)("status", "-A")
    chat, rag = (
        next(line for line in out.splitlines() if name in line) for name in ("chat", "rag")
    )
    assert chat.split() == [
        "demo", "chat", "2/2", "bfloat16", "12", "Auto", "NotRun", "Approval", "25%", "Serving",
        "10m",
    ]  # fmt: skip
    assert rag.split()[:2] == ["other", "rag"]
    # A trial of a namesake elsewhere is none of its own.
    assert "Approval" not in rag


def test_one_service_is_shown_whole() -> None:
    out = Ran(demo())("status", "chat")
    for words in (
        "demo/chat", "2 of 2 ready", "12 (room for 16)", "4096", "p95 of TTFT 500 ms",
        "MetricsMissing", "engine chat-0 is silent", "chat-t1", "passed; waits for approval",
        "MaxActiveSeqs 16 -> 12", "14 preemptions",
    ):  # fmt: skip
        assert words in out


@pytest.mark.parametrize(
    "command", [["status"], ["status", "chat"], ["trials"], ["explain", "chat"]]
)
def test_programs_get_json_and_yaml_that_say_the_same(command: list[str]) -> None:
    as_json = json.loads(Ran(demo())(*command, "-o", "json"))
    assert as_json == yaml.safe_load(Ran(demo())(*command, "-o", "yaml"))
    assert as_json


@pytest.mark.parametrize("command", ["status", "trials", "support-bundle"])
def test_a_name_is_of_one_namespace(command: str) -> None:
    with pytest.raises(UsageError, match="--all-namespaces: expected no name beside it"):
        Ran(demo())(command, "chat", "-A")


def test_a_watch_looks_as_often_as_it_is_asked_to() -> None:
    ran = Ran(demo())
    ran("status", "--watch", "--turns", "3", "--interval", "7")
    assert [7.0, 7.0] == ran.slept


def test_a_service_without_status_is_no_error() -> None:
    api = demo()
    bare = serving("new")
    bare.pop("status")
    api.add(KVSERVINGS, bare)
    assert "new" in Ran(api)("status")
    assert "demo/new" in Ran(api)("status", "new")
    assert "decided nothing yet" in Ran(api)("explain", "new")
    assert "0/2" in Ran(api)("status")
    assert Ran(api)("history", "new")


def test_nothing_in_a_cluster_rewrites_the_terminal() -> None:
    api = demo()
    hostile = serving("evil")
    hostile["status"]["conditions"][0]["message"] = "[bold]markup[/bold] \x1b[2Jgone\r\nline"
    hostile["status"]["lastDecision"]["message"] = "\x1b]0;title\x07[/]"
    api.add(KVSERVINGS, hostile)
    api.add(EVENTS, event("Odd", "\x1b[31mred [link=x]y", name="evil"))
    for command in (["status", "evil"], ["explain", "evil"], ["history", "evil"]):
        out = Ran(api)(*command)
        assert "\x1b" not in out
        assert "\x07" not in out
    assert "[bold]markup[/bold]" in Ran(api)("status", "evil")


def test_explain_says_found_decided_and_why_in_words_and_numbers() -> None:
    out = Ran(demo())("explain", "chat")
    assert "Found:   PreemptionStorm: More sequences run than the KV cache holds" in out
    assert "Decided: Change: One knob is moved on every engine." in out
    assert "Because: PreemptionStorm: The cap is lowered because sequences evict each other." in out
    assert "MaxActiveSeqs from 16 to 12, cost class Live, Applied" in out
    assert "KVUsageMax" in out
    assert "Trial chat-t1 (KVCacheDType auto -> int8) is Approval" in out
    assert "MetricsAvailable is False: MetricsMissing: An engine's metrics cannot be read." in out
    assert "Ready is" not in out
    assert "QualityGate is" not in out


def test_explain_goes_on_without_events() -> None:
    api = demo()
    api.refused[("list", "events")] = Forbidden("list", "events", "demo")
    ran = Ran(api)
    assert "Found:" in ran("explain", "chat")
    assert "the verb list on events in namespace demo is missing" in ran.err


def test_history_puts_all_that_happened_in_one_line_of_time() -> None:
    api = demo()
    found = serving()
    found["status"]["promoted"] = [
        {"field": "MaxActiveSeqs", "value": "12", "decision": "d-1", "at": "2027-01-15T07:51:00Z"}
    ]
    found["status"]["verdicts"] = [
        {"trial": "chat-t0", "field": "KVCacheDType", "value": "int2", "verdict": "RolledBack",
         "reason": "QualityDrop", "at": "2027-01-15T06:00:00Z"}
    ]  # fmt: skip
    api.add(KVSERVINGS, found)
    line = {
        "schema": "kvserving.dev/audit/v1", "time": "2027-01-15T05:00:00.123+00:00",
        "serving": "demo/chat", "id": "d-0", "action": "Change", "reason": "SequencesWaitKVFree",
        "change": {"knob": "MaxActiveSeqs", "from": 8, "to": 16}, "message": "room",
        "outcome": "Applied",
    }  # fmt: skip
    other = {**line, "serving": "demo/rag", "message": "of another"}
    operator = {
        "metadata": {
            "name": "op-0", "namespace": "kvserving-system",
            "labels": {"app.kubernetes.io/name": "kvserving-operator"},
        }
    }  # fmt: skip
    api.add(PODS, operator)
    api.texts["op-0/log"] = f"plain line\n{json.dumps(line)}\n{json.dumps(other)}\n{{broken\n"
    entries = json.loads(Ran(api)("history", "chat", "-o", "json"))
    assert sorted(entry["at"] for entry in entries) == [entry["at"] for entry in entries]
    whats = [entry["what"] for entry in entries]
    assert whats[0] == "DecisionChange"
    assert entries[0]["message"] == "SequencesWaitKVFree: MaxActiveSeqs 8 -> 16: room [Applied]"
    for what in (
        "TrialRolledBack",
        "TrialMade",
        "TrialServes",
        "SettingChanged",
        "InForce",
        "TrialStep",
    ):
        assert what in whats
    assert "of another" not in json.dumps(entries)
    recent = json.loads(Ran(api)("history", "chat", "-o", "json", "--since", "1h"))
    assert {"DecisionChange", "TrialRolledBack"} - {e["what"] for e in recent} == {
        "TrialRolledBack"
    }
    assert 1 == len(json.loads(Ran(api)("history", "chat", "-o", "json", "--limit", "1")))


def test_history_names_what_may_not_be_read() -> None:
    api = demo()
    api.refused[("list", "pods")] = Forbidden("list", "pods", "kvserving-system")
    ran = Ran(api)
    assert "TrialMade" in ran("history", "chat")
    assert "left out: the operator's audit log: forbidden: the verb list on pods" in ran.err


@pytest.mark.parametrize("text", ["1", "h", "1h x", "-1h", "1.h"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--since: expected a duration"):
        Ran(demo())("history", "chat", f"--since={text}")


def test_trials_are_listed_by_service_and_by_state() -> None:
    api = demo()
    api.add(KVTRIALS, trial("old", state="Finished", verdict="RolledBack", reason="QualityDrop"))
    api.add(KVTRIALS, trial("elses", of="rag", state="Running"))
    out = Ran(api)("trials", "--serving", "chat")
    assert "old" in out
    assert "elses" not in out
    out = Ran(api)("trials", "--open")
    assert "old" not in out
    assert "elses" in out


def test_one_trial_has_its_evidence() -> None:
    out = Ran(demo())("trials", "chat-t1")
    row = next(line for line in out.splitlines() if "ServedLikelihood" in line)
    assert row.split() == [
        "ServedLikelihood",
        "Passed",
        "0.1",
        "2",
        "-0.2",
        "to",
        "inf",
        "55",
        "0.3",
        "-",
    ]
    assert "25 % (of 5, 25)" in out
    assert "Manual" in out


def test_a_name_that_is_near_is_offered() -> None:
    api = demo()
    api.add(KVSERVINGS, serving("chart", "other"))
    with pytest.raises(NotFound, match="no KVServing chta in namespace demo; did you mean chat"):
        Ran(api)("status", "chta")
    with pytest.raises(NotFound, match=r"did you mean .*chart in namespace other"):
        Ran(api)("explain", "chart")
    with pytest.raises(NotFound, match="did you mean chat-t1"):
        Ran(api)("trials", "chat-t2")
    api.refused[("list", "kvservings")] = Forbidden("list", "kvservings", "demo")
    with pytest.raises(NotFound, match=r"no KVServing chta in namespace demo$"):
        Ran(api)("status", "chta")


def _engine_text(tokens: float) -> str:
    samples = {
        "num_requests_running": 2, "num_requests_waiting": 3, "kv_cache_usage_perc": 0.5,
        "num_preemptions_total": 0, "generation_tokens_total": tokens,
        "prompt_tokens_total": tokens, "request_success_total": 1,
    }  # fmt: skip
    lines = (f'vllm:{name}{{engine="0",model_name="m"}} {value}' for name, value in samples.items())
    return "\n".join(lines) + "\n"


def test_top_counts_between_two_looks() -> None:
    api = demo()
    looks = iter([_engine_text(100), _engine_text(160)])

    def text(*_: Any, **__: Any) -> str:
        return next(looks)

    api.text = text  # type: ignore[method-assign]
    ran = Ran(api)
    answer = json.loads(ran("top", "chat", "--interval", "6", "-o", "json"))
    (engine,) = answer["engines"]
    assert ("chat-0", 0.5, 3) == (engine["pod"], engine["kvUsage"], engine["waiting"])
    assert 10.0 == engine["tokensPerSecond"]
    assert [6.0] == ran.slept


def test_top_shows_the_operators_numbers_where_engines_may_not_be_read() -> None:
    api = demo()
    api.refused[("get", "pods/proxy")] = Forbidden("get", "pods/proxy", "demo")
    ran = Ran(api)
    out = ran("top", "chat")
    assert "KVUsageMax" in out
    assert "the verb get on pods/proxy in namespace demo is missing" in ran.err


def test_top_names_an_engine_that_is_silent_and_shows_the_others() -> None:
    api = demo()
    api.add(PODS, pod("chat-1"))
    api.texts["chat-0:8000/proxy/metrics"] = _engine_text(1)
    out = Ran(api)("top", "chat")
    assert "chat-0" in out
    assert "MetricsMissing: chat-1" in out


def test_top_without_engines_says_so() -> None:
    api = demo()
    api.objects.pop(("pods", "demo", "chat-0"))
    assert "has no engine" in Ran(api)("top", "chat")
