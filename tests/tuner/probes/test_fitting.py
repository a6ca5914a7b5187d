"""Made-up tasks of a wanted length, by the engine's own tokenizer."""

import json
from typing import Any

import httpx
import pytest

from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.fitting import fitted
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.tasks import METHODS
from kvserving_tuner.sources.base import EngineTarget

TARGET = EngineTarget("pod-a", "http://10.0.0.1:8000", "secret")


@pytest.mark.parametrize("probe", list(METHODS))
@pytest.mark.parametrize("tokens_per_letter", [0.15, 1.0])
async def test_tasks_fit_whatever_a_tokenizer_makes_of_words(
    probe: Probe, tokens_per_letter: float
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        body: dict[str, Any] = json.loads(request.content)
        text = "".join(message["content"] for message in body["messages"])
        return httpx.Response(200, json={"tokens": [1] * int(tokens_per_letter * len(text))})

    client = ProbeClient(httpx.AsyncClient(transport=httpx.MockTransport(handler)))
    for number in range(5):
        found = await fitted(client, TARGET, "tiny", probe, number, 2000)
        assert 1800 <= len(found.token_ids) <= 2200
