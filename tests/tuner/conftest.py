"""Expositions for the source tests."""

import pytest

from tunerkit.expositions import as_version, recorded


@pytest.fixture
def idle() -> str:
    """An engine without load."""
    return recorded(0)


@pytest.fixture
def busy() -> list[str]:
    """Five looks at an engine, 5 s apart, in which its first 11 preemptions happen."""
    return [recorded(index) for index in range(1, 6)]


@pytest.fixture
def releases() -> list[str]:
    """The same state as each generation of vLLM would export it."""
    wanted = [
        ("0.6.4", "v0"),
        ("0.8.5", "v1"),
        ("0.10.2", "v1"),
        ("0.14.0", "v1"),
        ("0.33.0", "v1"),
    ]
    return [as_version(recorded(3), version, generation) for version, generation in wanted]
