"""Options that several commands have: what the tuner may do, and within which targets."""

import argparse

from pydantic import ValidationError

from kvserving_tuner.decision import Knob
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.ladder.formats import EIGHT_BITS, FOUR_BITS, MIXED
from kvserving_tuner.profiles import PROFILES, ProfileName
from kvserving_tuner.rules import Ability, Guardrails, LadderRules, MaintenanceWindow, Strategy
from kvserving_tuner.settings import Bounds, Mode, Slo, TuningSettings

FORMATS = (*EIGHT_BITS, *MIXED, *FOUR_BITS)
"""Formats that the ladder may go to unless others are named: fewer than 4 bits are for who asks."""


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Targets of latency."""
    parser.add_argument("--ttft-ms", type=float, help="target for time to first token")
    parser.add_argument("--tpot-ms", type=float, help="target for time per output token")
    parser.add_argument("--percentile", type=float, default=95, help="of both targets")


def add_ladder(parser: argparse.ArgumentParser) -> None:
    """What the ladder may do, and what holds it back."""
    add_targets(parser)
    parser.add_argument("--minimum", type=int, default=1, help="lowest cap on sequences")
    parser.add_argument("--maximum", type=int, help="highest cap on sequences")
    parser.add_argument(
        "--dtype", action="append", metavar="NAME",
        help=f"KV format it may go to; may be repeated; default: {', '.join(FORMATS)}",
    )  # fmt: skip
    parser.add_argument(
        "--profile", choices=list(ProfileName), default=ProfileName.CUSTOM, type=ProfileName,
        help="what the model is used for: which moves are allowed, unless --dtype names formats",
    )  # fmt: skip
    parser.add_argument("--no-dtypes", action="store_true", help="keep the KV format")
    parser.add_argument("--rules", action="store_true", help="thresholds alone, no forecasts")
    parser.add_argument("--changes-per-day", type=int, metavar="N", help="of all but storms")
    parser.add_argument(
        "--window", action="append", default=[], metavar="HH:MM+MINUTES",
        help="UTC time at which the KV format may change, such as 02:00+120; may be repeated",
    )  # fmt: skip


def ladder_settings(options: argparse.Namespace, mode: Mode, formats: Ability) -> TuningSettings:
    """Settings from these options; SettingsError names the one at fault.

    `formats` is what can be done about the KV cache's format.
    """
    abilities = dict.fromkeys(Knob, Ability.RECOMMEND)
    abilities[Knob.MAX_SCHEDULED_TOKENS] = Ability.CHANGE
    abilities[Knob.KV_CACHE_DTYPE] = formats
    profile = PROFILES.get(options.profile)
    if profile is not None and not profile.evicts:
        del abilities[Knob.EVICTION]
    allowed = FORMATS if profile is None else profile.dtypes
    try:
        return TuningSettings(
            mode=mode,
            max_active_seqs=Bounds(minimum=options.minimum, maximum=options.maximum),
            abilities=abilities,
            allowed_dtypes=() if options.no_dtypes else tuple(options.dtype or allowed),
            slo=targets(options),
            ladder=LadderRules(strategy=Strategy.RULES if options.rules else Strategy.MODEL),
            guardrails=Guardrails(
                changes_per_day=options.changes_per_day,
                windows=tuple(_window(text) for text in options.window),
            ),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{where}: {first['msg']}") from error


def targets(options: argparse.Namespace) -> Slo:
    """Targets of latency from options."""
    return Slo(ttft_ms=options.ttft_ms, tpot_ms=options.tpot_ms, percentile=options.percentile)


def _window(text: str) -> MaintenanceWindow:
    start, plus, minutes = text.partition("+")
    if not plus or not minutes.isdecimal():
        raise SettingsError(f"--window: expected HH:MM+MINUTES, got {text!r}")
    return MaintenanceWindow(start=start, minutes=int(minutes))
