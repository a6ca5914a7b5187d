"""Kubernetes quantities in plain numbers.

The Kubernetes client has a parser too, but importing it loads the whole client, which takes
seconds where a manifest is merely checked.
"""

import re
from decimal import Decimal

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$"
)
_NUMBER_AND_SUFFIX = re.compile(r"^([+-]?[0-9.]+)(.*)$")
_DECIMAL_POWERS = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_POWERS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity_value(quantity: str) -> Decimal:
    """Give a quantity as an exact number; ValueError when it is none."""
    match = _NUMBER_AND_SUFFIX.match(quantity)
    if match is None or not re.match(QUANTITY_PATTERN, quantity):
        raise ValueError(f"expected a quantity such as 512Mi, got {quantity!r}")
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _BINARY_POWERS:
        return number * Decimal(1 << _BINARY_POWERS[suffix])
    power = _DECIMAL_POWERS[suffix] if suffix in _DECIMAL_POWERS else int(suffix[1:])
    return number.scaleb(power)


def quantity_bytes(quantity: str) -> int:
    """Give a quantity in whole bytes, rounded down."""
    return int(quantity_value(quantity))
