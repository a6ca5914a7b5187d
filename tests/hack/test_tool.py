"""The tool's edges: packages, lock, external clusters, keys and certificates."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localcluster import external
from localcluster.cli import main
from localcluster.debian import ensure_packages, missing_packages
from localcluster.errors import LocalClusterError, MissingPackagesError
from localcluster.layout import Layout, layout_from_environment
from localcluster.lock import machine_lock
from localcluster.pki import certificates, create_pki
from localcluster.progress import Progress

HACK = str(Path(__file__).parents[2] / "hack")
QUIET = Progress(quiet=True)


def test_the_cache_is_where_the_variable_says() -> None:
    assert layout_from_environment({"KVSERVING_CACHE": "/x/../y"}).cache == Path("/y")
    assert layout_from_environment({}).cache == Path.home() / ".cache" / "kvserving"


def test_missing_packages_are_named_with_the_exact_command(tmp_path: Path) -> None:
    needed = (
        ("sh", "dash"),
        ("no-such-program", "ghost"),
        (str(tmp_path / "no" / "*.h"), "ghost-dev"),
    )
    assert missing_packages(needed) == ["ghost", "ghost-dev"]
    command = r"sudo apt-get install -y --no-install-recommends ghost ghost-dev"
    with pytest.raises(MissingPackagesError, match=command):
        ensure_packages(needed, QUIET, install=False)
    ensure_packages((("sh", "dash"),), QUIET, install=False)


def test_a_second_tool_waits_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import time; from pathlib import Path; from localcluster.lock import machine_lock\n"
        "from localcluster.progress import Progress\n"
        f"with machine_lock(Path({str(path)!r}), Progress(quiet=True)):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    arguments = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": HACK}
    with (
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as first,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as second,
    ):
        holders = {first.pid: first, second.pid: second}
        deadline = time.monotonic() + 30
        while not path.exists() or not path.read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        holder = holders.pop(int(path.read_text()))
        (waiter,) = holders.values()
        assert waiter.stdout is not None
        assert select.select([waiter.stdout], [], [], 1.0)[0] == []
        holder.send_signal(signal.SIGKILL)
        assert waiter.stdout.readline() == "held\n"
        waiter.kill()
    with machine_lock(path, QUIET):
        assert int(path.read_text()) == os.getpid()


def test_an_external_cluster_needs_a_kubeconfig_that_exists(tmp_path: Path) -> None:
    assert external.kubeconfig_from_environment({}) is None
    assert external.kubeconfig_from_environment({"KUBECONFIG_EXTERNAL": ""}) is None
    with pytest.raises(LocalClusterError, match="KUBECONFIG_EXTERNAL: expected the path"):
        external.kubeconfig_from_environment({"KUBECONFIG_EXTERNAL": str(tmp_path / "none")})


def test_an_external_cluster_is_never_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text("{}")
    monkeypatch.setenv("KUBECONFIG_EXTERNAL", str(tmp_path / "config"))
    assert main(["down"]) == 1
    assert "does not take down a cluster it did not start" in capsys.readouterr().err


def test_certificates_verify_and_name_what_rbac_expects(tmp_path: Path) -> None:
    layout = Layout(cache=tmp_path / "cache", state=tmp_path / "state")
    create_pki(layout)
    for certificate in certificates(layout.network, layout.node_name):
        path = str(layout.pki / f"{certificate.name}.crt")
        authority = str(layout.pki / "ca.crt")
        subprocess.run(["openssl", "verify", "-CAfile", authority, path], check=True)
        text = subprocess.run(
            ["openssl", "x509", "-in", path, "-noout", "-subject", "-ext", "subjectAltName"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert certificate.common_name in text
        assert all(name.partition(":")[2] in text for name in certificate.alternative_names)
    assert layout.kubeconfig.stat().st_mode & 0o077 == 0
    document = json.loads(layout.kubeconfig.read_text())
    assert document["clusters"][0]["cluster"]["server"] == "https://10.244.78.1:6443"
    assert {path.name for path in layout.kubeconfigs.iterdir()} == {
        "admin",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
        "kubelet",
    }
