"""Where the cap on active sequences should go: quickly down in a storm, carefully up in a calm.

Each function answers one question about numbers; which of them are asked, and when, is decided in
`proposal`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvserving_tuner.diagnosis import cap_reached
from kvserving_tuner.fit import engine_fit, window_tokens_per_request
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, GaugeWindow, Window
from kvserving_tuner.readings import Unknown, known
from kvserving_tuner.settings import CapRules, Thresholds, TuningSettings
from kvserving_tuner.state import Ceiling


@dataclass(frozen=True, slots=True)
class Lowered:
    """The cap that ends a storm, and the two figures it is the smaller of."""

    cap: int
    running: float
    fit: int | None


def lowered(engine: EngineObservation, part: Window, rules: CapRules, minimum: int) -> Lowered:
    """The cap for an engine in a storm, seen in window `part`."""
    running = part.running.mean / engine.ranks if isinstance(part.running, GaugeWindow) else 0.0
    fit = engine_fit(engine, rules)
    cap = math.floor(rules.storm_factor * running)
    if isinstance(fit, int):
        cap = min(cap, fit)
    return Lowered(max(cap, minimum), running, None if isinstance(fit, Unknown) else fit)


@dataclass(frozen=True, slots=True)
class Predicted:
    """KV use expected under another cap, and where the expectation comes from."""

    usage: float
    basis: str


def predict_usage(
    engine: EngineObservation, part: Window, cap: int, to: int, rules: CapRules, limits: Thresholds
) -> Predicted | Unknown:
    """KV use of an engine after its cap moves from `cap` to `to`.

    Use grows with the sequences where the cap is what limits them. A window shorter than requests
    last shows sequences that have not grown yet; then their measured lengths must say that `to` of
    them fit.
    """
    running, usage = part.running, part.kv_usage
    if isinstance(running, Unknown) or isinstance(usage, Unknown):
        return Unknown("running requests or KV use are not known")
    if running.mean <= 0 or not cap_reached(running, cap * engine.ranks, limits):
        return Predicted(usage.maximum, "not at its cap")
    scaled = usage.maximum * max(to * engine.ranks / running.mean, 1.0)
    finished = known(part.finished)
    if finished is not None and finished >= running.mean:
        return Predicted(scaled, "measured")
    fit = engine_fit(engine, rules)
    if isinstance(fit, Unknown):
        return Unknown(f"running requests have not turned over in this window, and {fit.reason}")
    if to > fit:
        return Predicted(max(scaled, to / fit), f"{fit} sequences of measured length fit")
    return Predicted(scaled, "measured, and by length")


def largest_that_fits(
    engines: Sequence[EngineObservation], cap: int, wanted: int, settings: TuningSettings
) -> tuple[int, Predicted | Unknown]:
    """The largest cap up to `wanted` under which every engine is predicted to keep room.

    With it comes the prediction for the fullest engine, or for the cap refused if it equals `cap`.
    """
    worst: Predicted | Unknown = Unknown("no full window")
    for to in range(wanted, cap, -1):
        worst = _worst(engines, cap, to, settings)
        if isinstance(worst, Unknown):
            return cap, worst
        if worst.usage <= settings.cap.predicted_kv_usage:
            return to, worst
    return cap, worst


def _worst(
    engines: Sequence[EngineObservation], cap: int, to: int, settings: TuningSettings
) -> Predicted | Unknown:
    worst: Predicted | None = None
    for engine in engines:
        if isinstance(engine.full, Unknown):
            return engine.full
        one = predict_usage(engine, engine.full, cap, to, settings.cap, settings.thresholds)
        if isinstance(one, Unknown):
            return one
        if worst is None or one.usage > worst.usage:
            worst = one
    return worst or Unknown("no engines")


def step_up(cap: int, maximum: int, rules: CapRules) -> int:
    """The largest cap one step above `cap`."""
    return min(max(cap + 1, math.floor(cap * rules.raise_factor)), maximum)


def heaviest_request(engines: Sequence[EngineObservation], rules: CapRules) -> float | None:
    """Tokens of a finished request in the last window, where they are most; None if unknown."""
    tokens = [
        window_tokens_per_request(engine.full, rules)
        for engine in engines
        if isinstance(engine.full, Window)
    ]
    return max((each for each in tokens if each is not None), default=None)


def lighter(ceiling: Ceiling, tokens: float | None, rules: CapRules) -> float | None:
    """Length of requests now over that at the storm, if they are clearly shorter; else None."""
    before = ceiling.tokens_per_request
    if before is None or tokens is None or tokens > before * (1 - rules.lighter_load_share):
        return None
    return tokens / before


def below_ceiling(ceiling: Ceiling, tokens: float | None, rules: CapRules) -> int:
    """The largest cap that keeps its distance from a remembered storm."""
    sequences = ceiling.sequences / (lighter(ceiling, tokens, rules) or 1.0)
    return min(math.floor(sequences * (1 - rules.ceiling_margin)), math.ceil(sequences) - 1)


@dataclass(frozen=True, slots=True)
class Slack:
    """Whether time per output token leaves room for more sequences; None: it cannot be said."""

    enough: bool | None
    message: str


def tpot_slack(engines: Sequence[EngineObservation], settings: TuningSettings) -> Slack:
    """Compare the slowest engine's time per output token with its target."""
    room, percentile = settings.tpot_room_ms(), settings.slo.percentile
    if room is None:
        return Slack(True, "no target for time per output token")
    allowed = 1 - percentile / 100
    for engine in engines:
        if isinstance(engine.full, Unknown):
            return Slack(None, f"{engine.target}: {engine.full.reason}")
        latencies = engine.full.tpot
        if not isinstance(latencies, Histogram):
            return Slack(None, f"{engine.target}: time per output token: {latencies.reason}")
        # Nothing finished on this engine lately: it has no say, the others have.
        share = latencies.share_above(room / 1000)
        if isinstance(share, Unknown) or share.hi <= allowed:
            continue
        if share.lo > allowed:
            return Slack(
                False,
                f"{engine.target}: {share.lo:.0%} of requests need more than {room:g} ms per token",
            )
        return Slack(
            None, f"{engine.target}: p{percentile:g} lies in a bucket that spans {room:g} ms"
        )
    return Slack(True, f"p{percentile:g} of time per output token is below {room:g} ms")
