"""Applies changes inside the engine core: one at a time, all or nothing, each id once.

The core calls this between two engine steps, so a change is never seen half done. It lives in the
core and not in the HTTP server because there may be several servers, but the core is one. What was
asked for while another change was carried out is refused when its turn comes: it was meant for
other settings than those that it would find.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from kvserving_kernels.errors import EngineEndsError, InvalidChangeError
from kvserving_kernels.plugin.changes import Change, Value, parse_change
from kvserving_kernels.plugin.document import EngineState, LastChange, render

REMEMBERED_CHANGES: Final = 256
"""Change ids kept for idempotence; a client repeats within seconds, so a few would do."""

BUSY: Final = "another change was being carried out"
"""Why a change is refused that may well be asked for again."""

LAID_OUT: Final = ("kv_cache_dtype", "eviction")
"""Knobs that lay the cache out anew, all of a change's at once."""


class Engine(Protocol):
    """What an adapter offers of its vLLM version."""

    def state(self) -> EngineState:
        """Read the running engine."""
        ...

    def get(self, knob: str) -> Value:
        """Value in force of a live knob."""
        ...

    def check(self, values: Mapping[str, Value]) -> None:
        """Raise InvalidChangeError for values that the engine cannot have together."""
        ...

    def set(self, knob: str, value: Value) -> None:
        """Set a live knob; a raised error means that the knob may be in either state."""
        ...

    def lay_out(self, values: Mapping[str, Value]) -> None:
        """Set knobs of `LAID_OUT`, all or none; EngineEndsError where the engine is lost by it."""
        ...


class Outcome(StrEnum):
    """What became of a request to change."""

    APPLIED = "Applied"
    REPEATED = "Repeated"
    BUSY = "Busy"
    INVALID = "Invalid"
    FAILED = "Failed"


class RuntimeController:
    """The engine core's end of the runtime API. Answers are plain values: they cross processes."""

    def __init__(
        self, engine: Engine, now: Callable[[], datetime], clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._now = now
        self._clock = clock
        self._ended_at = -math.inf
        self._applied: OrderedDict[str, Mapping[str, Value]] = OrderedDict()
        self._last: LastChange | None = None

    def describe(self) -> dict[str, Any]:
        """The runtime document."""
        return render(self._engine.state(), self._last)

    def apply(self, document: object, asked_at: float | None = None) -> dict[str, Any]:
        """Apply a change; `outcome` says how it went, `runtime` or `error` says the rest.

        `asked_at` is when the server was asked, in seconds of the same clock; without it, just now.
        EngineEndsError passes through: no answer about settings would be true.
        """
        try:
            change = parse_change(document, self._engine.state().envelope)
            repeated = self._is_repeated(change)
            if not repeated and asked_at is not None and asked_at < self._ended_at:
                return {"outcome": Outcome.BUSY.value, "error": {"message": BUSY}}
            if not repeated:
                # Before anything is touched: to find out by trying costs users' requests time.
                self._engine.check(change.values)
        except InvalidChangeError as error:
            return {"outcome": Outcome.INVALID.value, "error": error.to_json()}
        if repeated:
            return {"outcome": Outcome.REPEATED.value, "runtime": self.describe()}
        try:
            problem = self._set_all(change)
        finally:
            self._ended_at = self._clock()
        at = self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if problem is not None:
            self._last = LastChange(change.change_id, Outcome.FAILED.value, at, problem)
            return {"outcome": Outcome.FAILED.value, "error": {"message": problem}}
        self._remember(change)
        self._last = LastChange(change.change_id, Outcome.APPLIED.value, at)
        return {
            "outcome": Outcome.APPLIED.value,
            "changed": sorted(change.values),
            "runtime": self.describe(),
        }

    def _is_repeated(self, change: Change) -> bool:
        earlier = self._applied.get(change.change_id)
        if earlier is None:
            return False
        if earlier != change.values:
            raise InvalidChangeError(
                "change_id",
                f"an id of its own, or the change it named before ({_named(earlier)})",
                f"{change.change_id!r} with {_named(change.values)}",
            )
        return True

    def _remember(self, change: Change) -> None:
        self._applied[change.change_id] = change.values
        while len(self._applied) > REMEMBERED_CHANGES:
            self._applied.popitem(last=False)

    def _set_all(self, change: Change) -> str | None:
        before = {knob: self._engine.get(knob) for knob in change.values}
        try:
            self._put(change.values)
        except EngineEndsError:
            raise
        # Whatever a knob raises, the engine must serve on with what it had.
        except Exception as error:
            self._put(before)
            return f"{type(error).__name__}: {error}; the settings from before are in force"
        return None

    def _put(self, values: Mapping[str, Value]) -> None:
        for knob, value in values.items():
            if knob not in LAID_OUT:
                self._engine.set(knob, value)
        laid_out = {knob: value for knob, value in values.items() if knob in LAID_OUT}
        # What empties the cache comes last, so that nothing after it can undo it.
        if laid_out:
            self._engine.lay_out(laid_out)


def _named(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{knob}: {value}" for knob, value in values.items())
