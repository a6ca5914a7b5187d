"""Commands that change a cluster: shown, checked by the server, agreed to, and then made."""

from typing import Any

import pytest

from kubectlkit.fake import FakeApi, Ran
from kubectlkit.objects import demo, serving, trial
from kvserving_kubectl.errors import Forbidden, PluginError, Refused, UsageError
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS

CHANGING = (
    ["promote", "chat"], ["rollback", "chat"], ["pause", "chat"], ["pause", "--all"],
)  # fmt: skip


def without_trial(**spec: Any) -> FakeApi:
    api = demo()
    api.objects.pop(("kvtrials", "demo", "chat-t1"))
    if spec:
        api.add(KVSERVINGS, serving(**spec))
    return api


@pytest.mark.parametrize("command", CHANGING)
def test_a_dry_run_asks_the_server_and_changes_nothing(command: list[str]) -> None:
    api = demo()
    before = dict(api.objects)
    out = Ran(api)(*command, "--dry-run")
    assert "nothing was changed" in out
    assert api.patches
    assert [] == api.made()
    assert before == api.objects


@pytest.mark.parametrize("command", CHANGING)
@pytest.mark.parametrize("answer", ["n", "", "no", "yesterday"])
def test_without_a_yes_nothing_is_changed(command: list[str], answer: str) -> None:
    api = demo()
    assert "Nothing was changed" in Ran(api, [answer])(*command)
    assert [] == api.made()


@pytest.mark.parametrize("command", CHANGING)
def test_where_nobody_can_be_asked_yes_has_to_be_given(command: list[str]) -> None:
    api = demo()
    with pytest.raises(UsageError, match="pass --yes"):
        Ran(api)(*command)
    assert [] == api.made()


@pytest.mark.parametrize("command", CHANGING)
def test_what_the_server_refuses_is_refused_before_anything_is_changed(command: list[str]) -> None:
    api = demo()
    api.refused[("patch", "kvtrials")] = Refused("no")
    with pytest.raises(Refused):
        Ran(api)(*command, "--yes")
    assert [] == api.made()


def test_promote_approves_the_trial_under_way() -> None:
    api = demo()
    out = Ran(api, ["y"])("promote", "chat")
    assert [{"spec": {"control": "Promote"}}] == api.made()
    assert "Every engine of chat gets the change: KVCacheDType auto -> int8" in out


def test_promote_says_that_a_trial_has_not_passed() -> None:
    api = demo()
    api.add(KVTRIALS, trial(state="Running"))
    assert "has not passed yet (Running)" in Ran(api)("promote", "chat", "--yes")


def test_promote_without_a_trial_is_refused() -> None:
    with pytest.raises(UsageError, match="no trial under way"):
        Ran(without_trial())("promote", "chat", "--yes")


@pytest.mark.parametrize(
    ("name", "words"), [("elses", "which is of rag"), ("old", "has ended: Promoted")]
)
def test_a_trial_that_is_named_has_to_be_open_and_of_the_service(name: str, words: str) -> None:
    api = demo()
    api.add(KVTRIALS, trial("elses", of="rag", state="Running"))
    api.add(KVTRIALS, trial("old", state="Finished", verdict="Promoted"))
    with pytest.raises(UsageError, match=words):
        Ran(api)("promote", "chat", "--trial", name, "--yes")


