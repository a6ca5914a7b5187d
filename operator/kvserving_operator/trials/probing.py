"""Scores prompts in the background: a probe beside users' requests takes seconds to minutes."""

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from kvserving_operator.live import AUTO
from kvserving_operator.trials.background import Background
from kvserving_tuner.errors import Rejected, RuntimeAPIError
from kvserving_tuner.probes.builtin import builtin
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.strata import stratum_of
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.trials.progress import SCREENED

WORDS_PER_BLOCK_TOKEN = 1.5
"""Words of a built-in prompt for each token of two blocks: as much again stands behind them."""
LEAST_BLOCKS = 2
"""Blocks that a prompt has to be longer than, so that something is read that is not fresh."""


@dataclass(frozen=True)
class Request:
    """One pair to score: a prompt in a format, and in 16 bits on the same engine.

    With a `baseline`: through the live cache of either engine.
    """

    trial: str
    kind: str
    number: int
    target: EngineTarget
    model: str
    block_size: int
    max_tokens: int
    dtype: str
    """The format, which the engine itself has where the trial's pods serve it."""
    baseline: EngineTarget | None = None
    """Another engine, which was started without the change."""


@dataclass(frozen=True)
class Pair:
    """What became of a request."""

    request: Request
    stratum: str = ""
    rise: float = 0.0
    """Nats per token by which the format is worse; NaN where it gave no numbers."""
    error: str = ""
    too_short: bool = False
    unlike: bool = False
    """Whether the two engines cut the text into other tokens."""
    at: float = 0.0
    """When it was known, in seconds since the epoch."""


class Probing(Background[Pair]):
    """A few pairs one after another."""

    def __init__(self, client: ProbeClient, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._client = client

    def ask(self, requests: Sequence[Request], prompts: Sequence[Prompt]) -> None:
        """Begin with these pairs, unless others are under way."""
        self.begin(self._score_all(requests, prompts))

    async def _score_all(
        self, requests: Sequence[Request], prompts: Sequence[Prompt]
    ) -> AsyncIterator[Pair]:
        for request in requests:
            with self._asking():
                pair = await self._score(request, prompts[request.number])
            yield replace(pair, at=self._clock())
            if pair.error:
                break

    async def _score(self, request: Request, prompt: Prompt) -> Pair:
        try:
            ids = await self._client.tokens(request.target, request.model, prompt)
            if request.baseline is not None:
                other = await self._client.tokens(request.baseline, request.model, prompt)
                if other != ids:
                    return Pair(request, unlike=True)
            ids = ids[: request.max_tokens]
            skip = LEAST_BLOCKS * request.block_size
            if len(ids) <= skip:
                message = (
                    f"prompt {request.number + 1} has {len(ids)} tokens, expected more than "
                    f"{LEAST_BLOCKS} blocks ({skip})"
                )
                return Pair(request, error=message, too_short=True)
            as_dtype = request.dtype if request.kind == SCREENED else None
            with_change = await self._client.score(request.target, ids, skip, as_dtype)
            if request.baseline is not None:
                without = await self._client.score(request.baseline, ids, skip)
            else:
                # The model's own dtype, which not every engine knows as a KV format by its name.
                without = await self._client.score(request.target, ids, skip, AUTO)
        except Rejected as error:
            return Pair(request, error=error.told)
        except RuntimeAPIError as error:
            return Pair(request, error=str(error))
        if math.isnan(without.nats):
            return Pair(request, error="the model gives no numbers without the change either")
        if (
            request.baseline is None
            and request.dtype != AUTO
            and with_change.dtype not in (request.dtype, "")
        ):
            return Pair(request, error=f"expected {request.dtype}, got {with_change.dtype}")
        return Pair(request, stratum_of(len(ids)), with_change.mean - without.mean)


@cache
def builtin_set(count: int, block_size: int) -> tuple[Prompt, ...]:
    """Built-in prompts that are long enough for a block size."""
    return builtin(count, math.ceil(WORDS_PER_BLOCK_TOKEN * LEAST_BLOCKS * block_size))
