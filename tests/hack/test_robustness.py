"""The real cluster under blows: ended daemons, a tool killed at any moment, two tools at once.

Takes the local cluster down and up again several times; everything in it is lost.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.layout import REPOSITORY, STATE_FOLDER, layout_from_environment

TOOL = [sys.executable, str(REPOSITORY / "hack" / "localcluster")]
SEED = 3
KILLS = 6
pytestmark = [
    pytest.mark.full,
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="a Kubernetes node needs root"),
    pytest.mark.skipif("KUBECONFIG_EXTERNAL" in os.environ, reason="not a cluster of this tool"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    assert tool("up") == 0
    yield
    assert tool("up") == 0


def tool(*arguments: str) -> int:
    return subprocess.run([*TOOL, *arguments], check=False, stdout=subprocess.DEVNULL).returncode


def status() -> dict[str, object]:
    done = subprocess.run([*TOOL, "status", "--json"], check=False, capture_output=True, text=True)
    document: dict[str, object] = json.loads(done.stdout)
    assert (done.returncode == 0) == document["healthy"]
    return document


def processes(part: str) -> set[int]:
    """Process ids in the cluster's cgroups whose path contains a word."""
    found = set()
    for record in Path("/sys/fs/cgroup").glob("**/cgroup.procs"):
        if "/kvserving" in str(record) and part in str(record):
            found |= {int(word) for word in record.read_text().split()}
    return found


def leftovers() -> list[str]:
    """Whatever a cluster that is down must not have."""
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    mounts = Path("/proc/self/mountinfo").read_text()
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/kvserving")]
    found = [f"cgroup {path}" for path in cgroups]
    for text, mark in ((links, "kvserving0"), (routes, "10.244.7"), (routes, "10.96.0.0")):
        found += [line for line in text.splitlines() if mark in line]
    found += [line for line in mounts.splitlines() if "kvserving" in line or "kubelet" in line]
    found += [str(path) for path in (STATE_FOLDER,) if path.exists()]
    programs = str(layout_from_environment(os.environ).binaries)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "exe").startswith(programs):
                found.append(f"process {folder.name} {os.readlink(folder / 'exe')}")
    return found


def test_nothing_is_left_behind_and_images_are_still_there_afterwards() -> None:
    images = status()["images"]
    assert tool("down") == 0
    assert leftovers() == []
    assert tool("status") == 1
    assert tool("down") == 0
    assert tool("up") == 0
    assert status()["images"] == images


@pytest.mark.parametrize(
    "name", ["kube-scheduler", "kubelet", "containerd", "etcd", "kube-apiserver"]
)
def test_an_ended_daemon_is_started_again(name: str) -> None:
    others = processes("/node/kube-proxy")
    for pid in processes(f"/node/{name}"):
        os.kill(pid, signal.SIGKILL)
    assert status()["healthy"] is False
    assert tool("up") == 0
    assert status()["healthy"] is True
    assert others
    assert processes("/node/kube-proxy") == others


def test_the_death_of_the_anchor_ends_everything_and_up_starts_anew() -> None:
    for pid in processes("/node/anchor"):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while processes("/node/"):
        assert time.monotonic() < deadline, "processes outlive the namespace that held them"
        time.sleep(0.1)
    assert tool("up") == 0
    assert status()["healthy"] is True


@pytest.mark.parametrize("number", range(KILLS))
def test_a_tool_killed_while_it_starts_the_cluster_is_no_obstacle(number: int) -> None:
    assert tool("down") == 0
    delay = random.Random(SEED + number).uniform(0.2, 12.0)
    with subprocess.Popen([*TOOL, "up"], stdout=subprocess.DEVNULL) as process:
        time.sleep(delay)
        process.kill()
    assert tool("up") == 0
    assert status()["healthy"] is True


@pytest.mark.parametrize("number", range(KILLS // 2))
def test_a_tool_killed_while_it_takes_the_cluster_down_is_no_obstacle(number: int) -> None:
    delay = random.Random(SEED - number).uniform(0.05, 1.5)
    with subprocess.Popen([*TOOL, "down"]) as process:
        time.sleep(delay)
        process.kill()
    assert tool("down") == 0
    assert leftovers() == []
    assert tool("up") == 0


def test_two_tools_at_once_make_one_cluster() -> None:
    assert tool("down") == 0
    both = [subprocess.Popen([*TOOL, "up"], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(processes("/node/kubelet")) == 1
    assert status()["healthy"] is True
