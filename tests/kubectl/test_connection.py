"""Calls by kubectl: what is asked, and what its errors become; and the command line around it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from kvserving_kubectl.api import Connection, KubectlApi
from kvserving_kubectl.cli import main
from kvserving_kubectl.errors import (
    Forbidden,
    NoConnection,
    NotFound,
    NotInstalled,
    PluginError,
    Refused,
    Unauthorized,
)
from kvserving_kubectl.failures import READ_CONFIG, Call, failure
from kvserving_kubectl.parser import COMMANDS
from kvserving_kubectl.resources import KVSERVINGS, KVTRIALS, PODS

DENIED = (
    'Error from server (Forbidden): kvservings.kvserving.dev is forbidden: User "nobody" cannot '
    'list resource "kvservings" in API group "kvserving.dev" in the namespace "demo"'
)


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        (DENIED, Forbidden, "the verb list on kvservings.kvserving.dev in namespace demo"),
        (DENIED.replace(' in the namespace "demo"', " at the cluster scope"), Forbidden,
         "on kvservings.kvserving.dev in the whole cluster"),
        ('Error from server (Forbidden): pods "chat-0" is forbidden: User "u" cannot get resource '
         '"pods/proxy" in API group "" in the namespace "demo"', Forbidden,
         "the verb get on pods/proxy in namespace demo"),
        ("Error from server (Forbidden): quota is used up", Forbidden, "quota is used up"),
        ('Error from server (NotFound): kvservings.kvserving.dev "chat" not found', NotFound,
         "no KVServing chat in namespace demo"),
        ("Error from server (NotFound): the server could not find the requested resource",
         NotInstalled, "knows no kvservings.kvserving.dev: the operator's chart is not installed"),
        ('error: the server doesn\'t have a resource type "kvservings"', NotInstalled, "chart"),
        ("error: You must be logged in to the server (Unauthorized)", Unauthorized, "credentials"),
        ("The connection to the server 127.0.0.1:9 was refused - did you specify the right host "
         "or port?", NoConnection, "no connection to the cluster of context prod"),
        ("Unable to connect to the server: dial tcp: lookup x: no such host", NoConnection,
         "lookup"),
        ('error: context "prod" does not exist', NoConnection, "does not exist"),
        ("Unable to connect to the server: net/http: TLS handshake timeout", NoConnection, "TLS"),
        ("Error from server (ServiceUnavailable): the server is currently unable", Refused,
         "unable"),
        ('The KVServing "chat" is invalid: spec.replicas: Invalid value', Refused, "invalid"),
        ("error: the namespace from the provided object does not match", Refused, "the namespace"),
        ("error: no configuration has been provided", NoConnection, "no configuration"),
        ("Warning: old version\nError from server (Conflict): changed", Refused, "changed"),
        ("", NoConnection, "kubectl said nothing"),
    ],
)  # fmt: skip
def test_each_failure_says_what_is_missing(told: str, kind: type, words: str) -> None:
    call = Call("list", KVSERVINGS, "demo", "chat")
    error = failure(call, told, "prod")
    assert type(error) is kind
    assert words in str(error)


def test_a_kubeconfig_without_a_context_is_named() -> None:
    told = "error: current-context must exist in order to minify"
    error = failure(Call(READ_CONFIG, None, "", ""), told, "")
    assert type(error) is NoConnection
    assert str(error) == f"the kubeconfig leads to no cluster: {told[7:]}"


def test_a_resource_that_a_cluster_may_lack_is_named_for_itself() -> None:
    told = "Error from server (NotFound): the server could not find the requested resource"
    error = failure(Call("list", PODS, "demo", ""), told, "")
    assert "has no pods" in str(error)
    assert "chart" not in str(error)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that notes how it was called, and answers what it was told to."""
    program = tmp_path / "kubectl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "with (here / 'calls').open('a') as calls:\n"
        "    calls.write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "if 'config' in sys.argv:\n"
        "    print('mine', end='')\n"
        "    sys.exit()\n"
        "sys.stderr.write((here / 'err').read_text() if (here / 'err').exists() else '')\n"
        "sys.stdout.write((here / 'out').read_text() if (here / 'out').exists() else '{}')\n"
        "sys.exit((here / 'err').exists())\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def calls(kubectl: Path) -> list[list[str]]:
    return [json.loads(line) for line in (kubectl / "calls").read_text().splitlines()]


def test_options_of_the_cluster_are_kubectls(kubectl: Path) -> None:
    api = KubectlApi(Connection("/k", "prod", "9s", "me"))
    api.list(KVTRIALS, "demo", {"labelSelector": "a=b,c"})
    assert calls(kubectl) == [
        ["--kubeconfig=/k", "--context=prod", "--as=me", "--request-timeout=9s", "get", "--raw",
         "/apis/kvserving.dev/v1alpha1/namespaces/demo/kvtrials?labelSelector=a%3Db%2Cc"]
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["../../secrets/x", "a?b=c", "a b", "--all", "a%2fb"])
def test_a_name_is_one_part_of_a_path(kubectl: Path, name: str) -> None:
    KubectlApi(Connection()).get(KVSERVINGS, name, name)
    path = calls(kubectl)[0][-1].removeprefix("/apis/kvserving.dev/v1alpha1/namespaces/")
    namespace, plural, its = path.split("/")
    assert "kvservings" == plural
    assert name == unquote(namespace) == unquote(its)
    assert "?" not in path


