"""A world per test: a controller, a cluster in memory, engines."""

from collections.abc import AsyncIterator

import pytest

from kvserving_operator.settings import Settings
from operatorkit.world import World


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    world = World(settings)
    yield world
    await world.http.aclose()
