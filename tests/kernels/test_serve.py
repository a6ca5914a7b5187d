"""`serve` passes output, signals and status on, and leaves the reason of a failure behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvserving_kernels.serve.reason import MAX_CHARACTERS, last_words
from kvserving_kernels.termination import leave_message

TOO_LITTLE_MEMORY = """\
(APIServer pid=7) INFO 11-29 20:25:09 [model.py:733] Resolved architecture: LlamaForCausalLM
(EngineCore pid=8) ERROR 11-29 20:26:36 [core.py:1510] EngineCore failed to start.
(EngineCore pid=8) ERROR 11-29 20:26:36 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-29 20:26:36 [core.py:1510]     raise ValueError(
(EngineCore pid=8) ERROR 11-29 20:26:36 [core.py:1510] ValueError: 1.0 GiB KV cache is needed
Traceback (most recent call last):
    raise ValueError(
ValueError: 1.0 GiB KV cache is needed
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)     raise RuntimeError(
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
python3.11/multiprocessing/resource_tracker.py:254: UserWarning: 1 leaked shared_memory object
  warnings.warn('resource_tracker: There appear to be %d '
"""

PYDANTIC = """\
Traceback (most recent call last):
    s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, max_model_len (40960) is too long [type=value_error, input_value=ArgsKwargs(()]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""

USAGE = """\
usage: vllm serve [-h]
                  [--enable-log-requests | --no-enable-log-requests]
vllm serve: error: unrecognized arguments: --no-such-flag
"""


@pytest.mark.parametrize(
    ("output", "status", "expected"),
    [
        (
            TOO_LITTLE_MEMORY,
            1,
            "vllm serve ended with status 1: ValueError: 1.0 GiB KV cache is needed",
        ),
        (
            PYDANTIC,
            1,
            "vllm serve ended with status 1: pydantic_core._pydantic_core.ValidationError: "
            "1 validation error for ModelConfig: max_model_len (40960) is too long",
        ),
        (
            USAGE,
            2,
            "vllm serve ended with status 2: "
            "vllm serve: error: unrecognized arguments: --no-such-flag",
        ),
        (
            "RuntimeError: Engine core initialization failed. Failed core proc(s): {'0': -9}\n",
            1,
            "vllm serve ended with status 1: "
            "RuntimeError: Engine core initialization failed. Failed core proc(s): {'0': -9}",
        ),
        ("\x1b[36mloading\x1b[0m\n\n", -11, "vllm serve was ended by SIGSEGV: loading"),
        ("", -9, "vllm serve was ended by SIGKILL, as by the kernel when memory runs out"),
        ("", 3, "vllm serve ended with status 3"),
    ],
)
def test_the_reason_is_found_among_consequences(output: str, status: int, expected: str) -> None:
    assert last_words(output.splitlines(), status) == expected


def test_a_reason_has_a_limit() -> None:
    assert len(last_words([f"ValueError: {'x' * 5000}"], 1)) == MAX_CHARACTERS


def test_a_message_is_left_on_one_line_where_a_container_expects_it(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    leave_message("outside of a container", log)
    assert not log.exists()
    log.touch()
    leave_message("two\nlines", log)
    assert log.read_text() == "two lines\n"


def _serve(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """`serve` with a `vllm` of our own on the path."""
    vllm = folder / "vllm"
    vllm.write_text(f"#!/bin/sh\n{script}\n")
    vllm.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen(
        [sys.executable, "-m", "kvserving_kernels.serve", *arguments],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def test_arguments_output_and_status_are_passed_on(tmp_path: Path) -> None:
    process = _serve(tmp_path, 'echo "$@"; echo oops >&2; exit 7', "--", "m", "--flag", "a b")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, sorted(out.splitlines())) == (7, ["oops", "serve m --flag a b"])


def test_a_signal_reaches_the_engine_and_its_status_comes_back(tmp_path: Path) -> None:
    script = "trap 'echo drained; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    process = _serve(tmp_path, script, "m")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "drained\n")


def test_an_engine_that_is_killed_ends_as_a_shell_would_say(tmp_path: Path) -> None:
    process = _serve(tmp_path, "kill -9 $$", "m")
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL


def test_a_process_left_behind_does_not_keep_serve_waiting(tmp_path: Path) -> None:
    # The process that is left behind ends itself when the test closes its output.
    process = _serve(tmp_path, "(while echo; do sleep 1; done) & exit 5", "m")
    assert process.wait(timeout=60) == 5
    assert process.stdout is not None
    process.stdout.close()
