"""Client of the engine's runtime API: what is in effect, what may change live, the change."""

from collections.abc import Mapping
from typing import Any, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvserving_tuner.engine_api import call
from kvserving_tuner.errors import BadAnswer
from kvserving_tuner.sources.base import EngineTarget

RUNTIME_PATH = "/kvserving/v1/runtime"
TIMEOUT_SECONDS = 5.0
"""A change waits for the next engine step, which a long prefill may hold up for seconds."""


class _Document(BaseModel):
    # Engines may be newer than this client: unknown fields are no reason to stop tuning.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Eviction(_Document):
    """Eviction policy in effect."""

    policy: str = "None"
    sink_tokens: int | None = None
    window_tokens: int | None = None
    budget_percent: int | None = None


class Effective(_Document):
    """Settings in effect now."""

    kv_cache_dtype: str
    max_active_seqs: int | None = None
    max_scheduled_tokens: int | None = None
    eviction: Eviction = Eviction()


class KnobRange(_Document):
    """Bounds within which a knob may change live."""

    minimum: int
    maximum: int


class Capacity(_Document):
    """What the KV cache holds."""

    kv_cache_tokens: int | None = None
    blocks: int | None = None
    block_size: int | None = None
    bytes_per_token: float | None = None
    kv_cache_bytes: int | None = None
    max_concurrency: float | None = None


class LastChange(_Document):
    """The newest change the engine was asked for."""

    change_id: str
    result: str
    at: float | str | None = None
    error: Any = None


class RuntimeState(_Document):
    """One engine's answer, with the name of the target that gave it."""

    target: str
    api_version: str = "v1"
    effective: Effective
    envelope: Mapping[str, Any] = Field(default_factory=dict)
    capacity: Capacity = Capacity()
    versions: Mapping[str, str] = Field(default_factory=dict)
    startup: Mapping[str, Any] = Field(default_factory=dict)
    last_change: LastChange | None = None

    def range_of(self, field: str) -> KnobRange | None:
        """Bounds of an integer knob, None if it cannot change live."""
        try:
            return KnobRange.model_validate(self.envelope[field])
        except (KeyError, ValidationError):
            return None

    @classmethod
    def of(cls, target: str, document: object) -> Self:
        """Read an engine's JSON document."""
        if not isinstance(document, Mapping):
            raise BadAnswer(target, f"expected a JSON object, got {type(document).__name__}")
        try:
            return cls.model_validate({**document, "target": target})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadAnswer(target, f"{where}: {first['msg']}") from error


class RuntimeClient:
    """Reads and changes engines through their runtime API; every failure is a typed error."""

    def __init__(self, client: httpx.AsyncClient, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._client = client
        self._timeout = timeout_seconds

    async def get(self, target: EngineTarget) -> RuntimeState:
        """What is in effect on `target`."""
        return await self._call(target, "GET", None)

    async def patch(
        self,
        target: EngineTarget,
        changes: Mapping[str, object],
        change_id: str,
        timeout_seconds: float | None = None,
    ) -> RuntimeState:
        """Apply `changes` (API field to value), all or nothing; return what is then in effect.

        Repeating a call with the same `change_id` is safe. `timeout_seconds` is for changes that
        take longer than most.
        """
        body = {**changes, "change_id": change_id}
        return await self._call(target, "PATCH", body, timeout_seconds)

    async def _call(
        self,
        target: EngineTarget,
        method: str,
        body: Mapping[str, object] | None,
        timeout_seconds: float | None = None,
    ) -> RuntimeState:
        timeout = timeout_seconds or self._timeout
        document = await call(self._client, target, method, RUNTIME_PATH, body, timeout)
        return RuntimeState.of(target.name, document)
