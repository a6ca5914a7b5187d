"""Errors of the harness."""


class HarnessError(Exception):
    """Something outside the code under test went wrong; the message says what was run."""


class CommandError(HarnessError):
    """A command exited with an error; `stderr` is what the user would have read."""

    def __init__(self, command: list[str], code: int, stderr: str) -> None:
        self.command = command
        self.code = code
        self.stderr = stderr
        super().__init__(f"{' '.join(command)}: exit {code}: {stderr.strip()[-2000:]}")


class WaitTimeoutError(HarnessError):
    """A condition did not come true in time; the message says what was seen last."""
