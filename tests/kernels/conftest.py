"""A real engine for tests marked `engine`: a vLLM server with a tiny model."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
ENGINE_PYTHON = "KVSERVING_ENGINE_PYTHON"
PLUGINS = "kvserving,kvserving_http"
TOKEN = "s3cret"
MODEL = "tiny"
FAULTS = ROOT / "tests" / "kernels" / "faults"
START_SECONDS = 900
"""Four processes that each import torch take long on two busy cores."""


@dataclass(frozen=True)
class Engine:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    headers: Mapping[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {TOKEN}"})

    def metrics(self) -> dict[str, float]:
        """Sum of each series' samples over its labels."""
        sums: dict[str, float] = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def core_pids(self) -> list[int]:
        """The engine core and everything below it."""
        listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, check=True)
        children: dict[int, list[int]] = {}
        cores = []
        for row in listing.stdout.decode(errors="replace").splitlines():
            pid, parent, command = (*row.split(None, 2), "")[:3]
            children.setdefault(int(parent), []).append(int(pid))
            if int(parent) == self.process.pid and "EngineCore" in command:
                cores.append(int(pid))
        found = []
        while cores:
            found.append(cores.pop())
            cores += children.get(found[-1], [])
        return found


class Fault:
    """Fails a step of the next switches."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def at(self, step: str, times: int = 1, rank: int | None = None) -> None:
        """Have the step fail so many times, in one rank alone where it is given."""
        where = "" if rank is None else f" {rank}"
        self.file.write_text(f"{step} {times}{where}")

    @property
    def variables(self) -> dict[str, str]:
        """Environment of an engine that has these faults."""
        return {
            "VLLM_PLUGINS": f"{PLUGINS},kvserving_faults",
            "PYTHONPATH": f"{ROOT / 'kernels'}:{FAULTS}",
            "KVSERVING_FAULT_FILE": str(self.file),
        }

    @property
    def is_pending(self) -> bool:
        """Whether it has not failed yet."""
        return self.file.exists()


@pytest.fixture(scope="session")
def engine_python() -> str:
    """Python of an environment with vLLM and this package; missing is a failure, never a skip."""
    python = os.environ.get(ENGINE_PYTHON)
    if not python:
        pytest.fail(f"{ENGINE_PYTHON} is not set: it names the Python of an engine environment")
    return python


@pytest.fixture(scope="session")
def tiny_model(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of a few million random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    corpus = ROOT / "docs" / "architecture.md"
    maker = ROOT / "hack" / "models" / "tiny_llama.py"
    subprocess.run([engine_python, str(maker), str(corpus), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def engine_environment() -> dict[str, str]:
    """Environment for an engine that runs this checkout's plugin."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "kernels"),
        "VLLM_PLUGINS": PLUGINS,
        "KVSERVING_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # No compiler is needed, and the first request need not wait for one.
        "TORCH_COMPILE_DISABLE": "1",
        # So small a model gains nothing by a second thread, which would wait for the first one
        # while the cluster's tests need the processor.
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def start_engine(
    engine_python: str, tiny_model: Path, engine_environment: dict[str, str]
) -> Callable[..., object]:
    """Context manager of a server with the tiny model and further flags and variables."""

    @contextmanager
    def start(*flags: str, **variables: str | None) -> Iterator[Engine]:
        port = _free_port()
        merged = {**engine_environment, **variables}
        environment = {name: value for name, value in merged.items() if value is not None}
        command = [
            engine_python, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(tiny_model), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *flags,
        ]  # fmt: skip
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        engine = Engine(f"http://127.0.0.1:{port}", process)
        try:
            _wait_until_up(engine)
            yield engine
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    return start


@pytest.fixture(scope="session")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Fault:
    """Faults of the shared engine."""
    return Fault(tmp_path_factory.mktemp("faults") / "fault")


@pytest.fixture
def own_fault(tmp_path: Path) -> Fault:
    """Faults of an engine that a test starts itself."""
    return Fault(tmp_path / "fault")


@pytest.fixture(scope="session")
def shared_flags() -> tuple[str, ...]:
    """Flags of the shared engine."""
    return (
        "--max-model-len", "2048", "--max-num-seqs", "32", "--max-num-batched-tokens", "1024",
        "--kv-cache-memory-bytes", str(64 * 1024 * 1024), "--block-size", "64",
    )  # fmt: skip


@pytest.fixture(scope="session")
def shared_engine(
    start_engine: Callable[..., object], shared_flags: tuple[str, ...], fault: Fault
) -> Iterator[Engine]:
    """One server for all tests that change its KV cache live; each leaves it as it began."""
    server: Any = start_engine(*shared_flags, **fault.variables)
    with server as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(shared_engine: Engine) -> Engine:
    """The engine that a module's tests ask; those with one of their own say so."""
    return shared_engine


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that engine, with its token."""
    async with httpx.AsyncClient(
        base_url=engine.url, headers=engine.headers, timeout=900
    ) as client:
        yield client


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_until_up(engine: Engine) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if engine.process.poll() is not None:
            pytest.fail(f"the engine ended with status {engine.process.returncode} at start")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{engine.url}/health", timeout=10).status_code == 200:
                return
        time.sleep(1)
    pytest.fail(f"the engine did not come up within {START_SECONDS} s")
