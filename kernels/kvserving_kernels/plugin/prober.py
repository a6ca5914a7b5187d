"""Runs probes inside the engine core: one at a time, in slices, each between two engine steps.

Whoever asked drives it: every slice is a call of its own, so that the core steps users' requests
in between, and a probe that nobody drives any more costs nothing but its memory until it is ended.
What users are owed after the last slice outlives the probe: the next one waits for it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from kvserving_kernels.errors import EngineEndsError, InvalidProbeError, ProbeRefusedError
from kvserving_kernels.formats.reads import low_bit_share
from kvserving_kernels.plugin.pace import Pace, pause_seconds
from kvserving_kernels.plugin.probes import Form, Limits, Probe, parse_probe

CHUNK_TOKENS: Final = 32
"""Tokens of one forward pass in prefill form.

Always the same, because sums depend on it in their last bits, and codes on sums: the same probe is
to have the same answer, however busy the engine is. A pass of fewer costs hardly less.
"""

IDLE_SECONDS: Final = 60.0
"""A probe whose slice is overdue for so long counts as left behind, and another takes its place."""


class ProbeEngine(Protocol):
    """What an adapter offers of its vLLM version. Positions count the tokens in the cache."""

    def limits(self) -> Limits:
        """What may be asked for."""
        ...

    def open(self, dtype: str, tokens: int) -> None:
        """Make a private cache for so many tokens; raises ProbeRefusedError where it cannot."""
        ...

    def feed(
        self, token_ids: Sequence[int], targets: Sequence[int], position: int, size: int
    ) -> list[float]:
        """Put tokens into the private cache, `size` at a time, reading from it all that is in it.

        The answer has for each target the log-probability, in nats, that it follows the token at
        its place; there are as many targets as tokens, or none.
        """
        ...

    def close(self) -> None:
        """Free the private cache; harmless where there is none."""
        ...

    def has_users(self) -> bool:
        """Whether requests of users are running or waiting."""
        ...

    def page_size(self) -> tuple[int, int]:
        """Tokens per block, and elements per head."""
        ...

    def most_tokens(self) -> int:
        """Most tokens of one forward pass."""
        ...


NOT_FINITE: Final = "NotFinite"
"""Reason of a failure that tells of the model or the format, not of the engine."""


class ProbeOutcome(StrEnum):
    """What became of a call."""

    RUNNING = "Running"
    WAITING = "Waiting"
    DONE = "Done"
    INVALID = "Invalid"
    BUSY = "Busy"
    REFUSED = "Refused"
    ENDED = "Ended"
    FAILED = "Failed"


@dataclass
class _Run:
    probe_id: str
    probe: Probe
    due: float = math.inf
    position: int = 0
    logprobs: list[float] = field(default_factory=list)
    chunks: Pace = field(default_factory=Pace)
    singles: Pace = field(default_factory=Pace)


class Prober:
    """The engine core's end of the probe endpoint. Answers are plain values.

    EngineEndsError passes through: an engine that ends has no likelihoods to give.
    """

    def __init__(self, engine: ProbeEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._run: _Run | None = None
        self._ended = ""
        self._users_until = -math.inf

    def begin(self, probe_id: str, document: object) -> dict[str, Any]:
        """Take a probe on, under the caller's name for it.

        `Waiting` asks to begin again after a pause, which users are owed from the probe before.
        """
        began = self._clock()
        if self._run is not None and began - self._run.due < IDLE_SECONDS:
            return _error(ProbeOutcome.BUSY, "another probe is running")
        if began < self._users_until and self._engine.has_users():
            pause = self._users_until - began
            return {"outcome": ProbeOutcome.WAITING.value, "pause_seconds": pause}
        self._close()
        answer = self._take_on(probe_id, document)
        pause = self._owe(began)
        if self._run is None:
            return answer
        self._run.due = self._users_until
        return {**answer, "pause_seconds": pause}

    def _take_on(self, probe_id: str, document: object) -> dict[str, Any]:
        try:
            probe = parse_probe(document, self._engine.limits())
            # The last token is only a target.
            self._engine.open(probe.dtype, len(probe.token_ids) - 1)
        except InvalidProbeError as error:
            return {"outcome": ProbeOutcome.INVALID.value, "error": error.to_json()}
        except ProbeRefusedError as error:
            return _error(ProbeOutcome.REFUSED, str(error))
        # There is nobody left to free anything.
        except EngineEndsError:
            raise
        # Whatever fails in a worker, it may have come as far as to hold memory.
        except Exception as error:
            self._engine.close()
            return _error(ProbeOutcome.FAILED, f"{type(error).__name__}: {error}")
        self._run = _Run(probe_id, probe)
        return {"outcome": ProbeOutcome.RUNNING.value}

    def advance(self, probe_id: str) -> dict[str, Any]:
        """Compute one slice. The last one's answer has the result."""
        run = self._run
        if run is None or run.probe_id != probe_id:
            return _error(ProbeOutcome.ENDED, self._ended or "the probe is not known")
        began = self._clock()
        try:
            tokens = self._slice(run)
        except EngineEndsError:
            self._run = None
            raise
        except Exception as error:
            self._close()
            self._owe(began)
            return _error(ProbeOutcome.FAILED, f"{type(error).__name__}: {error}")
        pause = self._owe(began)
        run.due = self._users_until
        answer = {
            "outcome": ProbeOutcome.RUNNING.value,
            "tokens": tokens,
            "dtype": run.probe.dtype,
            "form": run.probe.form.value,
            "pause_seconds": pause,
        }
        if run.position < len(run.probe.token_ids) - 1:
            return answer
        self._close()
        self._owe(began)
        if not all(math.isfinite(value) for value in run.logprobs):
            message = "the model gave likelihoods that are not finite"
            return _error(ProbeOutcome.FAILED, message, reason=NOT_FINITE)
        return {**answer, "outcome": ProbeOutcome.DONE.value, "result": self._result(run)}

    def end(self, probe_id: str) -> None:
        """Drop a probe that nobody waits for any more."""
        if self._run is not None and self._run.probe_id == probe_id:
            self._close()

    def drop(self, reason: str) -> None:
        """End whatever runs, so that its memory is free; its caller is told the reason."""
        if self._run is not None:
            self._close()
            self._ended = reason

    def _owe(self, began: float) -> float:
        """Note until when users have their share of the time since; returns how long that is."""
        now = self._clock()
        pause = pause_seconds(now - began, self._engine.has_users())
        self._users_until = now + pause
        return pause

    def _close(self) -> None:
        self._run, self._ended = None, ""
        self._engine.close()

    def _slice(self, run: _Run) -> int:
        """Feed some tokens and note the likelihoods of those that come after them."""
        probe, start = run.probe, run.position
        scored = start >= probe.first - 1
        singly = scored and probe.form is Form.DECODE
        pace = run.singles if singly else run.chunks
        size = 1 if singly else min(CHUNK_TOKENS, self._engine.most_tokens())
        end = len(probe.token_ids) - 1 if scored else probe.first - 1
        end = min(end, start + max(size, pace.tokens // size * size))
        targets = probe.token_ids[start + 1 : end + 1] if scored else ()
        began = self._clock()
        found = self._engine.feed(probe.token_ids[start:end], targets, start, size)
        pace.timed(end - start, self._clock() - began)
        run.logprobs += found
        run.position = end
        return end - start

    def _result(self, run: _Run) -> dict[str, Any]:
        probe = run.probe
        block_size, head_size = self._engine.page_size()
        # The token at place n is scored by a query whose context has n tokens.
        contexts = range(probe.first, len(probe.token_ids))
        return {
            "logprobs": [*[None] * probe.first, *run.logprobs],
            "form": probe.form.value,
            "dtype": probe.dtype,
            "low_bit_share": low_bit_share(probe.dtype, block_size, head_size, contexts),
            "tokens": len(run.logprobs),
        }


def _error(outcome: ProbeOutcome, message: str, **more: str) -> dict[str, Any]:
    return {"outcome": outcome.value, "error": {"message": message, **more}}
