"""Lengths of time as people give them on a command line."""

import re

from kvserving_kubectl.errors import UsageError

_PART = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str, option: str) -> float:
    """Seconds of a text such as 90s, 1h30m or 2d; UsageError names the option."""
    parts = _PART.findall(text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        raise UsageError(f"{option}: expected a duration such as 90s, 1h30m or 2d, got {text!r}")
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)
