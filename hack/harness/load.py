"""Chat load as people make it: streamed conversations, each turn after the last answer."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import openai
from openai.types.chat import ChatCompletionMessageParam

from harness.errors import WaitTimeoutError
from harness.prompts import FOLLOW_UPS, OPENINGS, SYSTEM


@dataclass(frozen=True)
class Outcome:
    """One request as its client saw it; times are seconds of the monotonic clock."""

    started: float
    first_token: float | None
    finished: float
    tokens: int
    error: str | None = None


@dataclass
class ChatLoad:
    """Keeps `clients` conversations going against one OpenAI-compatible endpoint.

    Answers are between half of `max_tokens` and all of it long. Nothing is retried: a request that
    fails is an outcome with an error. Without `keep_alive` each request has a connection of its
    own, so that a Service spreads requests and not clients.
    """

    url: str
    model: str
    clients: int
    max_tokens: int = 128
    turns: int = 3
    seed: int = 0
    stagger_seconds: float = 0.0
    pause_seconds: float = 0.0
    keep_alive: bool = True
    api_key: str = field(default="none", repr=False)
    """OpenAI's client insists on one."""
    outcomes: list[Outcome] = field(default_factory=list)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, duration_seconds: float) -> Sequence[Outcome]:
        """Load the endpoint for a time, let the last answers finish, and give all outcomes."""
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0, timeout=900,
            default_headers=None if self.keep_alive else {"Connection": "close"},
        )  # fmt: skip
        self._stopping.clear()
        async with client, asyncio.TaskGroup() as group:
            for index in range(self.clients):
                group.create_task(self._converse(client, random.Random(self.seed * 1000 + index)))
                await asyncio.sleep(self.stagger_seconds)
            try:
                async with asyncio.timeout(duration_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                self._stopping.set()
        return self.outcomes

    def stop(self) -> None:
        """Begin no further request; those under way finish."""
        self._stopping.set()

    @property
    def failures(self) -> list[Outcome]:
        """The requests that did not get their whole answer."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    async def _converse(self, client: openai.AsyncOpenAI, chance: random.Random) -> None:
        while not self._stopping.is_set():
            messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM}]
            for turn in range(self.turns):
                if self._stopping.is_set():
                    return
                question = chance.choice(FOLLOW_UPS if turn else OPENINGS)
                messages.append({"role": "user", "content": question})
                tokens = chance.randint(self.max_tokens // 2, self.max_tokens)
                answer = await self._ask(client, messages, tokens)
                messages.append({"role": "assistant", "content": answer})
                await asyncio.sleep(self.pause_seconds)

    async def _ask(
        self,
        client: openai.AsyncOpenAI,
        messages: Sequence[ChatCompletionMessageParam],
        tokens: int,
    ) -> str:
        started, first, parts, error = time.monotonic(), None, [], None
        finish_reason = None
        try:
            stream = await client.chat.completions.create(
                model=self.model, messages=messages, max_tokens=tokens,
                temperature=0.7, stream=True, extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for chunk in stream:
                if not chunk.choices:
                    continue
                choice = chunk.choices[0]
                finish_reason = choice.finish_reason or finish_reason
                if choice.delta.content:
                    first = first or time.monotonic()
                    parts.append(choice.delta.content)
            if finish_reason is None:
                error = "the stream ended before the answer did"
        except openai.OpenAIError as failure:
            error = f"{type(failure).__name__}: {failure} ({failure.__cause__!r})"
            await asyncio.sleep(1)
        self.outcomes.append(Outcome(started, first, time.monotonic(), len(parts), error))
        return "".join(parts)


@contextmanager
def in_background(
    load: ChatLoad, duration_seconds: float, join_seconds: float = 120
) -> Iterator[ChatLoad]:
    """Let a load run beside what is done inside, and its last answers finish behind it."""
    thread = threading.Thread(target=lambda: asyncio.run(load.run(duration_seconds)))
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join(timeout=join_seconds)
    if thread.is_alive():
        raise WaitTimeoutError(f"answers are still under way after {join_seconds:g} s")
