"""Lanes for `pytest -n`: what each worker runs.

The cluster's tests mostly wait for pods; the engines that other tests start themselves fill that
time, and so do tests that only compute. Within a lane the order is that of a single process.
"""

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# How long an example takes is up to what else the machine does. Examples are the same each time, so
# that a run fails for what was changed; `make test-full` looks for new ones.
UNTIMED = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("repeatable", UNTIMED, derandomize=True)
hypothesis.settings.register_profile("search", UNTIMED, max_examples=2000)
hypothesis.settings.load_profile("repeatable")

LANES = (
    ("computing", ("tests/kernels/test_operations.py", "tests/tuner/")),
    ("engines", ("tests/kernels/",)),
    ("cluster", ("",)),
)
"""By the start of a test's name; the first that fits."""


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each lane to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return next(lane for lane, starts in LANES if nodeid.startswith(starts))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names with an address in memory, which workers do not share."""
    named = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named:
        raise pytest.UsageError(f"give these parameters ids: {named[0]}")
