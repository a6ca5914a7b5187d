"""Two lanes for `pytest -n 2`.

The cluster's tests mostly wait for pods; the engines that other tests start themselves fill that
time. Within a lane the order is that of a single process.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

MACHINE = ("tests/kernels/", "tests/tuner/")
"""Tests that start processes of their own; all others of the end-to-end run need the cluster."""


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each lane to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return "machine" if nodeid.startswith(MACHINE) else "cluster"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    return Lanes(config, log)
