"""Send a workload to a real engine at its own times, and see when tokens come back."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from kvserving_tuner.scrape import Unreadable, parse
from kvserving_tuner.simulator.workload import Request

TIMEOUT_SECONDS = 1800.0
FIRST_TOKEN_ID = 300
"""Below are the bytes and special tokens of most vocabularies."""


@dataclass(frozen=True)
class Answer:
    """What a client saw of one request; times in seconds from the start of its workload."""

    sent: float
    first_token: float
    finished: float
    tokens: int

    @property
    def ttft(self) -> float:
        """Seconds until the first token."""
        return self.first_token - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds between tokens."""
        return (self.finished - self.first_token) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Target:
    """An engine that speaks the OpenAI API."""

    url: str
    model: str
    vocabulary: int


def token_ids(request: Request, name: str, vocabulary: int) -> list[int]:
    """A prompt of the request's length; the same where requests share a stretch, else its own."""
    found: list[int] = []
    for shared in request.prefix:
        found += _drawn(f"shared {shared.id}", shared.end - len(found), vocabulary)
    return found + _drawn(f"own {name}", request.prompt - len(found), vocabulary)


def _drawn(name: str, count: int, vocabulary: int) -> list[int]:
    source = np.random.default_rng(list(name.encode()))
    return [int(token) for token in source.integers(FIRST_TOKEN_ID, vocabulary, count)]


async def send(target: Target, requests: Sequence[Request], name: str) -> list[Answer]:
    """Send every request at its arrival; raises httpx.HTTPError where one is not answered."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, limits=limits) as client:
        prompts = [
            token_ids(request, f"{name} {at}", target.vocabulary)
            for at, request in enumerate(requests)
        ]
        began = time.perf_counter()

        async def one(request: Request, prompt: Sequence[int]) -> Answer:
            await asyncio.sleep(request.arrival - (time.perf_counter() - began))
            return await _ask(client, target, request, prompt, began)

        pairs = zip(requests, prompts, strict=True)
        return list(await asyncio.gather(*(one(request, prompt) for request, prompt in pairs)))


async def _ask(
    client: httpx.AsyncClient,
    target: Target,
    request: Request,
    prompt: Sequence[int],
    began: float,
) -> Answer:
    body = {
        "model": target.model,
        "prompt": list(prompt),
        "max_tokens": request.answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent, first, tokens = time.perf_counter(), None, 0
    async with client.stream("POST", f"{target.url}/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            await response.aread()
            response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event.get("choices") and first is None:
                first = time.perf_counter()
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    finished = time.perf_counter()
    return Answer(sent - began, (first or finished) - began, finished - began, tokens)


def metrics(target: Target) -> dict[str, float]:
    """Sums of the engine's series by name, and its cache's labels that are numbers."""
    text = httpx.get(f"{target.url}/metrics", timeout=30).raise_for_status().text
    scrape = parse(text, time.time())
    if isinstance(scrape, Unreadable):
        raise SystemExit(f"{target.url}/metrics is {scrape.reason}")
    found: dict[str, float] = {}
    for sample in scrape.samples:
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
        if sample.name == "vllm:cache_config_info":
            for label in ("block_size", "kv_cache_size_tokens"):
                found[label] = float(sample.labels[label])
            found["prefix_caching"] = float(sample.labels["enable_prefix_caching"] == "True")
    return found
