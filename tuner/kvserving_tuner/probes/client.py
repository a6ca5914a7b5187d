"""Client of the engine's probe: how likely a prompt is through its KV cache."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from kvserving_tuner.engine_api import call
from kvserving_tuner.errors import BadAnswer, ChangeFailed, RuntimeAPIError
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.probes.withheld import withheld
from kvserving_tuner.sources.base import EngineTarget

logger = logging.getLogger(__name__)

PROBE_PATH: Final = "/kvserving/v1/probe"
TOKENIZE_PATH: Final = "/tokenize"
COMPLETIONS_PATH: Final = "/v1/completions"
PROBE_SECONDS: Final = 600.0
"""The engine's own limit; beside users' requests a probe gets a fifth of the time."""

ANSWER_SECONDS: Final = 300.0
"""Most time for an answer, in a queue behind users' requests."""

SEED: Final = 7

NOT_FINITE: Final = "NotFinite"
"""The engine's reason where a model gives no numbers through a format."""

FORM: Final = "prefill"
"""Tokens read what was stored in both forms; in chunks a probe costs users a tenth of the time."""


@dataclass(frozen=True)
class Score:
    """Likelihood of a prompt through a cache of one format."""

    nats: float
    """Sum of the negative log-likelihoods; NaN where the engine computed no numbers."""
    tokens: int
    dtype: str
    low_bit_share: float

    @property
    def mean(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens


class ProbeClient:
    """Scores prompts; every failure is a RuntimeAPIError."""

    def __init__(self, client: httpx.AsyncClient, timeout_seconds: float = PROBE_SECONDS) -> None:
        self._client = client
        self._timeout = timeout_seconds

    async def score(
        self, target: EngineTarget, token_ids: Sequence[int], skip: int, as_dtype: str | None = None
    ) -> Score:
        """Score tokens from `skip` on, through the live cache or as if it had another format."""
        body: dict[str, object] = {"token_ids": list(token_ids), "form": FORM, "skip": skip}
        if as_dtype is not None:
            body["as_dtype"] = as_dtype
        try:
            document = await self._ask(target, PROBE_PATH, body, self._timeout)
        except ChangeFailed as error:
            if error.reason != NOT_FINITE:
                raise
            return Score(math.nan, len(token_ids) - skip, as_dtype or "", 0.0)
        return _score(target.name, document)

    async def tokens(self, target: EngineTarget, model: str, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt by the engine's own tokenizer and chat template.

        A conversation is a plain text to a model without a template.
        """
        if prompt.messages:
            messages = [{"role": role, "content": content} for role, content in prompt.messages]
            chat = {"model": model, "messages": messages, "add_generation_prompt": False}
            try:
                return await self._tokenize(target, chat)
            except BadAnswer as error:
                logger.info("%s: no chat template: %s", target.name, error.message)
        return await self._tokenize(target, {"model": model, "prompt": prompt.plain})

    async def question(
        self, target: EngineTarget, model: str, prompt: Prompt, start: str = ""
    ) -> tuple[int, ...]:
        """Token ids of a prompt that is to be answered, up to where the answer begins with `start`.

        A conversation is a plain text to a model without a template.
        """
        if not prompt.messages:
            return await self._tokenize(target, {"model": model, "prompt": prompt.text + start})
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        if start:
            messages.append({"role": "assistant", "content": start})
        chat = {
            "model": model,
            "messages": messages,
            "add_generation_prompt": not start,
            "continue_final_message": bool(start),
            # Templates that do not know it leave it out; thoughts would take all of the tokens.
            "chat_template_kwargs": {"enable_thinking": False},
        }
        try:
            return await self._tokenize(target, chat)
        except BadAnswer as error:
            logger.info("%s: no chat template: %s", target.name, error.message)
        text = f"{prompt.plain}\nassistant: {start}".rstrip()
        return await self._tokenize(target, {"model": model, "prompt": text})

    async def answer(
        self, target: EngineTarget, model: str, token_ids: Sequence[int], most: int, salt: str
    ) -> str:
        """The most likely answer, of at most `most` tokens, through the engine's live cache.

        `salt` keeps what the cache holds of it apart from users' requests.
        """
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": most,
            "temperature": 0,
            "seed": SEED,
            "cache_salt": salt,
        }
        timeout = min(self._timeout, ANSWER_SECONDS)
        document = await self._ask(target, COMPLETIONS_PATH, body, timeout, as_user=True)
        choices = document.get("choices") if isinstance(document, Mapping) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        text = first.get("text") if isinstance(first, Mapping) else None
        if not isinstance(text, str):
            raise BadAnswer(target.name, "choices[0].text: expected a text")
        return text

    async def _ask(
        self,
        target: EngineTarget,
        path: str,
        body: Mapping[str, object],
        timeout_seconds: float,
        *,
        as_user: bool = False,
    ) -> object:
        try:
            return await call(
                self._client, target, "POST", path, body, timeout_seconds, as_user=as_user
            )
        except RuntimeAPIError as error:
            raise withheld(error, body) from None

    async def _tokenize(self, target: EngineTarget, body: Mapping[str, object]) -> tuple[int, ...]:
        document = await self._ask(target, TOKENIZE_PATH, body, self._timeout, as_user=True)
        found = document.get("tokens") if isinstance(document, Mapping) else None
        if not isinstance(found, list) or not all(type(token) is int for token in found):
            raise BadAnswer(target.name, "tokens: expected a list of integers")
        return tuple(found)


def _score(target: str, document: object) -> Score:
    if not isinstance(document, Mapping):
        raise BadAnswer(target, f"expected a JSON object, got {type(document).__name__}")
    logprobs = document.get("logprobs")
    if not isinstance(logprobs, list):
        raise BadAnswer(target, "logprobs: expected a list")
    scored = [value for value in logprobs if value is not None]
    if not scored or not all(isinstance(value, int | float) for value in scored):
        raise BadAnswer(target, "logprobs: expected at least one number and nothing else")
    return Score(
        nats=-math.fsum(scored),
        tokens=len(scored),
        dtype=str(document.get("dtype", "")),
        low_bit_share=_share(document),
    )


def _share(document: Mapping[str, Any]) -> float:
    share = document.get("low_bit_share", 0.0)
    return float(share) if isinstance(share, int | float) else 0.0