def test_a_patch_names_the_group_and_can_be_tried(kubectl: Path) -> None:
    api = KubectlApi(Connection())
    api.patch(KVSERVINGS, "demo", "chat", {"a": 1}, subresource="status", dry_run=True)
    (call,) = calls(kubectl)
    assert call[1:] == [
        "patch", "kvservings.kvserving.dev", "chat", "-n", "demo", "--type=merge", "-o", "json",
        "-p", '{"a": 1}', "--subresource=status", "--dry-run=server",
    ]  # fmt: skip


def test_entries_of_a_list_have_their_kind(kubectl: Path) -> None:
    answer = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]}
    (kubectl / "out").write_text(json.dumps(answer))
    assert KubectlApi(Connection()).list(PODS) == [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    ]


@pytest.mark.parametrize("out", ["", "no json", "[]", "\x00"])
def test_an_answer_that_is_no_object_is_an_error(kubectl: Path, out: str) -> None:
    (kubectl / "out").write_text(out)
    with pytest.raises(NoConnection, match="expected a JSON object"):
        KubectlApi(Connection()).get(PODS, "demo", "a")


def test_without_kubectl_the_plugin_says_so() -> None:
    with pytest.raises(NoConnection, match="is not on PATH"):
        KubectlApi(Connection(), "no-such-kubectl").server()


def test_errors_end_a_command_in_one_line(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kubectl / "err").write_text(DENIED)
    assert 1 == main(["status"])
    told = capsys.readouterr().err
    assert told.startswith("error: forbidden: the verb list on kvservings.kvserving.dev")
    assert 1 == len(told.splitlines())
    assert 2 == main(["pause"])
    assert "expected the name of a KVServing, or --all" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["-n", "x", "status"], ["status", "-n", "x"]])
def test_the_namespace_stands_before_or_behind_the_command(
    kubectl: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main(argv)
    assert "no KVServing in namespace x" in capsys.readouterr().out


def test_without_a_namespace_it_is_the_contexts(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main(["status"])
    assert "in namespace mine" in capsys.readouterr().out


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert 0 == left.value.code
        assert f"usage: kubectl kvserving {name}" in capsys.readouterr().out


def complete(*words: str) -> tuple[list[str], str]:
    """What kubectl is told: words, and a directive. In a process of its own, as with kubectl."""
    program = "import sys; from kvserving_kubectl.completion import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert "" == ran.stderr
    *found, directive = ran.stdout.splitlines()
    return sorted(found), directive


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["s"], ["status", "support-bundle"]),
        (["status", "--out"], ["--output"]),
        (["status", "-o", "j"], ["json"]),
        (["rollback", "--part", "KV"], ["KVCache"]),
        (["-n", "it's", "exp"], ["explain"]),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], found: list[str]) -> None:
    assert (found, ":4") == complete(*words)


def test_every_command_is_offered() -> None:
    found, _ = complete("")
    assert set(COMMANDS) <= set(found)


def test_names_are_completed_from_the_cluster(kubectl: Path) -> None:
    items = [{"metadata": {"name": name}} for name in ("chat", "chart", "rag")]
    (kubectl / "out").write_text(json.dumps({"items": items}))
    assert ["chart", "chat"] == complete("status", "-n", "demo", "ch")[0]
    assert "/namespaces/demo/" in calls(kubectl)[-1][-1]
    assert "--request-timeout=2s" in calls(kubectl)[-1]
    # Options are offered once a dash is typed.
    assert ["chart", "chat", "rag"] == complete("status", "")[0]


def test_completion_is_silent_where_the_cluster_is_not_there(kubectl: Path) -> None:
    (kubectl / "err").write_text("The connection to the server was refused")
    assert ([], ":4") == complete("status", "ch")


def test_files_are_left_to_the_shell() -> None:
    assert ([], ":0") == complete("validate", "-f", "exa")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_shells_get_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["completion", shell])
    assert "kubectl-kvserving" in capsys.readouterr().out


def test_a_missing_extra_is_named_without_a_traceback() -> None:
    program = (
        "import sys; sys.modules['argcomplete'] = None\n"
        "from kvserving_kubectl.cli import main; sys.exit(main(['status']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert 2 == ran.returncode
    assert "kvserving[kubectl]" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_all_errors_have_one_root() -> None:
    for kind in (Forbidden, NoConnection, NotFound, NotInstalled, Refused, Unauthorized):
        assert issubclass(kind, PluginError)