def test_of_two_open_trials_the_one_that_has_begun_is_meant() -> None:
    api = demo()
    waiting = trial("aaa")
    waiting["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    api.add(KVTRIALS, waiting)
    Ran(api)("rollback", "chat", "--yes")
    assert [("kvtrials", "chat-t1")] == [p[:2] for p in api.patches if not p[3]]


def test_rollback_ends_the_trial_under_way() -> None:
    api = demo()
    Ran(api)("rollback", "chat", "--yes")
    assert [{"spec": {"control": "RollBack"}}] == api.made()


def test_rollback_without_a_trial_leads_back_to_the_policys_fallback() -> None:
    eviction = {"policy": "StreamingLLM", "windowTokens": 512}
    api = without_trial(
        kvCache={"dtype": "int4", "eviction": eviction}, rollbackPolicyRef={"name": "careful"}
    )
    Ran(api)("rollback", "chat", "--yes")
    after = api.get(KVSERVINGS, "demo", "chat")["spec"]["kvCache"]
    # Nothing is left of the eviction that its rules would refuse.
    assert {"dtype": "bfloat16", "eviction": {"policy": "None"}} == after


@pytest.mark.parametrize("policy", [{}, {"rollbackPolicyRef": {"name": "gone"}}])
def test_rollback_without_a_policy_leads_back_to_the_models_own(policy: dict[str, Any]) -> None:
    api = without_trial(kvCache={"dtype": "int8"}, **policy)
    Ran(api)("rollback", "chat", "--yes")
    after = api.get(KVSERVINGS, "demo", "chat")["spec"]["kvCache"]
    assert {"dtype": "auto", "eviction": {"policy": "None"}} == after


def test_rollback_takes_back_what_a_trial_promoted_beside_the_spec() -> None:
    """The operator ends it with an edit of the field: so there is one, and then the way back."""
    api = without_trial()
    found = serving()
    found["status"]["promoted"] = [{"field": "KVCacheDType", "value": "int8", "trial": "t"}]
    api.add(KVSERVINGS, found)

    def operator(body: dict[str, Any]) -> None:
        if body["spec"]["kvCache"]["dtype"] == "int8":
            api.objects[("kvservings", "demo", "chat")]["status"]["promoted"] = []

    api.after_patch = operator
    Ran(api)("rollback", "chat", "--yes")
    dtypes = [patch["spec"]["kvCache"]["dtype"] for patch in api.made()]
    assert ["int8", "auto"] == dtypes


def test_rollback_stops_where_the_operator_takes_no_note() -> None:
    api = without_trial()
    found = serving()
    found["status"]["promoted"] = [{"field": "KVCacheDType", "value": "int8", "trial": "t"}]
    api.add(KVSERVINGS, found)
    with pytest.raises(PluginError, match="is the operator running"):
        Ran(api)("rollback", "chat", "--yes")
    assert 1 == len(api.made())


def test_rollback_clears_a_promoted_cap_and_nothing_else_of_the_status() -> None:
    api = without_trial()
    found = serving()
    cap = {"field": "MaxActiveSeqs", "value": "12", "specGeneration": 3}
    found["status"]["promoted"] = [cap]
    api.add(KVSERVINGS, found)
    Ran(api)("rollback", "chat", "--yes", "--part", "MaxActiveSeqs")
    status = api.get(KVSERVINGS, "demo", "chat")["status"]
    assert [] == status["promoted"]
    assert "Serving" == status["reason"]


def test_rollback_of_a_cap_needs_the_status() -> None:
    api = without_trial()
    found = serving()
    found["status"]["promoted"] = [{"field": "MaxActiveSeqs", "value": "12"}]
    api.add(KVSERVINGS, found)
    api.refused[("patch", "kvservings/status")] = Forbidden("patch", "kvservings/status", "demo")
    with pytest.raises(Forbidden, match="the verb patch on kvservings/status"):
        Ran(api)("rollback", "chat", "--yes")


def test_rollback_where_there_is_nothing_to_take_back() -> None:
    with pytest.raises(UsageError, match="nothing to take back"):
        Ran(without_trial())("rollback", "chat", "--yes")


def test_pause_and_resume_bring_back_what_was_there() -> None:
    api = demo()
    before = api.get(KVSERVINGS, "demo", "chat")["spec"]
    Ran(api)("pause", "chat", "--yes")
    assert "Off" == api.get(KVSERVINGS, "demo", "chat")["spec"]["tuning"]["mode"]
    assert "Pause" == api.get(KVTRIALS, "demo", "chat-t1")["spec"]["control"]
    assert "off already" in Ran(api)("pause", "chat", "--yes")
    Ran(api)("resume", "chat", "--yes")
    after = api.get(KVSERVINGS, "demo", "chat")
    assert before == after["spec"]
    assert {} == after["metadata"]["annotations"]
    assert "Run" == api.get(KVTRIALS, "demo", "chat-t1")["spec"]["control"]


def test_pause_all_is_the_whole_cluster_and_with_a_namespace_that_alone() -> None:
    for arguments, paused in ((["--all"], {"chat", "rag"}), (["--all", "-n", "other"], {"rag"})):
        api = demo()
        api.add(KVSERVINGS, serving("rag", "other"))
        Ran(api)("pause", *arguments, "--yes")
        off = {
            body["metadata"]["name"]
            for body in api.list(KVSERVINGS)
            if body["spec"]["tuning"]["mode"] == "Off"
        }
        assert paused == off


def test_pause_keeps_approvals_and_rollbacks_that_were_asked_for() -> None:
    api = demo()
    asked = trial(state="Running")
    asked["spec"]["control"] = "RollBack"
    api.add(KVTRIALS, asked)
    Ran(api)("pause", "chat", "--yes")
    assert "RollBack" == api.get(KVTRIALS, "demo", "chat-t1")["spec"]["control"]


@pytest.mark.parametrize("command", [["pause"], ["pause", "chat", "--all"], ["resume"]])
def test_one_or_all_has_to_be_said(command: list[str]) -> None:
    with pytest.raises(UsageError, match="expected the name of a KVServing, or --all"):
        Ran(demo())(*command, "--yes")


def test_resume_leaves_a_mode_that_somebody_chose() -> None:
    api = without_trial(tuning={"mode": "Off"})
    ran = Ran(api)
    assert "nothing to resume" in ran("resume", "chat", "--yes")
    assert "was not paused by this command" in ran.err
    Ran(api)("resume", "chat", "--yes", "--mode", "Recommend")
    assert "Recommend" == api.get(KVSERVINGS, "demo", "chat")["spec"]["tuning"]["mode"]


def test_resume_does_not_undo_an_edit_made_meanwhile() -> None:
    api = demo()
    Ran(api)("pause", "chat", "--yes")
    api.patch(KVSERVINGS, "demo", "chat", {"spec": {"tuning": {"mode": "Recommend"}}})
    Ran(api)("resume", "chat", "--yes")
    found = api.get(KVSERVINGS, "demo", "chat")
    assert "Recommend" == found["spec"]["tuning"]["mode"]
    assert {} == found["metadata"]["annotations"]
