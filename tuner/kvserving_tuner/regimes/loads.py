"""Which load it is now, which others are remembered, and which settings suit several of them.

A sign of change only raises doubt: the windows that follow say whether the load is another one,
and whether it is one that was seen before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvserving_tuner.observation import EngineObservation, Window
from kvserving_tuner.regimes import drift
from kvserving_tuner.regimes.fingerprint import (
    FIELDS,
    average,
    distance,
    fingerprint,
    logarithms,
)
from kvserving_tuner.remembered import Drift, Fingerprint, Loads, Regime
from kvserving_tuner.rules import RegimeRules

HOUR_SECONDS = 3600.0
MEMORY_WINDOWS = 60
"""Windows after which a load's mean follows slow changes instead of averaging all that ever was."""
_FRESH = (Drift(),) * len(FIELDS)


@dataclass(frozen=True, slots=True)
class Shift:
    """The load has become another one; `known` says that it was seen before."""

    before: str
    after: str
    known: bool


@dataclass(frozen=True, slots=True)
class InForce:
    """Settings in force and whether they serve the load calmly, so that they may be remembered."""

    cap: int | None
    kv_cache_dtype: str | None
    calm: bool


def follow(
    loads: Loads,
    engines: Sequence[EngineObservation],
    in_force: InForce,
    rules: RegimeRules,
    now: float,
) -> tuple[Loads, Shift | None]:
    """The loads after one more look, and the change of load that it shows, if any."""
    ends = [engine.full.end for engine in engines if isinstance(engine.full, Window)]
    starts = [engine.full.start for engine in engines if isinstance(engine.full, Window)]
    overlaps = loads.fed_at is not None and bool(starts) and min(starts) < loads.fed_at
    load = None if overlaps else fingerprint(engines)
    if load is None:
        return loads, None
    loads = loads.model_copy(update={"fed_at": max(ends)})
    if loads.doubtful:
        return _gather(loads, load, rules, now)
    loads, suspected = _test(loads, load, rules)
    if suspected:
        doubt: dict[str, object] = {"doubtful": True, "gathered": None, "gathered_windows": 0}
        return loads.model_copy(update={**doubt, "drifts": _FRESH}), None
    return _remember(loads, load, in_force, now), None


def settings_changed(loads: Loads) -> Loads:
    """The loads after a change of settings: a saturated engine's rate follows its settings."""
    return loads.model_copy(update={"drifts": _FRESH})


def current(loads: Loads) -> Regime | None:
    """The load now; None while it is not known."""
    return find(loads, loads.current)


def find(loads: Loads, name: str) -> Regime | None:
    """A remembered load."""
    return next((each for each in loads.regimes if each.name == name), None)


def alternates(loads: Loads, rules: RegimeRules, now: float) -> bool:
    """Whether loads follow each other so fast that none should be chased."""
    recent = [at for at in loads.changed_at if now - at < HOUR_SECONDS]
    return len(recent) > rules.robust_per_hour


def lately(loads: Loads, now: float) -> tuple[Regime, ...]:
    """Loads of the last hour."""
    return tuple(each for each in loads.regimes if now - each.seen_at < HOUR_SECONDS)


def robust_cap(loads: Loads, now: float) -> int | None:
    """The cap that suits all loads of the last hour: the lowest that served one of them."""
    caps = [each.cap for each in lately(loads, now)]
    known = [cap for cap in caps if cap is not None]
    return min(known) if known and len(known) == len(caps) else None


def _gather(
    loads: Loads, load: Fingerprint, rules: RegimeRules, now: float
) -> tuple[Loads, Shift | None]:
    count = loads.gathered_windows
    mean = load if loads.gathered is None else average(loads.gathered, count, load)
    gathered: dict[str, object] = {"gathered": mean, "gathered_windows": count + 1}
    loads = loads.model_copy(update=gathered)
    if count + 1 < rules.gathered_windows:
        return loads, None
    return _look_up(loads, mean, rules, now)


def _look_up(
    loads: Loads, load: Fingerprint, rules: RegimeRules, now: float
) -> tuple[Loads, Shift | None]:
    settled: dict[str, object] = {
        "doubtful": False, "drifts": _FRESH, "gathered": None, "gathered_windows": 0,
    }  # fmt: skip
    before = loads.current
    here = current(loads)
    if here is not None and distance(here.load, load) <= rules.tolerance:
        return loads.model_copy(update=settled), None
    nearest = min(loads.regimes, key=lambda each: distance(each.load, load), default=None)
    known = nearest is not None and distance(nearest.load, load) <= rules.tolerance
    regimes, number = loads.regimes, loads.numbered
    if known and nearest is not None:
        name = nearest.name
    else:
        number += 1
        name = f"load-{number}"
        new = Regime(name=name, load=load, windows=rules.gathered_windows, seen_at=now)
        # The one that was seen last stays longest.
        kept = sorted(regimes, key=lambda each: each.seen_at)[-(rules.remembered - 1) :]
        regimes = (*(kept if rules.remembered > 1 else ()), new)
    settled |= {"regimes": regimes, "current": name, "numbered": number}
    if not before:
        return loads.model_copy(update=settled), None
    recent = tuple(at for at in loads.changed_at if now - at < HOUR_SECONDS)
    settled["changed_at"] = (*recent, now)
    return loads.model_copy(update=settled), Shift(before, name, known)


def _test(loads: Loads, load: Fingerprint, rules: RegimeRules) -> tuple[Loads, bool]:
    drifts = loads.drifts or _FRESH
    tested = [
        drift.update(each, value, rules)
        for each, value in zip(drifts, logarithms(load), strict=True)
    ]
    updated = loads.model_copy(update={"drifts": tuple(after for after, _ in tested)})
    return updated, any(found for _, found in tested)


def _remember(loads: Loads, load: Fingerprint, in_force: InForce, now: float) -> Loads:
    here = current(loads)
    if here is None:
        return loads
    known: dict[str, object] = {
        "load": average(here.load, min(here.windows, MEMORY_WINDOWS), load),
        "windows": here.windows + 1,
        "seen_at": now,
    }
    if in_force.calm:
        known |= {"cap": in_force.cap, "kv_cache_dtype": in_force.kv_cache_dtype}
    after = here.model_copy(update=known)
    regimes = tuple(after if each.name == here.name else each for each in loads.regimes)
    return loads.model_copy(update={"regimes": regimes})
