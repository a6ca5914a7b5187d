"""The preStop hook, run as a pod would run it, against an engine that is still busy."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kvserving_operator.render.drain import SCRIPT

LINE = 'vllm:num_requests_{}{{engine="0",model_name="tiny"}} {}\n'
OTHER = 'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 3.0\n'


class Engine:
    """Answers /metrics with a number of running and waiting requests that a test may change."""

    def __init__(self) -> None:
        self.running, self.waiting, self.looks = 0, 0, 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.looks += 1
                text = LINE.format("running", float(engine.running))
                text += LINE.format("waiting", float(engine.waiting)) + OTHER
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()


def start(
    engine: Engine, mark: Path, delay: float = 0.1, budget: float = 30
) -> subprocess.Popen[bytes]:
    arguments = [str(delay), str(budget), engine.url, str(mark)]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments])


def test_an_idle_engine_is_let_go_at_once(engine: Engine, tmp_path: Path) -> None:
    hook = start(engine, tmp_path / "draining")
    assert 0 == hook.wait(timeout=20)
    assert (tmp_path / "draining").exists()
    assert 2 == engine.looks


@pytest.mark.parametrize("what", ["running", "waiting"])
def test_a_busy_engine_is_waited_for(engine: Engine, tmp_path: Path, what: str) -> None:
    setattr(engine, what, 1)
    hook = start(engine, tmp_path / "draining")
    while engine.looks < 2:
        time.sleep(0.05)
    assert hook.poll() is None
    setattr(engine, what, 0)
    assert 0 == hook.wait(timeout=20)


def test_the_budget_bounds_the_wait(engine: Engine, tmp_path: Path) -> None:
    engine.running = 1
    hook = start(engine, tmp_path / "draining", budget=1.5)
    assert 0 == hook.wait(timeout=20)


def test_an_engine_that_does_not_answer_is_no_idle_one(engine: Engine, tmp_path: Path) -> None:
    arguments = ["0", "1.5", "http://127.0.0.1:9/metrics"]
    before = time.monotonic()
    hook = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments])
    assert 0 == hook.wait(timeout=20)
    assert time.monotonic() - before >= 1.5
