"""Readiness by proof: the engine is Ready when tokens come out of it, not when a port is open.

Users' own tokens are the best proof and cost nothing. Only an idle engine is asked for a token of
our own. A saturated engine in which that request has to queue stays Ready as long as its
scheduler goes on stepping.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

FRESH_SECONDS: Final = 30.0
"""How long tokens count as proof."""

WAIT_SECONDS: Final = 5.0
"""How long one check waits for a completion of our own; a kubelet's time-out must exceed it."""

PROGRESS_SECONDS: Final = 300.0
"""How long scheduler steps stand in for tokens, as while long prompts are computed."""

RETRY_SECONDS: Final = 1.0
"""Shortest time between two completions of our own when they fail."""


class Proof(StrEnum):
    """What showed that the engine works."""

    TRAFFIC = "Traffic"
    COMPLETION = "Completion"
    PROGRESS = "Progress"


@dataclass(frozen=True)
class Verdict:
    """Answer of one check; `age_seconds` is that of the proof."""

    ready: bool
    proof: Proof | None = None
    age_seconds: float | None = None
    reason: str | None = None


class EngineProbe(Protocol):
    """What readiness needs of an engine. Times are those of the clock given to `Readiness`."""

    def dead_reason(self) -> str | None:
        """Why the engine can never answer again, or None."""
        ...

    def last_user_token_at(self) -> float | None:
        """When a user's request last got a token."""
        ...

    def last_step_at(self) -> float | None:
        """When the scheduler last reported a step."""
        ...

    async def complete(self) -> None:
        """Have one token produced, or raise."""
        ...


class Readiness:
    """Decides readiness and keeps at most one completion of its own in flight."""

    def __init__(
        self,
        probe: EngineProbe,
        clock: Callable[[], float],
        on_completion: Callable[[bool], None] = lambda succeeded: None,
        fresh_seconds: float = FRESH_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._on_completion = on_completion
        self._fresh_seconds = fresh_seconds
        self._wait_seconds = wait_seconds
        self._retry_seconds = retry_seconds
        self._completed_at: float | None = None
        self._failed_at: float | None = None
        self._failure = ""
        self._running: asyncio.Task[None] | None = None
        self._started_at = 0.0

    async def check(self) -> Verdict:
        """Whether tokens come out of the engine, waiting at most `wait_seconds` to see one."""
        dead = self._probe.dead_reason()
        if dead is not None:
            return Verdict(False, reason=dead)
        fresh = self._fresh_tokens()
        if fresh is not None:
            return fresh
        if self._running is None:
            if self._within(self._failed_at, self._retry_seconds):
                return Verdict(False, reason=self._failure)
            self._start()
        await self._wait()
        dead = self._probe.dead_reason()
        if dead is not None:
            return Verdict(False, reason=dead)
        return self._fresh_tokens() or self._steps() or Verdict(False, reason=self._why())

    def _fresh_tokens(self) -> Verdict | None:
        user_at = self._probe.last_user_token_at()
        if self._within(user_at, self._fresh_seconds):
            return Verdict(True, Proof.TRAFFIC, self._age(user_at))
        if self._within(self._completed_at, self._fresh_seconds):
            return Verdict(True, Proof.COMPLETION, self._age(self._completed_at))
        return None

    def _steps(self) -> Verdict | None:
        # Steps alone prove nothing about an engine that produces no tokens.
        tokens_at = (self._completed_at, self._probe.last_user_token_at())
        produced = any(self._within(at, PROGRESS_SECONDS) for at in tokens_at)
        step_at = self._probe.last_step_at()
        if produced and self._running and self._within(step_at, self._fresh_seconds):
            return Verdict(True, Proof.PROGRESS, self._age(step_at))
        return None

    def _start(self) -> None:
        self._started_at = self._clock()
        self._running = asyncio.create_task(self._complete())

    async def _complete(self) -> None:
        try:
            await self._probe.complete()
        # Any failure means not ready; the reason goes to whoever asks.
        except Exception as error:
            self._failed_at = self._clock()
            self._failure = f"a one-token completion failed: {type(error).__name__}: {error}"
            self._on_completion(False)
        else:
            self._completed_at = self._clock()
            self._failed_at = None
            self._on_completion(True)
        finally:
            self._running = None

    async def _wait(self) -> None:
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=self._wait_seconds)

    def _why(self) -> str:
        if self._running is None:
            return self._failure
        age = self._clock() - self._started_at
        return f"a one-token completion has been waiting for {age:.0f} s"

    def _within(self, at: float | None, seconds: float) -> bool:
        return at is not None and self._clock() - at <= seconds

    def _age(self, at: float | None) -> float | None:
        return None if at is None else self._clock() - at
