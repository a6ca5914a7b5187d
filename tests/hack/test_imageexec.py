"""Programs of a loaded image, started side by side on the real containerd."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from localcluster.cluster import Cluster
from localcluster.host import detect_host
from localcluster.layout import REPOSITORY, layout_from_environment
from localcluster.progress import Progress
from localcluster.store import ImageStore

TOOL = [sys.executable, str(REPOSITORY / "hack" / "localcluster")]
STARTS = 24
AT_ONCE = 3
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif("KUBECONFIG_EXTERNAL" in os.environ, reason="not a cluster of this tool"),
]


@contextmanager
def garbage_collection(store: ImageStore) -> Iterator[None]:
    """Let containerd drop what nothing keeps, again and again."""
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            store.ctr("leases", "create", "--id", "kvserving-test")
            store.ctr("leases", "delete", "--sync", "kvserving-test")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        try:
            yield
        finally:
            done.set()
        running.result()


def test_programs_start_side_by_side_while_containerd_collects_its_garbage() -> None:
    store = Cluster(layout_from_environment(os.environ), detect_host(), Progress(quiet=True)).store

    def start(number: int) -> subprocess.CompletedProcess[str]:
        command = [*TOOL, "exec", "engine", "echo", str(number)]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    with garbage_collection(store), ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(start, range(STARTS)))
    assert [run.stderr for run in ended if run.returncode] == []
    assert [run.stdout.strip() for run in ended] == [str(number) for number in range(STARTS)]
