"""Changes through an engine's runtime API, as a patient client makes them."""

from collections.abc import Mapping
from typing import Any

import httpx

PATH = "/kvserving/v1/runtime"
ATTEMPTS = 15
"""A change that takes longer than the API waits is asked for again: engines that tests start get
what others leave of the processors."""


async def change(client: httpx.AsyncClient, document: Mapping[str, Any]) -> httpx.Response:
    """Ask for a change, and again with its change_id as long as the engine has not answered."""
    for _ in range(ATTEMPTS - 1):
        answer = await client.patch(PATH, json=document)
        if answer.status_code != 503 or "has not answered" not in answer.text:
            return answer
    return await client.patch(PATH, json=document)
