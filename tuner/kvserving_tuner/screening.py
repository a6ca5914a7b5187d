"""Whether answers survive another KV format, asked of a running engine before it is given one.

Prompts of the built-in set are scored through the live cache and as if it had the format; the
judge of trials says whether the rise of their likelihood is within the bound. No user notices more
than the fifth of the time that the engine gives to probes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import httpx

from kvserving_tuner.decision import Change
from kvserving_tuner.engine_api import call
from kvserving_tuner.errors import BadAnswer, Busy, RuntimeAPIError, Unauthorized, Unreachable
from kvserving_tuner.judge import Comparison, Outcome, Rules, Trial, judge, likelihood
from kvserving_tuner.ladder.situation import AUTO
from kvserving_tuner.probes.builtin import builtin
from kvserving_tuner.probes.client import ProbeClient
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.strata import stratum_of
from kvserving_tuner.runtime_client import RuntimeClient
from kvserving_tuner.sources.base import EngineTarget

MODELS_PATH: Final = "/v1/models"
MODELS_SECONDS: Final = 10.0
PROMPTS: Final = 160
"""Prompts of the set: 30 show a broken format, and 100 that one costs nothing."""
LEAST_WORDS: Final = 400
"""Length of a prompt: 500 to 600 tokens."""
LEAST_BLOCKS: Final = 2
"""Blocks at a prompt's start that are not scored: what follows reads something that is stored."""
WORDS_PER_BLOCK_TOKEN: Final = 1.5
"""Words of a prompt for each token of these blocks: as much again stands behind them."""
BLOCK: Final = 64
"""Tokens of a block where the engine does not say."""
NOT_NOW: Final = (Unreachable, Busy, Unauthorized)
"""Failures that say nothing about the format."""


@dataclass(frozen=True, slots=True)
class Screened:
    """What came of a screening; neither passed nor rejected where the engine could not be asked."""

    passed: bool
    rejected: bool
    message: str


class Gate(Protocol):
    """Says whether a change that touches answers may be made."""

    async def screen(self, targets: Sequence[EngineTarget], change: Change) -> Screened:
        """Ask the engines; this never raises for one that does not answer."""
        ...


class ProbeGate:
    """Screens formats by the likelihood of built-in prompts on the first engine."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        max_drop_percent: float,
        rules: Rules | None = None,
        prompts: Sequence[Prompt] | None = None,
    ) -> None:
        self._http = http
        self._probes = ProbeClient(http)
        self._runtime = RuntimeClient(http)
        self._bound = max_drop_percent
        self._rules = rules or Rules()
        self._prompts = prompts

    async def screen(self, targets: Sequence[EngineTarget], change: Change) -> Screened:
        """Score prompts until the judge has a verdict, or the set is used up."""
        target, dtype = targets[0], str(change.to_value)
        found: dict[str, Comparison] = {}
        verdict = judge(Trial(found, {}), self._rules)
        try:
            state = await self._runtime.get(target)
            fresh = LEAST_BLOCKS * (state.capacity.block_size or BLOCK)
            longest = state.startup.get("max_model_len")
            most = longest if isinstance(longest, int) else None
            words = max(LEAST_WORDS, math.ceil(WORDS_PER_BLOCK_TOKEN * fresh))
            model = await self._model(target)
            for prompt in self._prompts or builtin(PROMPTS, words):
                ids = (await self._probes.tokens(target, model, prompt))[:most]
                if len(ids) <= fresh:
                    continue
                nats = await self._rise(target, ids, fresh, dtype)
                stratum = stratum_of(len(ids))
                before = found.get(stratum) or Comparison.start(likelihood(stratum, self._bound))
                found[stratum] = before.add([nats])
                verdict = judge(Trial(found, {}), self._rules)
                if verdict.outcome is not Outcome.CONTINUE:
                    break
        except NOT_NOW as error:
            return Screened(False, False, str(error))
        except RuntimeAPIError as error:
            return Screened(False, True, f"{dtype} could not be probed: {error}")
        if verdict.outcome is Outcome.PROMOTE:
            return Screened(True, False, verdict.message)
        return Screened(False, True, f"{dtype} is not shown to keep quality: {verdict.message}")

    async def _rise(
        self, target: EngineTarget, ids: Sequence[int], fresh: int, dtype: str
    ) -> float:
        """Nats per token by which the format is worse."""
        changed = await self._probes.score(target, ids, fresh, dtype)
        plain = await self._probes.score(target, ids, fresh, AUTO)
        if math.isnan(plain.nats):
            raise BadAnswer(target.name, "the model gives no numbers in 16 bits either")
        if math.isnan(changed.nats):
            raise BadAnswer(target.name, f"the model gives no numbers through {dtype}")
        return changed.mean - plain.mean

    async def _model(self, target: EngineTarget) -> str:
        document = await call(self._http, target, "GET", MODELS_PATH, None, MODELS_SECONDS)
        data = document.get("data") if isinstance(document, Mapping) else None
        first = data[0] if isinstance(data, list) and data else None
        name = first.get("id") if isinstance(first, Mapping) else None
        if not isinstance(name, str):
            raise BadAnswer(target.name, "data[0].id: expected a model's name")
        return name
