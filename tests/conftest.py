"""Two lanes for `pytest -n 2 --dist loadgroup`.

The cluster's tests mostly wait for pods; the engines that other tests start themselves fill that
time. Within a lane the order is that of a single process.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        lane = "cluster" if item.get_closest_marker("cluster") else "machine"
        item.add_marker(pytest.mark.xdist_group(lane))
